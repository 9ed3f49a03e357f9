# frozen_string_literal: true

module Locksidecar
  # Brings the loss of a lock into the code of its block: `on_loss: :raise` raises LockLost in the block's thread, between
  # two of its steps.
  # @api private
  class Loss
    def initialize(on_loss)
      return if on_loss.nil?
      raise ArgumentError, "on_loss: #{on_loss.inspect} must be nil or :raise" unless on_loss == :raise
      raise ArgumentError, "on_loss: :raise works for threads, not for fibers: use lock.on_lost" if Fiber.current_scheduler

      @thread = Thread.current
      @guard = Guard.new
      @raised = []
    end

    # stops: a request to stop ends the block, too.
    def watch(locks, stops: false)
      return unless @thread

      locks.each do |lock|
        lock.grant.lost.on(at_once: true) { bring(lock.key, lock.grant.lost.reason.to_s) }
        lock.grant.stopping.on(at_once: true) { bring(lock.key, "stopping") } if stops
      end
    end

    # The block has ended. What was raised before comes when its thread may be interrupted again, at the end of the block.
    def over = @guard&.synchronize { @thread = nil }

    # Whether the error is of here.
    def raised?(error) = @raised&.any? { |one| one.equal?(error) } || false

    private

    def bring(key, reason)
      @guard.synchronize do
        return unless @thread

        @raised << (error = Problem.lost(key, reason))
        @thread.raise(error)
      end
    end
  end
  private_constant :Loss
end
