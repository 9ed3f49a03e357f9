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
  # their own (Aside). The caller only waits for it, and tells it when the caller was interrupted.
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
        @worker.start.value
      ensure
        @worker.leave
      end

      # @see Here.finish. An interruption is raised when the part has ended. A second one does not wait for that.
      def finish
        Thread.handle_interrupt(NEVER) do
          Worker.new(NEVER) { @worker&.leave || yield }.start.last
        end
      end
    end

    # A thread that runs one operation.
    class Worker
      def initialize(mask, &operation)
        @mask, @operation = mask, operation
      end

      # Returns itself.
      def start
        @thread = Thread.new { Thread.handle_interrupt(NEVER) { work } }
        @thread.report_on_exception = false
        self
      end

      # Waits for the result, or raises the operation's error.
      def value
        @thread.join
        raise @error if @error
        raise ThreadError, "the thread of this call was killed" unless @done

        @value
      end

      # As `value`. If the wait is interrupted, it first waits on.
      def last
        value
      ensure
        await
      end

      # The caller goes. An operation that has not ended ends now. Returns nil.
      def leave
        return unless @thread&.alive?

        @thread.raise(Left)
        await
      end

      private

      def work
        @value = Thread.handle_interrupt(@mask, &@operation)
        @done = true
      rescue Exception => e # rubocop:disable Lint/RescueException -- the caller raises it
        @error = e
      end

      def await
        @thread.join
        nil
      rescue Left
        nil # it came after the operation
      end
    end
    private_constant :Worker
  end
  private_constant :Interrupts, :Clock
end
