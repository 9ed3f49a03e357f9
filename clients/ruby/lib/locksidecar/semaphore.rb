# frozen_string_literal: true

module Locksidecar
  # At most `limit` holders of a key, in all pods. Each holds a permit: a Lock with a `slot`. Threads share it.
  class Semaphore
    # @return [String]
    attr_reader :key
    # @return [Integer]
    attr_reader :limit

    # @api private
    def initialize(client, key, limit, options)
      @client, @key, @limit = client, Check.text(:key, key), limit
      @options = { **options, shared: true, limit: }
      Options.new(**@options.except(:on_loss)) # so that a mistake is found here
    end

    # Holds a permit in the block.
    # @yieldparam permit [Lock]
    def hold(**options, &block) = @client.lock(key, **@options, **options, &block)

    # @return [Lock] a permit: release it
    def acquire(**options) = @client.acquire(key, **@options.except(:on_loss), **options)

    # @return [Lock, nil] nil: there is none
    def try_acquire(**options) = @client.try_acquire(key, **@options.except(:on_loss, :wait), **options)
  end
end
