# frozen_string_literal: true

require "openssl"

module Locksidecar
  # TLS over a connected socket, without waits. It verifies that the sidecar's certificate is of a known CA and for this
  # host. Its end says nothing to the sidecar, because a forked child ends the parent's.
  # @api private
  class Encryption
    # @param file [String, nil] of CAs; nil: those of the system
    def self.context(file)
      context = OpenSSL::SSL::SSLContext.new
      context.min_version = OpenSSL::SSL::TLS1_2_VERSION
      context.verify_mode = OpenSSL::SSL::VERIFY_PEER
      context.cert_store = OpenSSL::X509::Store.new
      file ? context.cert_store.add_file(file) : context.cert_store.set_default_paths
      context
    end

    def initialize(socket, host, context)
      @tls = OpenSSL::SSL::SSLSocket.new(socket, context)
      @host = host
      @tls.hostname = host unless host.match?(/:|\A[\d.]+\z/) # of an address there is no such name
    end

    # Makes a step of the handshake. Returns what to wait for: :wait_readable, :wait_writable; nil: it is complete.
    def shake_hands
      step = @tls.connect_nonblock(exception: false)
      return step if step.is_a?(Symbol)

      check_name
    rescue OpenSSL::SSL::SSLError => e
      said = e.message[/certificate verify failed \((.*)\)/, 1] || e.message[/state=[^:]*: (.*)\z/m, 1] || e.message
      raise Endpoint::Untrusted.new(kind, said)
    end

    # As that of a socket. An error of TLS is an IOError.
    def read_nonblock(size, into, exception:)
      @tls.read_nonblock(size, into, exception:)
    rescue OpenSSL::SSL::SSLError => e
      raise IOError, e.message
    end

    # As that of a socket. It may return :wait_readable.
    def write_nonblock(data, exception:)
      @tls.write_nonblock(data, exception:)
    rescue OpenSSL::SSL::SSLError => e
      raise IOError, e.message
    end

    # Whether something was decrypted that nobody has read. The socket does not tell that.
    def pending? = @tls.pending.positive?

    private

    def check_name
      return if OpenSSL::SSL.verify_certificate_identity(@tls.peer_cert, @host)

      names = @tls.peer_cert.extensions.find { |one| one.oid == "subjectAltName" }&.value || @tls.peer_cert.subject
      raise Endpoint::Untrusted.new(:name, "#{names}, not #{@host}")
    end

    def kind
      case @tls.verify_result
      when OpenSSL::X509::V_OK then :protocol
      when OpenSSL::X509::V_ERR_CERT_NOT_YET_VALID, OpenSSL::X509::V_ERR_CERT_HAS_EXPIRED then :time
      else :authority
      end
    end
  end
  private_constant :Encryption
end
