# frozen_string_literal: true

module Locksidecar
  # How an operation lives with interruptions.
  #
  # Thread#raise, Thread#kill and Timeout.timeout can end a thread between any two of its steps. So an operation consists
  # of parts that are never interrupted (`whole`), each from one consistent state to the next, and of waits between them
  # that may be. An `ensure` around all of it ends what has begun.
  #
  # Thread.handle_interrupt does not hold two things back: what a signal's handler raises in the main thread, and what a
  # fiber scheduler raises in a fiber that waits. So operations of the main thread and of such fibers run in a thread of
  # their own (Aside). The caller only waits for it, and tells it when the caller was interrupted. A handler may raise
  # between any two steps of the caller, so each of them may be made again.
  #
  # MRI looks for interruptions when a method or a block returns and when the code jumps. Between the beginning of an
  # `ensure` and the mask of `finish` there must be neither, and so no condition.
  # @api private
  module Interrupts
    NEVER = { Object => :never }.freeze
    AT_ONCE = { Object => :immediate }.freeze

    # Ends the operation of a caller who was interrupted.
    class Left < Exception; end # rubocop:disable Lint/InheritException -- nobody rescues it

    # Runs a part that Thread#raise and Thread#kill do not interrupt. They come after it.
    def self.whole(&part) = Thread.handle_interrupt(NEVER, &part)

    # @return [Here, Aside] for one operation that this thread begins
    def self.runner = Thread.current.equal?(Thread.main) || Fiber.current_scheduler ? Aside.new : Here

    # Starts a thread that the end of the process may end at any time, whatever the mask of the thread that starts it.
    def self.thread(name)
      made = Thread.new { Thread.handle_interrupt(AT_ONCE) { yield } }
      made.name = name
      made.report_on_exception = false
      made
    end

    # For most threads.
    module Here
      # Runs an operation, which may be interrupted.
      def self.run = yield

      # Runs an operation to its end.
      def self.finish(&part) = Thread.handle_interrupt(NEVER, &part)
    end

    # For one operation of the main thread, or of a fiber under a scheduler.
    class Aside
      # @see Here.run
      def run(&operation)
        @worker = Worker.new(AT_ONCE, &operation)
        begin
          @worker.start.value
        ensure
          @worker.leave
        end
      end

      # @see Here.finish. An interruption is raised when the part has ended. A second one does not wait for that. If a
      # handler raises before the part has begun, the part is begun nevertheless; but not if it raises before this method.
      def finish(&part)
        Thread.handle_interrupt(NEVER) do
          worker = Worker.new(NEVER) { finish_now(&part) }
          begin
            worker.start.value
          ensure
            worker.start.await
          end
        end
      end

      private

      def finish_now
        @worker&.leave
        yield
      end
    end

    # A thread that runs one operation, once.
    class Worker
      def initialize(mask, &operation)
        @mask, @operation = mask, operation
        @turn = Queue.new.push(true) # the thread that takes it runs the operation
        @over = Queue.new # closed at the end
        @left = false
      end

      # Returns itself. It may be called again, because an interrupted caller does not know how far the first call came. So
      # the thread notes itself, and is masked from its first step: a thread begins with the mask of its maker.
      def start
        Thread.handle_interrupt(NEVER) { Thread.new { work if my_turn? } } unless @turn.empty?
        self
      end

      # Waits for the result, or raises the operation's error. Its trace goes on with the caller's steps, and so with a line
      # of the app.
      def value
        await
        if @error
          @error.set_backtrace(@error.backtrace + caller)
          raise @error
        end
        raise ThreadError, "the thread of this call was killed" unless @done

        @value
      end

      # The caller goes. An operation that has not begun never will, and one that has not ended ends now. It may be called
      # again. Returns nil.
      def leave
        return if @over.closed?

        @left = true
        start
        Thread.pass until @thread # it notes itself soon
        @thread.raise(Left)
        await
      end

      # Waits for the end. Returns nil.
      def await = @over.pop

      private

      def my_turn?
        @turn.pop(true)
      rescue ThreadError
        false
      end

      def work
        @thread = Thread.current
        @value = Thread.handle_interrupt(@mask, &@operation) unless @left
        @done = true
      rescue Exception => e # rubocop:disable Lint/RescueException -- the caller raises it
        @error = e
      ensure
        @over.close
      end
    end
    private_constant :Worker
  end
  private_constant :Interrupts, :Clock
end
