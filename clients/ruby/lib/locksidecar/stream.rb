# frozen_string_literal: true

module Locksidecar
  # A connection that receives events: those of a key, or the session's.
  # @api private
  class Stream
    # Seconds. A stream has a comment line every 15 s, so a sidecar that is silent for this long is gone or hangs.
    @silence = 45.0

    class << self
      attr_accessor :silence # tests shorten it
    end

    def initialize(connections, connection, trouble)
      @connections, @connection, @trouble = connections, connection, trouble
      @parser = Wire::StreamParser.new
      @found = []
      @silence = Stream.silence
    end

    # Waits for the next event. The block gets its name and its JSON, in a part that nothing interrupts. With `call`, it is
    # the answer to that. Returns the block's result.
    def next(call = nil)
      event = result = nil
      until event
        come = @found.any? || @connection.await(call ? call.timeout : @silence)
        raise late(call) unless come

        Interrupts.whole { result = yield(*event) if (event = @found.shift || read) }
      end
      result
    rescue SystemCallError, IOError => e
      raise @trouble.broken("broke the event stream (#{e.message})")
    end

    # Ends the connection, so its reader ends too.
    def shut = @connection.shut

    # Ends the connection, and closes its descriptor.
    def close
      @connection.shut
      @connections.close(@connection)
    end

    private

    def read
      data = @connection.read or return
      @found.concat(@parser.feed(data))
      @found.shift
    end

    def late(call)
      call ? @trouble.timed_out(call) : @trouble.broken("has said nothing for #{format("%g", @silence)} s", "timeout")
    end
  end
  private_constant :Stream
end
