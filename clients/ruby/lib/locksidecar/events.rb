# frozen_string_literal: true

module Locksidecar
  # The events of one key, from all pods. It holds a connection until `close`.
  class EventStream
    include Enumerable

    # @api private
    def initialize(client, key)
      @client, @key = client, key
      call = Call.new("GET", Wire.lock_path(key, "/events"), timeout: client.transport.timeout, needs: ["events"])
      Interrupts.runner.run do
        client.transport.stream(call) { |stream| @stream = stream }
        @stream.next(call) { |name, data| @first = made(name, data) }
      end
      opened = true
    ensure
      close unless opened
    end

    # Waits for the next event. The first one is the state. Events may be missing: delivery is best effort.
    # @return [Event]
    # @raise [Unavailable] the stream has ended, or was closed
    def next
      if @first
        first, @first = @first, nil
        return first
      end
      raise @client.transport.trouble.broken("ended the event stream") unless @stream

      Interrupts.runner.run { @stream.next { |name, data| made(name, data) } }
    rescue Error
      close
      raise
    end

    # Calls the block with each event, until it breaks or the stream ends with Unavailable.
    def each
      return enum_for unless block_given?

      loop { yield self.next }
    end

    # Ends the stream. A thread that waits for the next event gets Unavailable.
    def close
      stream, @stream = @stream, nil
      Interrupts.whole { stream&.close }
    end

    private

    # Raises a `problem`, which may end the stream.
    def made(name, data)
      raise Problem.error(data, data.fetch("status", 500)) if name == "problem"

      Event.new(type: name.to_sym, key: @key, data:).freeze
    end
  end
end
