# frozen_string_literal: true

module Locksidecar
  # A block that holds locks.
  # @api private
  class Block
    # outcome: of a block that has not released its locks itself. stops: a request to stop ends the block, too.
    def initialize(client, keys, options, on_loss: nil, outcome: nil, several: false, stops: false)
      @client, @outcome, @stops = client, outcome, stops
      @loss = Loss.new(on_loss)
      @acquire = Acquire.new(client.transport, keys, options, several:) # begins a span
    end

    # Acquires, calls the block with the locks, and releases them. A block without its lock always ends with an error: its
    # own, or else LockLost.
    def run
      begin
        @acquire.run
        locks = @acquire.granted.map { |entry, value| Lock.new(@client, entry, value) }
        @loss.watch(locks, stops: @stops)
        value = yield locks
        ended = true
        value
      rescue Exception => error # rubocop:disable Lint/RescueException -- it goes on
        raise
      ensure
        leave(error, ended)
      end
    rescue Exception => error # rubocop:disable Lint/RescueException -- it goes on
      raise
    ensure
      # No mask holds back what a signal's handler raises. It may have come just before the release began.
      leave(error, false) unless @released
    end

    private

    # The first line has no condition: see Interrupts.
    def leave(error, ended)
      failures = @acquire.runner.finish { release }
      tell(failures, error, ended)
    rescue LockLost => e
      raise if error.nil? || !@loss.raised?(e)
    end

    def release
      @released = true
      @loss.over
      @acquire.leave(@outcome)
    end

    # Raises the first error of the releases. If the block has raised, or its thread is killed, the errors are logged.
    def tell(failures, error, ended)
      first = failures.shift if ended || (error.nil? && Thread.current.status != "aborting")
      failures.reject! { |failure| error.is_a?(LockLost) && failure.is_a?(LockLost) && failure.key == error.key }
      failures.each { |failure| Locksidecar.log.call("a lock could not be released: #{failure.message}") }
      raise first if first
    end
  end
  private_constant :Block
end
