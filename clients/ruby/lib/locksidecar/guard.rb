# frozen_string_literal: true

module Locksidecar
  # A mutex for short steps, with a condition. Nothing interrupts a step, nor the wait for it.
  #
  # MRI wakes one of the threads that wait for a mutex. If that one is interrupted in this moment, it takes the wake-up with
  # it, and the others wait on although the mutex is free, until somebody else has had it. So a thread that Timeout.timeout
  # ends could let all others hang. Of a mutex whose waits are masked no wake-up is lost.
  # @api private
  class Guard
    def initialize
      @mutex, @changed = Mutex.new, ConditionVariable.new
    end

    # Runs a step while no other thread runs one.
    def synchronize(&step) = Interrupts.whole { @mutex.synchronize(&step) }

    # From here to `unlock` no other thread runs a step, and this one may be interrupted. Returns nil in a signal's handler,
    # which can lock nothing.
    def lock
      Interrupts.whole { @mutex.lock }
    rescue ThreadError
      nil
    end

    # This thread need not have it.
    def unlock = (@mutex.unlock if @mutex.owned?)

    # In a step: lets others run theirs until `changed`, at most until `ends` by our clock. It returns early, too, if this
    # thread is interrupted. So the step ends then, which raises the interruption, and the caller looks again in another one.
    def rest(ends, changed = @changed)
      left = ends - Clock.now
      changed.wait(@mutex, left == Float::INFINITY ? nil : left) if left.positive?
    end

    # In a step: wakes all that rest.
    def changed = @changed.broadcast
  end

  # Lets one thread after the other do what takes long. Unlike Guard, the wait and what it waits for may be interrupted.
  # @api private
  class Turn
    def initialize
      @guard, @taken = Guard.new, false
    end

    # Runs the block when no other thread runs one.
    def take
      mine = false
      @guard.synchronize { @taken ? @guard.rest(Float::INFINITY) : @taken = mine = true } until mine
      yield
    ensure
      @guard.synchronize { give_back if mine }
    end

    private

    def give_back
      @taken = false
      @guard.changed # all, because the one of them that takes the next turn may be interrupted before
    end
  end
  private_constant :Guard, :Turn
end
