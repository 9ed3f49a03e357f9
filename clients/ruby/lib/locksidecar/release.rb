# frozen_string_literal: true

module Locksidecar
  # The release of a lock, or of one entry of it: the newest, or that of `entry`. `run` is for Interrupts.runner.finish.
  # @api private
  class Release
    # entry: nil if the client does not know it.
    # context: of its span, if another thread than the app's runs it.
    def initialize(transport, key, token, entry: nil, outcome: nil, result: Call::UNSET, reentry: nil, timeout: nil,
                   context: Tracing.context)
      @transport, @key, @token, @entry = transport, key, Check.whole(:token, token), entry
      @grant = entry&.grant
      @outcome = outcome && Check.word(:outcome, outcome)
      @body = { result: Check.json(:result, result) } unless result.equal?(Call::UNSET)
      @reentry = reentry && Check.whole(:reentry, reentry)
      @context = context
      @call = call(timeout || transport.timeout)
    end

    # Raises LockLost, NotHolder, Unavailable. Returns the answer.
    def run
      traced = Tracing.release(@key, @token, @context)
      @call.headers = traced.headers
      traced.ended_by { release }
    end

    # Sends it for a lock that is lost already, in case the sidecar has it.
    def try = @transport.perform_closed(@call) { nil }

    # Whether the outcome of a call that raised this is unknown.
    def self.unknown?(error) = error.is_a?(NoAnswer) || error.is_a?(StoreUnavailable)

    # Raises if the lock of a session is lost. For a lock with bind: :ttl the store decides, not the clock here.
    def self.check_lost(grant)
      raise Problem.lost(grant.key, grant.lost.reason.to_s) if grant&.session && grant.lost.happened?
    end

    # Notes the loss of a lock if an error says it. Returns the error for the app.
    def self.lost_by(grant, error)
      case error
      when LockLost, NotHolder
        return error if grant.nil? || error.problem.key?("reentry")

        grant.session&.forget(grant)
        grant.lose(error.reason)
      when SessionEnded
        return error unless grant&.session

        grant.session.end
        return Problem.lost(grant.key, "disconnected")
      end
      error
    end

    private

    def call(timeout)
      query = { token: @token, outcome: @outcome, reentry: @reentry, request_id: (@entry.request_id if @entry&.reentrant) }
      needs = { "outcome" => @outcome, "reentrant" => @reentry, "release_by_id" => query[:request_id] }.compact.keys
      Call.new("DELETE", Wire.lock_path(@key, Wire.query(**query)), @body, timeout:, needs:,
               session: @grant ? @grant.session : @transport.live_session)
    end

    def release
      Release.check_lost(@grant)
      begun if @entry
      @transport.perform(@call) { |answer| note(answer) }
    rescue Error => e
      @entry.unanswered = Release.unknown?(e) if @entry
      raise Release.lost_by(@grant, e)
    end

    def begun
      @call.repeated ||= @entry.unanswered
      @entry.unanswered = true
    end

    def note(answer)
      value = released(answer)
      @entry ? @entry.give_back(value) : @call.session&.released(@key, @token, value)
      value
    end

    # A call that was repeated finds what the first one, whose answer was lost, has done.
    def released(answer)
      answer.result
    rescue NotHolder => e
      done = e.reason == "released" || forgotten?(e)
      raise unless @call.repeated && !e.problem.key?("reentry") && done

      { "released" => true, "reentry" => 0 }
    end

    # Whether the store has forgotten the release of a lock with bind: :ttl. It remembers that of a key's last grant.
    def forgotten?(error) = @grant && @grant.session.nil? && error.reason == "unknown_token" && !@grant.lost.happened?
  end
  private_constant :Release
end
