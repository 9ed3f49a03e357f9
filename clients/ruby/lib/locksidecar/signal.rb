# frozen_string_literal: true

module Locksidecar
  # The thread that calls an app's blocks, and looks at signals when they are due. It runs while there is something to do.
  # So no block of an app runs inside an operation, and a slow one delays only other blocks.
  # @api private
  module News
    class << self
      def closed = false

      def call(block)
        @guard.synchronize do
          @blocks << block
          wake
        end
      end

      # Looks at the signal at this time; Float::INFINITY: no more.
      def watch(signal, due)
        @guard.synchronize do
          due == Float::INFINITY ? @due.delete(signal) : @due[signal] = due
          wake
        end
      end

      # Whether it has something to do.
      def busy? = @guard.synchronize { @thread&.alive? || false }

      # In the child of a fork. The blocks are the parent's.
      def forked
        @due&.each_key(&:forget)
        @guard, @thread = Guard.new, nil
        @blocks, @due = [], {}.compare_by_identity
      end

      private

      def wake
        @thread = Interrupts.thread("locksidecar-news") { run } unless @thread&.alive? || (@blocks.empty? && @due.empty?)
        @guard.changed
      end

      def run
        while (block = following)
          begin
            block.call
          rescue StandardError, ScriptError => e
            Locksidecar.log.call("a block of a lock has raised #{e.class}: #{e.message}")
          end
        end
      end

      # Waits for the next thing to do. None is left: nil.
      def following
        loop do
          found = nil
          @guard.synchronize do
            found = due
            @guard.rest(@due.each_value.min) if found == :later
          end
          return found unless found == :later
        end
      end

      # What is to be done now; :later, or nil if none is left.
      def due
        return @blocks.shift unless @blocks.empty?

        signal, at = @due.min_by { |_, at| at }
        unless signal
          @thread = nil
          return
        end
        return :later if at > Clock.now

        @due.delete(signal)
        signal.method(:come)
      end
    end
    forked
    Forks.register(self)
  end

  # Happens at most once, with a reason: the loss of a lock, or a request to stop.
  # @api private
  class Signal
    @guard = Guard.new

    class << self
      attr_reader :guard

      def closed = false

      def forked
        @guard = Guard.new
      end
    end
    Forks.register(self)

    def initialize
      @happened = false
      @reason = @blocks = @waits = nil
      @due = Float::INFINITY # by our clock
    end

    # Nobody but our clock tells the end of a lock with bind: :ttl.
    def happened?
      return true if @happened
      return false if Clock.now < @due

      @reason = "expired"
      @happened = true
    end

    # Why it has happened, if that is known.
    def reason = happened? ? @reason : nil

    # Calls the block when it happens, or soon if it has happened: in the thread of News, or with `at_once` in the thread
    # that finds out.
    def on(at_once: false, &block)
      late = Signal.guard.synchronize do
        unless happened?
          (@blocks ||= []) << [block, at_once]
          News.watch(self, @due) if @due != Float::INFINITY
        end
        @happened
      end
      tell([[block, at_once]]) if late
    end

    # Waits until it happens, at most `timeout` seconds. Returns whether it has happened.
    def wait(timeout)
      ends = timeout ? Clock.now + timeout : Float::INFINITY
      until happened? || Clock.now >= ends
        Signal.guard.synchronize do
          @waits ||= ConditionVariable.new
          Signal.guard.rest([ends, @due].min, @waits) unless happened?
        end
      end
      happened?
    end

    # From this time on it has happened. Infinity: the lock was released. What comes after the end does not undo it.
    def expires(due)
      Signal.guard.synchronize do
        return if happened?

        @due = due
        News.watch(self, due) if @blocks
        @waits&.broadcast
      end
    end

    # It happens. silently: without the blocks, because after a fork they are the parent's.
    def fire(reason, silently: false)
      blocks = Signal.guard.synchronize do
        return if @happened

        @reason = reason
        @happened = true
        News.watch(self, Float::INFINITY) if @due != Float::INFINITY
        @waits&.broadcast
        taken, @blocks = @blocks, nil
        taken
      end
      tell(blocks) unless silently
    end

    # It is due.
    def come
      blocks = Signal.guard.synchronize do
        return unless happened?

        @waits&.broadcast
        taken, @blocks = @blocks, nil
        taken
      end
      tell(blocks)
    end

    # Without its blocks and those who wait, which are the parent's.
    def forget
      @blocks = @waits = nil
    end

    private

    def tell(blocks)
      blocks&.each { |block, at_once| at_once ? block.call : News.call(block) }
    end
  end
  private_constant :News, :Signal
end
