# frozen_string_literal: true

require "json"
require "openssl"
require "socket"
require "tmpdir"

# What a sidecar over TCP needs: certificates and tokens, in files that end with the process.
module Tcp
  TOKEN = "0123456789abcdef0123456789abcdef"
  OTHER = "fedcba9876543210fedcba9876543210"
  HOUR = 3600

  def self.folder
    @folder ||= Dir.mktmpdir("tcp-").tap do |made|
      pid = Process.pid
      Minitest.after_run { FileUtils.remove_entry(made) if Process.pid == pid }
    end
  end

  # The path of a new file, for its owner.
  def self.write(text)
    @count = @count.to_i + 1
    File.join(folder, @count.to_s).tap { |path| File.write(path, text, perm: 0o600) }
  end

  # Those of a sidecar without TLS.
  def self.plain = { TCP_ADDR: "127.0.0.1:0", TCP_TOKEN_FILE: write(TOKEN) }

  # Its log says it, soon after its first answer.
  def self.port(sidecar)
    Locksidecar::Testing.until("the log has the port") do
      line = sidecar.log[/^\{.*"msg":"serving".*\}$/] and JSON.parse(line)["tcp"][/\d+\z/].to_i
    end
    sidecar.log[/^\{.*"msg":"serving".*\}$/].then { |line| JSON.parse(line)["tcp"][/\d+\z/].to_i }
  end

  # A CA.
  class Authority
    attr_reader :file

    def initialize
      @key = OpenSSL::PKey::EC.generate("prime256v1")
      @cert = sign("CA", @key, [["basicConstraints", "CA:TRUE", true], ["keyUsage", "keyCertSign", true]], HOUR)
      @file = Tcp.write(@cert.to_pem)
    end

    # Those of a sidecar with a certificate, and a token.
    def settings(names: "DNS:localhost", ends: HOUR)
      key = OpenSSL::PKey::EC.generate("prime256v1")
      cert = sign("x", key, [["subjectAltName", names]], ends)
      { TCP_TLS_CERT_FILE: Tcp.write(cert.to_pem), TCP_TLS_KEY_FILE: Tcp.write(key.private_to_pem), **Tcp.plain }
    end

    # For a server in this process.
    def context(**of)
      cert, key = settings(**of).values_at(:TCP_TLS_CERT_FILE, :TCP_TLS_KEY_FILE).map { |file| File.read(file) }
      OpenSSL::SSL::SSLContext.new.tap do |made|
        made.add_certificate(OpenSSL::X509::Certificate.new(cert), OpenSSL::PKey.read(key))
      end
    end

    private

    def sign(name, key, extensions, ends)
      cert = OpenSSL::X509::Certificate.new
      cert.version, cert.serial = 2, rand(1 << 60)
      cert.subject = OpenSSL::X509::Name.new([["CN", name]])
      cert.issuer = @cert ? @cert.subject : cert.subject
      cert.not_before, cert.not_after = Time.now - (2 * HOUR), Time.now + ends
      cert.public_key = key
      factory = OpenSSL::X509::ExtensionFactory.new(@cert || cert, cert)
      extensions.each { |one| cert.add_extension(factory.create_extension(*one)) }
      cert.sign(@key, "SHA256")
    end
  end

  # A relay in between, which carries nothing while it is `mute`. Nothing is closed then, as if a cable was pulled.
  # It keeps what comes while it is `held`.
  class Wire
    attr_accessor :mute, :held
    attr_reader :port

    def initialize(upstream)
      @mute = @held = false
      @sockets = []
      @listener = TCPServer.new("127.0.0.1", 0)
      @port = @listener.addr[1]
      Thread.new { accept(upstream) }
    end

    def connections = @sockets.size / 2

    def close
      [@listener, *@sockets].each do |socket|
        socket.close
      rescue IOError
        nil
      end
    end

    private

    def accept(upstream)
      loop do
        pair = [@listener.accept, TCPSocket.new("127.0.0.1", upstream)]
        @sockets.concat(pair)
        [pair, pair.reverse].each { |from, to| Thread.new { pass(from, to) } }
      end
    rescue IOError, SystemCallError
      nil # it was closed
    end

    def pass(from, to)
      loop do
        data = from.readpartial(65_536)
        sleep(0.01) while held
        to.write(data) unless mute
      end
    rescue IOError, SystemCallError
      to.close_write unless mute || to.closed?
    end
  end
end
