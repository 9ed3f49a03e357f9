# frozen_string_literal: true

require "io/wait"
require "socket"

module Locksidecar
  # One connection to the sidecar, which belongs to one thread at a time.
  # @api private
  class Connection
    # Seconds. So often a wait that cannot be interrupted looks whether somebody wants to end it.
    LOOK = 0.25
    # The most seconds until a connection is open.
    DIAL = 5.0
    # The most bytes that are read at once.
    @piece = 65_536

    class << self
      attr_accessor :piece # tests shorten it
    end

    def initialize(endpoint)
      @endpoint = endpoint
      @io = nil # the socket
      @encryption = nil # TLS over it
      @through = nil # what is read and written: either
      @parser = nil
      @taken = String.new(encoding: Encoding::BINARY) # one for all reads: a new one of that size each time keeps the GC busy
    end

    # Opens a new connection, at most for `timeout` seconds after `began`; nil: for as long as one takes at most. Its waits
    # may be interrupted; `hurry`: see `wait`. Raises Errno::EAGAIN if the sidecar's backlog is full.
    def open(began, timeout, hurry)
      return if @through

      limit = timeout ? [timeout, Clock.now - began + DIAL].min : Clock.now - began + DIAL
      failed = nil
      addresses = @endpoint.addresses { |lookup| wait(began, limit, hurry, on: lookup) or raise(Errno::ETIMEDOUT) }
      addresses.each do |address|
        return dial(address) { |write| wait(began, limit, hurry, write:) or raise(Errno::ETIMEDOUT) }
      rescue SystemCallError, IOError, Endpoint::Untrusted => e
        close
        failed ||= e
      end
      raise failed
    end

    # Sends a request, at most until `ends` by our clock.
    def write(data, ends)
      @parser = Wire::AnswerParser.new
      until data.empty?
        sent = @through.write_nonblock(data, exception: false)
        if sent.is_a?(Symbol)
          left = ends - Clock.now
          raise Errno::ETIMEDOUT unless left.positive? && ready(left, write: sent == :wait_writable)
        else
          data = data.byteslice(sent..)
        end
      end
    end

    # Takes what has come. Returns the answer if it is complete.
    def read_answer
      data = read
      data && @parser.feed(data)
    end

    # What has come, until the next read; nil: nothing yet. Raises EOFError.
    def read
      data = @through.read_nonblock(Connection.piece, @taken, exception: false)
      raise EOFError, "it was closed" if data.nil?

      data unless data.is_a?(Symbol)
    end

    # Waits until something comes (or can be sent). Returns false if it is too late: `timeout` seconds after `began`, or
    # `hurry` seconds after somebody wanted to interrupt this thread, which its mask does not allow now. nil: for ever, and
    # never. on: the thread to wait for instead.
    def wait(began, timeout, hurry, write: false, on: nil)
      ends = timeout ? began + timeout : Float::INFINITY
      loop do
        left = ends - Clock.now
        return false if left <= 0

        left = [left, LOOK].min if hurry
        return true if ready(left == Float::INFINITY ? nil : left, write:, on:)
        next unless hurry && Thread.pending_interrupt?

        ends = [ends, Clock.now + hurry].min
        hurry = nil
      end
    end

    # Waits until something comes, at most `timeout` seconds.
    def await(timeout) = ready(timeout)

    # Ends the connection. Its reader sees the end. It says nothing through TLS, because the reader may use that.
    def shut
      @io&.shutdown
    rescue SystemCallError, IOError
      nil # it has ended
    end

    # Closes the descriptor of this process.
    def close
      @io&.close
    rescue SystemCallError, IOError
      nil
    end

    private

    # What TLS has decrypted is ready, although nothing comes any more.
    def ready(left, write: false, on: nil)
      return on.join(left) if on
      return @io.wait_writable(left) if write

      @encryption&.pending? || @io.wait_readable(left)
    end

    # Connects, and shakes hands. The block waits until something comes, or with `true` until something can be sent.
    def dial(address)
      Forks.without { Interrupts.whole { @io = Socket.new(address.afamily, :STREAM) } } # close-on-exec, as all of Ruby
      @endpoint.prepare(@io)
      if @io.connect_nonblock(address, exception: false) == :wait_writable
        yield true
        error = @io.getsockopt(:SOCKET, :ERROR).int
        raise SystemCallError.new(nil, error) unless error.zero?
      end
      encryption = @endpoint.encrypt(@io)
      while (step = encryption&.shake_hands)
        yield step == :wait_writable
      end
      @encryption, @through = encryption, encryption || @io
    end
  end

  # The connections of one client in this process.
  # @api private
  class Connections
    # The most idle ones.
    MOST_IDLE = 16
    # The most that have sent no request yet, over TCP. Above 64 that have shown no token, the sidecar ends the oldest.
    MOST_UNSENT = 16

    def initialize(endpoint)
      @endpoint = endpoint
      @open = {}.compare_by_identity
      @idle = []
      @unsent = {}.compare_by_identity
      @guard = Guard.new
      @turns = ConditionVariable.new # for calls that wait until one may be made, or is idle
    end

    # Takes an idle one, or makes one, which is to be opened. Returns it, and whether a call was made on it before; nil: none
    # may be made now.
    def take(patience)
      @guard.synchronize do
        connection = patience.take(@idle)
        return [connection, true] if connection
        return if full?

        connection = Connection.new(@endpoint)
        @unsent[connection] = true unless @endpoint.path
        @open[connection] = true
        [connection, false]
      end
    end

    # Waits until there is one for this call, at most for these seconds. It may return early.
    def await_turn(patience, seconds)
      @guard.synchronize { @guard.rest(Clock.now + seconds, @turns) if full? && !patience.takes?(@idle) }
    end

    # Notes that its first request was sent.
    def sent(connection)
      @guard.synchronize { @turns.signal if @unsent.delete(connection) }
    end

    # Gives one back after a complete answer.
    def give(connection)
      kept = @guard.synchronize do
        @turns.signal
        @idle << connection if @idle.size < MOST_IDLE
      end
      close(connection) unless kept
    end

    def close(connection)
      @open.delete(connection)
      connection.close
      sent(connection)
    end

    def drop_idle
      @guard.synchronize { @idle.slice!(0..) }.each { |connection| close(connection) }
    end

    # Ends all. Their readers see the end, and close them. It takes no mutex, because a finalizer may call it.
    def shut = @open.keys.each(&:shut)

    # Closes all descriptors of this process. The connections stay open if the parent has them too.
    def close_copies = @open.keys.each(&:close)

    def size = @open.size

    private

    def full? = @unsent.size >= MOST_UNSENT
  end

  # How long to try to get a connection: if the sidecar's backlog is full, or there is no room for one more.
  #
  # Each call that waits for a lock has a connection, so such calls can take all descriptors of this process. The calls
  # that end waits must get through. So a call that waits leaves one idle connection, and fails if it can get no other.
  # The other calls try until they get an idle one, or their time is over: a lock may be lost then.
  # @api private
  class Patience
    PAUSE = 0.01
    # So often a call that waits for its turn looks again: an interruption may lose its wake-up.
    LOOK = 0.25

    # fresh: only a new connection will do.
    def initialize(timeout, call, fresh: false)
      @ends = Clock.now + [timeout, call.timeout].compact.min
      @waits, @fresh = call.waits, fresh
    end

    # Takes an idle connection, if there is one for this call.
    def take(idle) = (idle.pop if takes?(idle))

    def takes?(idle) = !@fresh && idle.size >= (@waits ? 2 : 1)

    # Waits until a connection may be made. Returns false if it is too late: at the end of its time, or `hurry` seconds after
    # somebody wanted to interrupt this thread.
    def await_turn(connections, hurry)
      @ends = [@ends, Clock.now + hurry].min if hurry && Thread.pending_interrupt?
      left = @ends - Clock.now
      connections.await_turn(self, [left, LOOK].min) if left.positive?
      left.positive?
    end

    # Whether to try again after no new one could be made. `open`: how many this client has.
    def again?(error, open)
      return false if Clock.now >= @ends

      case error
      when IO::WaitWritable, Errno::EAGAIN then true
      when Errno::EMFILE, Errno::ENFILE then !@waits && !@fresh && open.positive?
      else false
      end
    end
  end
  private_constant :Connection, :Connections, :Patience
end
