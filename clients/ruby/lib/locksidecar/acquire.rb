# frozen_string_literal: true

require "securerandom"

module Locksidecar
  # An acquire of one lock, or of several: its calls, also through an outage, and the release of a grant that its caller
  # does not take.
  #
  # All its calls have one request id. So a call may be repeated, and its grant released although the answer was lost.
  # @api private
  class Acquire
    attr_reader :keys, :options, :runner
    # What it has got: pairs of an entry and the answer.
    attr_reader :granted

    # @return [String] a name of this thread, or of this fiber under a scheduler, that no other has or had
    def self.who
      return "fiber-#{Fiber.current.object_id}" if Fiber.current_scheduler

      "thread-#{Thread.current.object_id}"
    end

    def initialize(transport, keys, options, several: false)
      @transport, @keys, @options, @several = transport, keys, options, several
      @who, @runner, @context = Acquire.who, Interrupts.runner, Tracing.context
      @traced = Tracing.acquire(keys, options.shared ? "shared" : "exclusive", @context)
      options.owner ||= @who if options.reentrant
      @named = !options.request_id.nil?
      @request_id = options.request_id || SecureRandom.uuid
      # The last two calls that may have got a grant.
      @call = @before = nil
      @granted = []
    end

    # Acquires. Whatever ends it, `withdraw` or `leave` comes after it, unless its caller gets the locks.
    def run = @runner.run { @traced.ended_by { attempt.map(&:last) } }

    # Releases the grant that this has, or may have. If the app has named the request, other parts of the app may hold the
    # grant. Then it stays, and the id finds it.
    def withdraw = @runner.finish { release_by_id }

    # Releases what this has got, or may have got, for the end of a block: in `runner.finish`. Returns the errors.
    def leave(outcome = nil)
      return [release_by_id].compact if @granted.empty?

      @granted.reverse.filter_map do |entry, _|
        next if entry.released

        Release.new(@transport, entry.grant.key, entry.grant.token, entry:, outcome:, context: @context).run
        nil
      rescue Error => e
        e
      end
    end

    private

    def attempt
      endurance = Endurance.new(@options.wait, @transport)
      begin
        call = following(endurance)
        settle
        Interrupts.whole do
          @before = @call if @call&.sent
          @call = call
        end
        @transport.perform(call) { |answer| take(call, answer.result) }
      rescue SessionEnded => e
        @call = @before = nil if call.joins # its end frees them; without one, the client was closed
        call.session_ended
        endurance.bridge(e, call)
        retry
      rescue NoAnswer, Draining => e
        @call = nil if e.is_a?(Draining)
        endurance.bridge(e, call)
        retry
      rescue Error => e
        @call = nil if e.status # an answer that cannot be read may be that of a grant
        raise
      end
    end

    def following(endurance)
      left = endurance.left
      body = { request_id: @request_id, **@options.fields }
      body[:keys] = keys if @several
      body[:wait_ms] = left ? Check.to_ms(left) : -1 if @options.waits?
      method, target = @several ? ["POST", "/v1/locks"] : ["PUT", Wire.lock_path(keys.first)]
      Call.new(method, target, body,
               timeout: left && (left + @transport.timeout), joins: @options.bind == "session",
               needs: [*("several_keys" if @several), "release_by_id", *@options.needs],
               waits: @options.waits?, delay: endurance.pause, headers: @traced.headers)
    end

    # In one part with the answer.
    def take(call, value)
      if !@several && !value["granted"]
        @call = @before = nil
        raise Skipped.new(keys.first, value["result"])
      end

      @granted = (@several ? value["locks"] : [value]).map { |one| [hold(call, one), one] }
    end

    def hold(call, value)
      mine = { who: @who, owner: @options.owner, request_id: @request_id, reentrant: @options.reentrant }
      return call.session.hold(value, call.sent, **mine) if call.session

      grant = Grant.new(value["key"], value["token"], nil)
      grant.note(value, call.sent)
      Entry.new(grant, **mine)
    end

    # What comes before an acquire of keys that this thread (fiber) has acquired before. A lock whose release had no answer
    # is released again. It raises if this would wait for a lock of this thread, and so for ever.
    def settle
      session = @transport.live_session or return
      keys.each do |key|
        session.entries(key, @who).each do |entry|
          next release_again(entry) if entry.unanswered
          next if may_wait_for?(entry)

          raise ThreadError, "this #{@who[/\w+/]} holds #{key.inspect} already, and would wait for itself for ever: " \
                             "give `reentrant: true` to both acquires, or this one a `wait`"
        end
      end
    end

    def release_again(entry)
      Release.new(@transport, entry.grant.key, entry.grant.token, entry:, context: @context).run
    rescue Error => e
      raise if e.is_a?(NoAnswer)
      # It is lost, or the sidecar goes on with this release.
    end

    # Whether this acquire ends although its thread (fiber) has this entry.
    def may_wait_for?(entry)
      enters = options.reentrant && entry.grant.mode == :exclusive && options.owner == entry.owner
      shares = options.shared && entry.grant.mode == :shared # another thread may release a permit of a semaphore
      options.wait || @named || enters || shares
    end

    def release_by_id
      call = [@call, @before].compact.find(&:sent)
      return if call.nil? || @named

      keys.each do |key|
        break unless release_key(key, call)
      end
      @call = @before = nil
    end

    # Returns whether to go on with the other keys.
    def release_key(key, call)
      known = call.session ? call.session.entries(key, @who) : []
      mine = known.select { |entry| entry.request_id == @request_id }
      mine.each { |entry| entry.unanswered = true }
      release = Call.new("DELETE", Wire.lock_path(key, Wire.query(request_id: @request_id)),
                         timeout: [@transport.timeout, Transport::WITHDRAW].min, session: call.session,
                         headers: @traced.headers)
      @transport.perform_closed(release) do |answer|
        value = answer.result
        mine.each { |entry| entry.give_back(value) }
      end
      true
    rescue SessionEnded
      false # the end of the session, or the TTL, frees them; another exception is under way
    rescue Error => e
      # Another answer: the sidecar goes on with this release, and the other locks must not stay held.
      !e.is_a?(NoAnswer)
    end
  end

  # How long an acquire goes on, also through an outage of the sidecar.
  # @api private
  class Endurance
    # Seconds in the queue after which an outage is another one.
    LONG = 5.0

    attr_reader :pause

    def initialize(wait, transport)
      @transport, @first = transport, wait
      @waits = wait.nil? || wait.positive?
      @ends = Clock.now + wait if wait&.positive?
      @began = nil # the outage
      @last = 0.0 # the last failure
      @pause = 0.0
      @reopened = false
    end

    # Seconds; nil: for ever.
    def left
      return @first if @began.nil? || @ends.nil?

      [@ends - Clock.now, 0.001].max
    end

    # Returns if the call is to be made again after `pause`. Raises the error if not.
    def bridge(error, call)
      raise @transport.trouble.closed if @transport.closed
      return @reopened = true if error.is_a?(SessionEnded) && !@reopened # no outage: the next call opens a new session
      raise error unless @waits && @transport.reached

      now = Clock.now
      if @began.nil? || (call&.sent && now - @last > LONG) # it has waited in the queue since
        @began = now
        @pause = 0.0
      end
      @last = now
      raise error if now - @began >= @transport.reconnect || (@ends && now >= @ends)

      @pause = (@pause * 2).clamp(0.05, 1.0)
      @pause = [@pause, @ends - now].min if @ends
    end
  end
  private_constant :Acquire, :Endurance
end
