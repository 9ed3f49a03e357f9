# frozen_string_literal: true

module Locksidecar
  # The root of all errors of this package, except the wrong use of Ruby itself (ArgumentError, TypeError, ThreadError).
  #
  # `code` is stable: decide by the class or the code, never by the text.
  class Error < StandardError
    # @return [String] the sidecar's code, such as `held`, or one of the client's: `unreachable`, `timeout`,
    #   `connection_lost`, `unsupported`, `skipped`, `bad_answer`
    attr_reader :code
    # @return [Integer, nil] the HTTP status, if the sidecar has answered
    attr_reader :status
    # @return [Hash] all that the sidecar has answered
    attr_reader :problem

    def initialize(message = nil, code: "", status: nil, problem: {})
      super(message)
      @code, @status, @problem = code, status, problem
    end

    # @return [Float, nil] seconds until another try is useful; nil if the sidecar does not say
    def retry_after = problem["retry_after"]
  end

  # Another caller holds the lock.
  class LockHeld < Error
    # @return [Holder, nil] nil if the lock has just become free
    def holder = Holder.from_json(problem["holder"])

    # @return [String, nil] with several locks: the first that was held
    def key = problem["key"]

    # @return [Integer, nil] the number of waiters; nil after a wait: see WaitTimeout#queue_position
    def queue_length = problem["queue_length"]

    # @return [Symbol, nil] of the holders: :exclusive or :shared
    def mode = problem["mode"]&.to_sym

    # @return [Integer, nil] of the shared holders, if they have one
    def limit = problem["limit"]

    # @return [Integer]
    def holders_count = problem.fetch("holders_count", 0)

    # @return [Boolean] the sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it
    def kept? = problem.fetch("kept", false)
  end

  # The call has waited for its time, and another caller still holds the lock.
  class WaitTimeout < LockHeld
    # @return [Integer, nil] the last position in the queue; 1 is the next
    def queue_position = problem["queue_position"]

    # @return [Float] seconds
    def waited = problem.fetch("waited_ms", 0) / 1000.0
  end

  # The lock was held under this token, and is lost.
  class LockLost < Error
    # @return [String] the sidecar's (`expired`, `forced`, `max_hold`, `store_lost`, `disconnected`, `shutdown`), or
    #   `forked` in a child process, for a lock of its parent
    def reason = problem.fetch("reason", "").to_s

    # @return [String, nil]
    def key = problem["key"]
  end

  # The token does not hold the key here and now.
  class NotHolder < Error
    # @return [String] `other_session`, `released` or `unknown_token`
    def reason = problem.fetch("reason", "").to_s
  end

  # The lock is not held.
  class NotHeld < Error; end

  # The holder did the work (`on_success: :skip`). It is no failure.
  class Skipped < Error
    # @return [String]
    attr_reader :key
    # @return [Object] of the holder's release
    attr_reader :result

    def initialize(key, result)
      super("the holder of lock #{key.inspect} released it with success; there is nothing left to do", code: "skipped")
      @key, @result = key, result
    end
  end

  # The holders and waiters of the lock name another limit. Nothing was granted.
  class LimitMismatch < Error
    # @return [Integer, nil] nil: they name none
    def limit = problem["limit"]
  end

  # The sidecar, or its store, cannot serve now: NoAnswer, Draining or StoreUnavailable.
  class Unavailable < Error; end

  # The sidecar could not be reached, went away during the call, or did not answer in time.
  #
  # The outcome of the call is unknown. An acquire that raises it has withdrawn its grant.
  class NoAnswer < Unavailable
    # @return [String, nil] the sidecar's socket, or its URL
    attr_reader :path

    def initialize(message = nil, path: nil, **more)
      super(message, **more)
      @path = path
    end
  end

  # The sidecar cannot reach its store. Nothing was granted, or the sidecar withdraws it.
  class StoreUnavailable < Unavailable; end

  # The sidecar shuts down. Releases still work, acquires do not.
  class Draining < Unavailable; end

  # Too many sessions, locks of a session, waiters, watches or connections.
  class LimitReached < Error; end

  # The session and its locks are over. The next call opens a new one, unless the client was closed.
  class SessionEnded < Error; end

  # The request is wrong. The text names the field and the reason.
  class InvalidRequest < Error; end

  # The body, the data or the result is too large (data and result: 4 KiB of JSON).
  class TooLarge < Error; end

  # The sidecar does not allow it: breaking locks, or this user; or it needs another token.
  class Forbidden < Error; end

  # There is no such call: the sidecar is older than it says, or the path is wrong.
  class NotFound < Error; end

  # The sidecar is too old for the call.
  class Unsupported < Error
    # @return [String] the name that its `GET /v1` lacks
    attr_reader :feature

    def initialize(feature, version)
      super("the sidecar (version #{version}) has no feature #{feature.inspect}, which this call needs: update the " \
            "sidecar, or do not use the option", code: "unsupported")
      @feature = feature
    end
  end

  # The answer is not from a locksidecar. Something else listens on the socket.
  class ProtocolError < Error
    def initialize(message = nil, **more) = super(message, code: "bad_answer", **more)
  end

  # @api private
  module Problem
    BY_CODE = {
      "invalid_request" => InvalidRequest, "forbidden" => Forbidden, "unauthorized" => Forbidden,
      "not_found" => NotFound, "not_held" => NotHeld,
      "limit_mismatch" => LimitMismatch, "not_holder" => NotHolder, "lock_lost" => LockLost,
      "session_ended" => SessionEnded, "too_large" => TooLarge, "held" => LockHeld, "wait_timeout" => WaitTimeout,
      "limit" => LimitReached, "store_unavailable" => StoreUnavailable, "draining" => Draining
    }.freeze

    # The API's names of durations, not inside a key.
    IN_MS = %r{(?<![\w:/."-])(wait|ttl|max_hold|min_hold)_ms\b}

    # @return [Error] that of a problem document; an unknown code is an Error
    def self.error(problem, status, retry_after = "")
      problem = {} unless problem.is_a?(Hash)
      problem = problem.merge("retry_after" => retry_after.to_f) if retry_after.match?(/\A\d+\z/)
      code = problem.fetch("code", "http_#{status}").to_s
      detail = problem["detail"] || problem["title"] || "the sidecar answered with status #{status}"
      text = "#{detail.gsub(IN_MS, '\1 (in ms)')} (#{code})"
      BY_CODE.fetch(code, Error).new(text, code:, status:, problem:)
    end

    # @return [LockLost]
    def self.lost(key, reason)
      error({ "code" => "lock_lost", "detail" => "lock #{key.inspect} is lost, reason: #{reason}",
              "reason" => reason, "key" => key }, 410)
    end

    # @return [InvalidRequest]
    def self.invalid(detail)
      InvalidRequest.new("#{detail} (invalid_request)", code: "invalid_request", status: 400,
                                                        problem: { "detail" => detail })
    end
  end
  private_constant :Problem
end
