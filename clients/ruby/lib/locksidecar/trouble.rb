# frozen_string_literal: true

module Locksidecar
  # The errors of a client that does not reach its sidecar.
  # @api private
  class Trouble
    def initialize(endpoint)
      @endpoint = endpoint
    end

    # No connection can be made.
    def unreachable(cause)
      no_answer("cannot reach the sidecar at #{@endpoint.name}: #{remedy(cause)}", "unreachable")
    end

    # The answer did not come.
    def broken(what, code = "connection_lost")
      no_answer("the sidecar at #{@endpoint.name} #{what}. Check that it still runs, and its log", code)
    end

    # The answer did not come in time.
    def timed_out(call)
      broken("did not answer #{call.method} #{call.target} within #{format("%g", call.timeout)} s", "timeout")
    end

    # The client was closed.
    def closed
      SessionEnded.new("this client was closed; make another (session_ended)", code: "session_ended", status: 410)
    end

    private

    def no_answer(text, code) = NoAnswer.new(text, path: @endpoint.name, code:)

    def remedy(cause)
      return @endpoint.what_failed(cause) unless @endpoint.path || cause.is_a?(Errno::EMFILE)

      case cause
      when Errno::ENOENT
        "there is no such socket. Check that the sidecar runs (`locksidecar serve`), that LOCKSIDECAR_SOCKET is the " \
        "same for it and for this process, and that the socket's folder is mounted into this container"
      when Errno::ECONNREFUSED
        if File.exist?(@endpoint.path) && !File.socket?(@endpoint.path)
          "there is a file, but it is no socket. Check LOCKSIDECAR_SOCKET"
        else
          "the socket is there, but nobody listens. Check that the sidecar still runs, and its log"
        end
      when Errno::EACCES, Errno::EPERM
        "this process (uid #{Process.uid}) may not use it. Check the sidecar's LOCKSIDECAR_SOCKET_MODE, and the owner " \
        "and group of the socket and its folder"
      when Errno::EMFILE
        "this process has no free file descriptor: its limit is #{Process.getrlimit(:NOFILE)[0]} (RLIMIT_NOFILE, " \
        "`ulimit -n`), and each call that waits takes one. Raise the limit, or let fewer calls wait at a time"
      when ArgumentError then "#{cause.message} (a socket's path has at most 107 bytes)"
      else "#{cause.message}. Check that it is the socket of a locksidecar, and that this runs"
      end
    end
  end
  private_constant :Trouble
end
