# frozen_string_literal: true

module Locksidecar
  # A term as leader. `token` is the fencing token: pass it to all that the leader changes.
  class Term
    # @return [Lock]
    attr_reader :lock

    # @api private
    def initialize(lock)
      @lock = lock
      @lost = Signal.new
      [lock.grant.lost, lock.grant.stopping].each { |signal| signal.on(at_once: true) { @lost.fire(signal.reason) } }
    end

    # @return [Integer]
    def token = lock.token

    # Whether the lock was lost, or somebody asks to stop. Then the work must end.
    # @return [Boolean]
    def lost? = @lost.happened? || lock.lost?

    # @return [LockLost, nil]
    def lost = lost? ? Problem.lost(lock.key, (@lost.reason || lock.lost&.reason).to_s) : nil

    # As Lock#wait_lost.
    # @return [Boolean]
    def wait_lost(timeout = nil) = @lost.wait(timeout && Check.seconds(:timeout, timeout, most: Float::INFINITY))

    # As Lock#on_lost.
    # @return [self]
    def on_lost(&block)
      raise ArgumentError, "on_lost needs a block" unless block

      @lost.on { block.call(lost) }
      self
    end
  end
end
