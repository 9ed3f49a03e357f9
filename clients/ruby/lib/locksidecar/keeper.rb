# frozen_string_literal: true

module Locksidecar
  # Asks about each lock of a session when half of its time is over.
  #
  # A sidecar that hangs says nothing of its locks, and others get them when their time is over. So a lock is lost if the
  # sidecar has not answered by then.
  # @api private
  class Keeper
    # How many seconds to wait for the answer to a release of a lost lock, if another lock must be asked about.
    PARTING = 0.1

    def initialize(transport, session)
      @transport, @session = transport, session
      @owed = [] # entries of lost locks that are not given back yet
      @patience = Transport::WITHDRAW
    end

    # Runs in a thread of its own until the session ends. A question comes before what is given back.
    def run
      until @session.ended
        grant = @session.to_ask(wait: @owed.empty?)
        grant ? ask(grant) : give_back
      end
    end

    private

    def ask(grant)
      call = Call.new("PATCH", Wire.lock_path(grant.key), { token: grant.token }, timeout: @session.patience(grant),
                                                                                  session: @session, headers: "")
      answer(grant, call)
      @session.answered
    rescue SessionEnded
      @session.end
    rescue Error
      give_up(@session.unanswered(grant))
    end

    def answer(grant, call)
      @transport.perform(call) { |answer| grant.note(answer.result, call.sent) }
    rescue LockLost, NotHolder => e
      e.reason == "released" ? @session.forget(grant) : @session.lost(grant, e.reason)
    end

    # These locks are lost by our clock.
    def give_up(grants)
      @owed.concat(grants.flat_map(&:entries))
      Interrupts.whole { grants.each { |grant| @session.lost(grant, "expired") } }
    end

    # The sidecar may have gone on in the moment of the loss, and have the lock.
    def give_back
      entry = @owed.shift or return

      timeout = [[@patience, @session.spare].min, PARTING].max
      Release.new(@transport, entry.grant.key, entry.grant.token, entry:, timeout:).try
      @patience = Transport::WITHDRAW
    rescue Error
      @patience = PARTING # if it was sent, the sidecar carries it out when it goes on
    end
  end
  private_constant :Keeper
end
