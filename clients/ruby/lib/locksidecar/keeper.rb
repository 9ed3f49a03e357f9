# frozen_string_literal: true

module Locksidecar
  # Asks about each lock of a session when half of its time is over.
  #
  # A sidecar that hangs says nothing of its locks, and others get them when their time is over. So a lock is lost if the
  # sidecar has not answered by then.
  # @api private
  class Keeper
    def initialize(transport, session)
      @transport, @session = transport, session
    end

    # Runs in a thread of its own until the session ends.
    def run
      while (grant = @session.to_ask)
        ask(grant)
      end
    end

    private

    def ask(grant)
      call = Call.new("PATCH", Wire.lock_path(grant.key), { token: grant.token }, timeout: @session.patience(grant),
                                                                                  session: @session, headers: "")
      @transport.perform(call) { |answer| grant.note(answer.result, call.sent) }
    rescue LockLost, NotHolder => e
      e.reason == "released" ? @session.forget(grant) : @session.lost(grant, e.reason)
    rescue SessionEnded
      @session.end
    rescue Error
      give_up(@session.unanswered(grant))
    end

    # These locks are lost by our clock. The sidecar may have gone on in this moment, and have them.
    def give_up(grants)
      entries = grants.flat_map { |grant| grant.entries.dup }
      Interrupts.whole { grants.each { |grant| @session.lost(grant, "expired") } }
      entries.each do |entry|
        Release.new(@transport, entry.grant.key, entry.grant.token, entry:, timeout: Transport::WITHDRAW).try
      rescue Error
        break
      end
    end
  end
  private_constant :Keeper
end
