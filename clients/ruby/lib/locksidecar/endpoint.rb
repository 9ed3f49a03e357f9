# frozen_string_literal: true

require "socket"

module Locksidecar
  # Where the sidecar listens.
  # @api private
  class Endpoint
    # Seconds. A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection
    # when nothing has come for so long.
    PROBE = 3
    SILENCE = 15
    OPTIONS = {
      "TCP_NODELAY" => 1, "TCP_KEEPIDLE" => PROBE, "TCP_KEEPALIVE" => PROBE, # its name on macOS
      "TCP_KEEPINTVL" => PROBE, "TCP_KEEPCNT" => SILENCE / PROBE, "TCP_USER_TIMEOUT" => SILENCE * 1000
    }.freeze

    ALLOWED = "allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT"
    UNIX = %r{\Aunix://(/[^?#]+)\z}i
    TCP = %r{\A(https?)://(\[[\h:.]+\]|[^:/?#\[\]]+):(\d{1,5})/?\z}i

    # A value, and where it was set, for messages.
    Setting = Struct.new(:name, :value)

    class << self
      # Reads the settings. What is set in code wins over the environment, and a URL over a socket.
      # usual: the socket of a sidecar that was not told another one.
      def from_settings(socket, url:, token_file:, ca_file:, usual:)
        socket = path(:socket, socket)
        url = setting("url", url)
        raise Problem.invalid("socket and url are both given; one names the sidecar") if socket && url

        url ||= setting("LOCKSIDECAR_URL") unless socket
        new(socket || setting("LOCKSIDECAR_SOCKET")&.value || usual.call, url,
            setting("token_file", path(:token_file, token_file)) || setting("LOCKSIDECAR_TOKEN_FILE"),
            setting("ca_file", path(:ca_file, ca_file)) || setting("LOCKSIDECAR_CA_FILE"))
      end

      private

      def setting(name, value = ENV.fetch(name, nil)) = (Setting.new(name, value) unless value.nil? || value == "")

      def path(name, given)
        path = given.respond_to?(:to_path) ? given.to_path : given
        raise TypeError, "#{name}: #{given.inspect} must be a path, not #{given.class}" unless path.nil? || path.is_a?(String)

        path unless path == ""
      end
    end

    # The path of a socket, or a URL.
    attr_reader :name
    # The path of a socket; nil: over TCP.
    attr_reader :path

    def initialize(path, url, token, certificates)
      @name = @path = path
      @url, @certificates = url, certificates
      @encrypted = false
      @authority = "localhost"
      parse(url) if url
      @token = Token.new(token) if token && !@path
      require_relative "encryption" if @encrypted
    rescue LoadError => e
      raise Problem.invalid("#{url.name} is #{url.value}, and https needs the library openssl, which this Ruby lacks " \
                            "(#{e.message}); install it, or use a socket")
    end

    # The lines that each request to this sidecar has.
    def headers = "Host: #{@authority}\r\n#{"Authorization: Bearer #{@token.read}\r\n" if @token}"

    # Where to connect to. The system has no limit for the lookup of a name that a call could set, so a thread looks it up.
    # The block waits for that thread. Calls at the same time share it.
    def addresses
      return [Addrinfo.unix(@path)] if @path

      begin
        return look_up(Socket::AI_NUMERICHOST)
      rescue SocketError
        nil # it is a name
      end
      lookup = @lookup
      lookup = @lookup = start_lookup unless lookup&.alive?
      yield lookup
      found = lookup.value
      found.is_a?(Array) ? found : raise(found.class, found.message)
    end

    # Sets what an unconnected socket needs.
    def prepare(socket)
      return if @path

      socket.setsockopt(:SOCKET, :KEEPALIVE, true)
      OPTIONS.each do |name, value|
        socket.setsockopt(Socket::IPPROTO_TCP, Socket.const_get(name), value) if Socket.const_defined?(name)
      end
    end

    # TLS for a connected socket; nil: there is none.
    def encrypt(socket) = (Encryption.new(socket, @host, context) if @encrypted)

    # Why there is no connection over TCP, and what to look at.
    def what_failed(cause)
      case cause
      when Untrusted then untrusted(cause)
      when SocketError then "its host is not known (#{cause.message}). Check #{@url.name}"
      when Errno::ECONNREFUSED
        "nobody listens. Check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and #{@url.name}"
      else "#{cause.message}. Check #{@url.name}, and the network"
      end
    end

    private

    def look_up(flags = 0) = Addrinfo.getaddrinfo(@host, @port, nil, :STREAM, nil, flags)

    # The thread's value are the addresses, or the error.
    def start_lookup
      Interrupts.thread("locksidecar-lookup") do
        look_up
      rescue SystemCallError, SocketError => e
        e
      end
    rescue ThreadError => e
      raise Errno::EAGAIN, e.message
    end

    # A URL with a password, which has no use here, is not shown.
    def parse(url)
      text = Check.text(url.name, url.value)
      shown = text.include?("@") ? "no URL of a sidecar" : text.inspect
      wrong = Problem.invalid("#{url.name} is #{shown}; #{ALLOWED}")
      raise wrong if text.match?(/[@ [:cntrl:]]/)

      if (match = UNIX.match(text))
        @name = @path = match[1]
      elsif (match = TCP.match(text)) && match[3].to_i.between?(1, 65_535)
        @path = nil
        @encrypted = match[1].casecmp?("https")
        @host, @port = match[2].delete("[]"), match[3].to_i
        @authority = "#{match[2]}:#{@port}"
        @name = "#{match[1].downcase}://#{@authority}"
      else
        raise wrong
      end
    end

    # A file of a CA is read for each connection, because it may be replaced.
    def context
      return @context ||= Encryption.context(nil) unless @certificates

      Encryption.context(@certificates.value)
    rescue SystemCallError, OpenSSL::OpenSSLError => e
      raise Problem.invalid("#{@certificates&.name || "the system"} has no CA: #{@certificates&.value.inspect} cannot " \
                            "be read as certificates in PEM (#{e.message})")
    end

    def untrusted(cause)
      case cause.kind
      when :name then "its certificate is for another name (#{cause.message}). #{@url.name} has to use a name of it"
      when :time then "its certificate is not valid now: #{cause.message}"
      when :authority
        remedy = if @certificates
                   "#{@certificates.name} is #{@certificates.value.inspect}: it has to be the file of that CA"
                 else
                   "LOCKSIDECAR_CA_FILE names the file of the CA"
                 end
        "its certificate is of a CA that this process does not trust (#{cause.message}). #{remedy}"
      else
        "it does not speak TLS as this process does (#{cause.message}). Is it http://, or another port? Check #{@url.name}"
      end
    end

    # TLS has failed. `kind`: :name, :time or :authority of the certificate, or :protocol.
    class Untrusted < StandardError
      attr_reader :kind

      def initialize(kind, message)
        super(message)
        @kind = kind
      end
    end

    # A file whose first line is the token. It may be replaced while it is used.
    class Token
      # The least seconds between two reads.
      PAUSE = 1.0
      MOST = 512 # characters

      def initialize(setting)
        @setting = setting
        @token = nil
        @looked = -PAUSE
      end

      # The token. Threads may call this at a time: each reads the whole file. An error contains nothing of it.
      def read
        now = Clock.now
        return @token if @token && now - @looked < PAUSE

        @looked = now
        @token = first_line
      rescue SystemCallError, Error => e
        return @token if @token # a file that is away for a moment changes nothing
        raise e if e.is_a?(Error)

        raise Problem.invalid("#{@setting.name} is #{@setting.value.inspect}, and cannot be read: #{e.class.new.message}")
      end

      # Without the token.
      def inspect = "#<#{self.class} #{@setting.value}>"

      private

      def first_line
        line = File.open(@setting.value, "rb") { |file| file.gets("\n", MOST + 2) }.to_s.strip
        return line if line.match?(/\A[!-~]{1,#{MOST}}\z/o)

        raise Problem.invalid("#{@setting.name} is #{@setting.value.inspect}, and the first line of this file is no token: " \
                              "it has up to #{MOST} printable characters and no space")
      end
    end
  end
  private_constant :Endpoint
end
