# frozen_string_literal: true

module Locksidecar
  # A call: one request, and how it is made.
  # @api private
  class Call
    # That an argument was not given, where nil has a meaning.
    UNSET = Object.new.freeze

    attr_reader :method, :target, :joins, :needs, :waits, :delay
    # The session that it joins.
    attr_accessor :session
    # Seconds for the answer; nil: for ever.
    attr_accessor :timeout
    # An earlier one may have been carried out, without an answer.
    attr_accessor :repeated
    # A closed client makes it, too: by it close ends the session, or it withdraws.
    attr_accessor :after_close
    # Lines of the context that it is sent with; nil: of this thread's.
    attr_writer :headers
    # When it was sent, by our clock; nil: not yet.
    attr_accessor :sent

    # joins: join the client's session, and open one if there is none. needs: features. repeatable: if a connection
    # breaks before the answer is complete. waits: the sidecar may answer late, so it leaves a connection for the calls
    # that end waits. delay: seconds before it is made. headers: of its trace. fresh: the sidecar asks the store.
    def initialize(method, target, body = nil, timeout:, joins: false, session: nil, needs: [], repeatable: true,
                   waits: false, delay: 0.0, headers: nil, fresh: false)
      @method, @target = method, target
      @body = body.nil? ? "" : JSON.generate(body)
      @timeout, @joins, @session, @needs, @repeatable, @waits = timeout, joins, session, needs, repeatable, waits
      @delay, @headers, @fresh = delay, headers, fresh
      @repeated = @after_close = false
      @sent = nil
    end

    # Whether to make it again, on a new connection, after one broke before the answer was complete. A reused connection
    # may have been closed before the call. If the session is over, the operation decides.
    def again?(reused, error) = reused && (@repeatable || error.is_a?(Errno::EPIPE)) && !(session && session.ended)

    # Notes the answer that the session is over.
    def session_ended = session&.end

    def encode(endpoint)
      headers = endpoint.headers + (@headers || Tracing.headers)
      headers << "Cache-Control: no-cache\r\n" if @fresh
      headers << "Lock-Session: #{session.id}\r\n" if session
      Wire.request(method, target, headers, @body)
    end
  end
  private_constant :Call
end
