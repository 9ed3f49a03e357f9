# frozen_string_literal: true

module Locksidecar
  # How a client makes calls: its settings, its connections, its session, and what the sidecar can do.
  #
  # Its threads refer to it, and not to the client. So a client that nobody uses any more ends it.
  # @api private
  class Transport
    # Seconds to wait for the answer to a release that nobody waits for. The sidecar carries it out in any case.
    WITHDRAW = 2.0

    attr_reader :endpoint, :reconnect, :features, :trouble, :connections
    # Whether a session was opened in this process.
    attr_reader :reached
    # Whether the client was closed.
    attr_reader :closed
    # The most seconds for an answer, in addition to a wait.
    attr_accessor :timeout

    def initialize(endpoint, name:, ttl:, timeout:, reconnect:)
      @endpoint, @timeout, @reconnect = endpoint, timeout, reconnect
      @trouble = Trouble.new(endpoint)
      @opens = { name:, ttl_ms: ttl && Check.to_ms(ttl) }.compact
      @closed = false
      @pid = Process.pid
      begin_anew
      Forks.register(self)
    end

    # Makes a call. The block gets the complete answer, in a part that nothing interrupts. Returns the block's result.
    def perform(call, &taken)
      Forks.check
      raise trouble.closed if closed

      make(call, &taken)
    end

    # As `perform`, also for a closed client.
    def perform_closed(call, &taken)
      call.after_close = true
      make(call, &taken)
    end

    # Makes a call whose answer is an event stream, on a connection of its own. The block gets the stream, in a part that
    # nothing interrupts.
    def stream(call)
      Forks.check
      raise trouble.closed if closed

      describe unless features
      require_features(call)
      connection = stream = nil
      connect(call, Clock.now, Patience.new(timeout, call, fresh: true)) { |taken, _| connection = taken }
      Interrupts.whole { yield stream = begin_stream(call, connection) }
      stream
    ensure
      Interrupts.whole { @connections.close(connection) } if connection && !stream
    end

    # As `describe`, for an app.
    def learn
      Forks.check
      raise trouble.closed if closed

      describe
    end

    # Asks the sidecar for its version and features.
    def describe
      exchange(Call.new("GET", "/v1", timeout:)) do |answer|
        value = answer.result
        @version = value["version"].to_s
        @features = value["features"].freeze
        Description.new(version: @version, api: value["api"], features:).freeze
      end
    end

    # The session, if one is open.
    def live_session = (@session unless @session.nil? || @session.ended)

    # Whether to try an acquire again after this error: a sidecar that was reached before may come back.
    def may_return?(error)
      reached && !closed && [Unavailable, LimitReached, SessionEnded, LockLost].any? { |kind| error.is_a?(kind) }
    end

    # Ends the session, and closes all connections.
    def close
      Forks.check
      return if closed

      @closed = true # a waiting call must not open another session
      end_session(live_session) if live_session
      @connections.shut
      @connections.drop_idle
    end

    # Nobody uses the client any more. A finalizer calls it in any thread at any step, so it takes no mutex. In another
    # process the connections are not its own.
    def abandon
      return unless Process.pid == @pid

      @closed = true
      @connections.shut
    end

    # In the child of a fork.
    def forked
      @connections.close_copies
      @session&.forked
      @pid = Process.pid
      begin_anew
    end

    private

    def begin_anew
      @connections = Connections.new(endpoint)
      @opening = Turn.new
      @features = @version = @session = @stream = @reader = @keeper = nil
      @not_opened = nil # when no session was opened, and why
      @reached = false
    end

    def require_features(call)
      lacking = call.needs.find { |feature| features && !features.include?(feature) }
      raise Unsupported.new(lacking, @version) if lacking
    end

    def make(call, &taken)
      sleep(call.delay) if call.delay.positive?
      if call.joins
        call.session = open_session
      elsif call.needs.any? && !features
        describe
      end
      require_features(call)
      exchange(call, &taken)
    end

    # Raises if the client was closed, so that it must not send this call, nor send it once more.
    def check_open(call)
      return if !closed || call.after_close

      raise call.sent ? trouble.broken("had not answered when this client was closed") : trouble.closed
    end

    def exchange(call, &taken)
      data = call.encode(endpoint)
      began = Clock.now
      patience = Patience.new(timeout, call)
      loop do
        reused = nil
        return exchange_once(call, data, began, patience, ->(again) { reused = again }, &taken)
      rescue SystemCallError, IOError => e
        raise trouble.broken("broke the connection (#{e.message})") unless call.again?(reused, e)

        @connections.drop_idle # after a restart of the sidecar all are dead
        call.repeated = true
      end
    end

    # began: the answer must come `call.timeout` seconds after that, also on a connection that took long to open.
    def exchange_once(call, data, began, patience, note)
      connection = answer = result = nil
      connect(call, began, patience) do |taken, reused|
        connection = taken
        note.call(reused)
      end
      Interrupts.whole do
        call.sent = Clock.now
        connection.write(data, call.timeout ? began + call.timeout : call.sent + timeout)
        @connections.sent(connection)
      end
      until answer
        come = connection.wait(began, call.timeout, hurry(call))
        raise trouble.timed_out(call) unless come

        Interrupts.whole { result = yield answer if (answer = connection.read_answer) }
      end
      result
    ensure
      Interrupts.whole { put_back(connection, answer) } if connection
    end

    def put_back(connection, answer)
      answer && !answer.last? && !closed ? @connections.give(connection) : @connections.close(connection)
      @connections.drop_idle if closed # meanwhile
    end

    # Takes a connection, and opens a new one. The block gets it at once, in a part that nothing interrupts, and must see
    # that it is closed. Raises what the app gets. After its first byte a call raises what the system says.
    def connect(call, began, patience)
      loop do
        check_open(call)
        connection = reused = nil
        Interrupts.whole do
          connection, reused = @connections.take(patience)
          yield connection, reused if connection
        end
        next await_turn(call, patience) unless connection
        return check_open(call) if open?(connection, call, began, patience)

        sleep(Patience::PAUSE)
      end
    end

    def await_turn(call, patience)
      return if patience.await_turn(@connections, hurry(call))

      raise trouble.unreachable(Errno::ETIMEDOUT.new("others were being made"))
    end

    # Returns false if there is no room for one more now: then try again.
    def open?(connection, call, began, patience)
      connection.open(began, call.timeout, hurry(call))
      true
    rescue SystemCallError, IOError, SocketError, ArgumentError, Endpoint::Untrusted => e
      @connections.close(connection)
      raise trouble.unreachable(e) unless patience.again?(e, @connections.size)

      false
    end

    def hurry(call) = call.waits ? nil : WITHDRAW

    def begin_stream(call, connection)
      connection.write(call.encode(endpoint), Clock.now + timeout)
      @connections.sent(connection)
      Stream.new(@connections, connection, trouble)
    rescue SystemCallError, IOError => e
      raise trouble.broken("broke the connection (#{e.message})")
    end

    # Opens the session, if there is none. Threads of it that somebody has killed are started again; they lose nothing.
    def open_session
      session = live_session
      return session if session && @reader.alive? && @keeper.alive?

      began = Clock.now
      @opening.take do
        session = live_session
        session ? Interrupts.whole { start_threads(session, @stream) } : session = try_session(began)
        session
      end
    end

    # Begins a session. Raises what a try before has raised if this call has waited for that: so the calls that wait at a
    # time wait for one try, and not for one after the other.
    def try_session(waited_since)
      failed_at, error = @not_opened
      raise error.dup if failed_at && failed_at >= waited_since

      begin
        begin_session
      rescue Error => e
        @not_opened = [Clock.now, e]
        raise
      end
    end

    def begin_session
      describe # it may be another sidecar
      call = Call.new("POST", "/v1/sessions", @opens, timeout:, needs: ["sessions"])
      stream = session = nil
      stream(call) { |begun| stream = begun }
      stream.next(call) do |_, value|
        session = Session.new(value["session"], stream.method(:shut))
        @stream, @reached, @reader, @keeper = stream, true, nil, nil
        start_threads(session, stream)
        @session = session # now other threads use it
      end
      session
    ensure
      stream&.close unless session
    end

    def start_threads(session, stream)
      connections = @connections
      @reader = Interrupts.thread("locksidecar-session") { read(session, stream, connections) } unless @reader&.alive?
      @keeper = Interrupts.thread("locksidecar-keeper") { Keeper.new(self, session).run } unless @keeper&.alive?
    end

    # Reads the events of the session until the stream ends. If this thread is killed, at the end of the process for
    # example, nothing has become of the session.
    def read(session, stream, connections)
      loop { stream.next { |name, data| session.receive(name, data) } }
    rescue StandardError => e
      connections.shut if e.is_a?(Error) && e.code == "timeout" # the sidecar hangs, so waiting calls would not end
      session.end
      stream.close
    end

    def end_session(session)
      call = Call.new("DELETE", "/v1/sessions/#{Wire.quote(session.id)}", timeout:, repeatable: false)
      perform_closed(call) { nil }
    rescue Error
      nil # the end of its stream ends it too
    ensure
      session.end
    end
  end
  private_constant :Transport
end
