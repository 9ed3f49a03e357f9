# frozen_string_literal: true

require "io/wait"
require "socket"

module Locksidecar
  # One connection to the sidecar, which belongs to one thread at a time.
  # @api private
  class Connection
    # Seconds. So often a wait that cannot be interrupted looks whether somebody wants to end it.
    LOOK = 0.25

    def initialize(socket)
      @socket = socket
      @parser = nil
    end

    # Connects. Raises Errno::EAGAIN if the sidecar's backlog is full.
    def connect(path)
      @socket.connect_nonblock(Socket.sockaddr_un(path))
    end

    # Sends a request, at most for `timeout` seconds.
    def write(data, timeout)
      @parser = Wire::AnswerParser.new
      ends = Clock.now + timeout
      until data.empty?
        sent = @socket.write_nonblock(data, exception: false)
        if sent == :wait_writable
          left = ends - Clock.now
          raise Errno::ETIMEDOUT unless left.positive? && @socket.wait_writable(left)
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

    # What has come; nil: nothing yet. Raises EOFError.
    def read
      data = @socket.read_nonblock(65_536, exception: false)
      raise EOFError, "it was closed" if data.nil?

      data unless data == :wait_readable
    end

    # Waits until something comes. Returns false if it is too late: `timeout` seconds after `began`, or `hurry` seconds
    # after somebody wanted to interrupt this thread, which its mask does not allow now. nil: for ever, and never.
    def wait(began, timeout, hurry)
      ends = timeout ? began + timeout : Float::INFINITY
      loop do
        left = ends - Clock.now
        return false if left <= 0

        left = [left, LOOK].min if hurry
        return true if @socket.wait_readable(left == Float::INFINITY ? nil : left)
        next unless hurry && Thread.pending_interrupt?

        ends = [ends, Clock.now + hurry].min
        hurry = nil
      end
    end

    # Waits until something comes, at most `timeout` seconds.
    def await(timeout) = @socket.wait_readable(timeout)

    # Ends the connection. Its reader sees the end.
    def shut
      @socket.shutdown
    rescue SystemCallError, IOError
      nil # it has ended
    end

    # Closes the descriptor of this process.
    def close
      @socket.close
    rescue SystemCallError, IOError
      nil
    end
  end

  # The connections of one client in this process.
  # @api private
  class Connections
    # The most idle ones.
    MOST_IDLE = 16

    def initialize(path)
      @path = path
      @open = {}.compare_by_identity
      @idle = []
      @mutex = Mutex.new
    end

    # Takes an idle one, or makes one. Returns it, and whether a call was made on it before. Returns nil if there is none
    # now: then try again.
    def take(patience)
      connection = @mutex.synchronize { patience.take(@idle) }
      return [connection, true] if connection

      [connect, false]
    rescue SystemCallError => e
      raise unless patience.again?(e, @open.size)
    end

    # Gives one back after a complete answer.
    def give(connection)
      kept = @mutex.synchronize { @idle << connection if @idle.size < MOST_IDLE }
      close(connection) unless kept
    end

    def close(connection)
      @open.delete(connection)
      connection.close
    end

    def drop_idle
      @mutex.synchronize { @idle.slice!(0..) }.each { |connection| close(connection) }
    end

    # Ends all. Their readers see the end, and close them. It takes no mutex, because a finalizer may call it.
    def shut = @open.keys.each(&:shut)

    # Closes all descriptors of this process. The connections stay open if the parent has them too.
    def close_copies = @open.keys.each(&:close)

    def size = @open.size

    private

    def connect
      connection = Forks.without do
        made = Connection.new(Socket.new(:UNIX, :STREAM)) # close-on-exec, as all of Ruby
        @open[made] = true
        made
      end
      connection.connect(@path)
      connected = true
      connection
    ensure
      close(connection) if connection && !connected
    end
  end

  # How long to try to get a connection: if the sidecar's backlog is full, or there is no room for one more.
  #
  # Each call that waits for a lock has a connection, so such calls can take all descriptors of this process. The calls
  # that end waits must get through. So a call that waits leaves one idle connection, and fails if it can get no other.
  # The other calls try until they get an idle one.
  # @api private
  class Patience
    PAUSE = 0.01

    # fresh: only a new connection will do.
    def initialize(timeout, waits: false, fresh: false)
      @ends = Clock.now + timeout
      @waits, @fresh = waits, fresh
    end

    # Takes an idle connection, if there is one for this call.
    def take(idle) = (idle.pop unless @fresh || idle.size < (@waits ? 2 : 1))

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
