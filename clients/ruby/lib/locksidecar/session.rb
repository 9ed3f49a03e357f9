# frozen_string_literal: true

module Locksidecar
  # One grant of the sidecar. Entries of the same owner share it.
  # @api private
  class Grant
    # The least pause in seconds between two questions about a lock.
    PAUSE = 0.05

    attr_reader :key, :token, :session, :mode, :count, :entries, :expires_at, :life, :lost, :stopping
    attr_accessor :ask_at

    # session: nil with bind: :ttl.
    def initialize(key, token, session)
      @key, @token, @session = key, token, session
      @mode = :exclusive
      @count = 1 # of its entries, by the sidecar
      @entries = [] # those of this client that were not released
      @life = 0.0 # seconds from the last answer to @expires_at
      @ask_at = @expires_at = 0.0 # by our clock
      @asked = -Float::INFINITY # when the question was sent whose answer named @expires_at; infinity: it was released
      @lost, @stopping = Signal.new, Signal.new
    end

    # Takes over an answer about it. Times count from the question, because an answer may be read late. So the answer to
    # an older question, which another thread may read after a newer one, names no time.
    def note(value, asked)
      note_time(value, asked) if asked >= @asked
      @count = value["reentry"]
      @mode = value.fetch("mode", "exclusive").to_sym
      stopping.fire(value["stopping"]["reason"]) if value["stopping"]
    end

    # Takes over the answer to a release. It is free then, or has fewer entries.
    def released(value)
      @count = value["reentry"]
      return unless value["released"]

      entries.each { |entry| entry.released = true }
      @entries = []
      return session.forget(self) if session

      @asked = Float::INFINITY
      lost.expires(Float::INFINITY)
    end

    # It is lost.
    def lose(reason, silently: false)
      @entries = []
      lost.fire(reason, silently:)
    end

    private

    def note_time(value, asked)
      @asked = asked
      @life = value["expires_in_ms"] / 1000.0
      @expires_at = asked + (value["waited_ms"] / 1000.0) + @life
      @ask_at = [@expires_at - (@life / 2), asked + PAUSE].max
      lost.expires(@expires_at) unless session
    end
  end

  # One entry of an owner in a grant: one acquire gets it, and one release gives it back. Its state follows the answers of
  # the sidecar.
  # @api private
  class Entry
    attr_reader :grant, :who, :owner, :request_id, :reentrant
    attr_accessor :released
    # Whether a release was sent, and its answer is not known (yet).
    attr_accessor :unanswered

    # who: the thread or fiber that has acquired it. reentrant: its release names the request, because the grant may have
    # other entries.
    def initialize(grant, who:, owner:, request_id:, reentrant:)
      @grant, @who, @owner, @request_id, @reentrant = grant, who, owner, request_id, reentrant
      @released = @unanswered = false
      grant.entries << self
    end

    # Whether it was released or lost.
    def over? = released || grant.lost.happened?

    # Takes over the answer to its release.
    def give_back(value)
      @unanswered, @released = false, true
      grant.entries.delete(self)
      grant.released(value)
    end
  end

  # An explicit session: its id, and its grants. The stream may have news of a lock before the answer with its grant is
  # read. Such news is kept until then.
  # @api private
  class Session
    # The most locks with news that nobody has read.
    MOST_NEWS = 1000
    # The least seconds for the answer to a question.
    ANSWER = 0.25
    # The most seconds for an answer after the time of a lock.
    LATE_ANSWER = 1.0

    attr_reader :id, :ended

    def initialize(id, on_end)
      @id, @on_end = id, on_end
      @ended, @reason = false, ""
      @guard = Guard.new
      @grants = {} # by key and token
      @news = {} # by key and token
      @wakes_at = @shortest = Float::INFINITY # when the keeper wakes; the least life of its grants
      @silent = false # the last question had no answer
    end

    # Notes what an acquire got, and when it was asked for.
    def hold(value, asked, **mine)
      news, grant, entry = @guard.synchronize do
        news = @news.delete(name = value.values_at("key", "token")) || {}
        grant = @grants[name] || Grant.new(*name, self)
        grant.note(value, asked)
        entry = Entry.new(grant, **mine)
        news["lost"] = @reason if ended
        @grants[name] = grant unless news.key?("lost") # in one step with its entry, so that a withdrawal finds it
        wake_sooner(grant)
        [news, grant, entry]
      end
      deliver(grant, news)
      entry
    end

    # The entries that a thread (fiber) has in this key.
    def entries(key, who)
      @guard.synchronize do
        @grants.each_value.select { |grant| grant.key == key }.flat_map(&:entries)
               .select { |entry| entry.who == who && !entry.over? }
      end
    end

    # Waits until a grant must be asked about, and returns it. Returns nil when the session ends, and without `wait` if there
    # is none now.
    def to_ask(wait: true)
      until ended
        grant = nil
        @guard.synchronize do
          grant = overdue
          @guard.rest(@wakes_at) unless grant || ended || !wait
        end
        return grant if grant || !wait
      end
    end

    # The seconds until a lock must be asked about.
    def spare = (@guard.synchronize { @grants.each_value.map(&:ask_at).min } || Float::INFINITY) - Clock.now

    # The seconds to wait for the answer to a question: until the first of the locks has had its time.
    def patience(grant)
      now = Clock.now
      first = @guard.synchronize { @grants.each_value.map(&:expires_at).min } || now
      return [first - now, ANSWER].max if first > now || @silent

      # This process was halted. All of them may have had their time, and the sidecar may well have renewed them.
      (grant.life / 4).clamp(ANSWER, LATE_ANSWER)
    end

    # Notes that a question had an answer.
    def answered = @silent = false

    # Notes a question without an answer. Returns the grants that have had their time.
    def unanswered(grant)
      @silent = true
      now = Clock.now
      grant.ask_at = now + [(grant.expires_at - now) / 2, Grant::PAUSE].max
      @guard.synchronize { @grants.each_value.select { |one| one.expires_at <= now } }
    end

    # Takes over the answer to a release by key and token.
    def released(key, token, value)
      grant = @guard.synchronize { @grants[[key, token]] }
      grant&.released(value)
    end

    # The grant is lost, as an answer or the clock says.
    def lost(grant, reason)
      forget(grant)
      grant.lose(reason)
    end

    # The grant was released or lost.
    def forget(grant)
      @guard.synchronize { @grants.delete([grant.key, grant.token]) }
    end

    # Takes an event of the stream. Events of a newer sidecar are ignored.
    def receive(event, data)
      return unless %w[lost stop].include?(event)

      name = data.values_at("key", "token")
      news = { event => data["reason"] }
      grant = @guard.synchronize do
        found = @grants[name]
        keep_news(name, news) unless found
        @grants.delete(name) if event == "lost"
        found
      end
      deliver(grant, news) if grant
    end

    # The session is over, and its locks are lost.
    def end(reason = "disconnected")
      grants = @guard.synchronize do
        return if ended

        @ended, @reason = true, reason
        @guard.changed
        @grants.values.tap { @grants.clear }
      end
      @on_end.call
      grants.each { |grant| grant.lose(reason) }
    end

    # In the child of a fork: the session is the parent's. Another thread may have had the guard.
    def forked
      @guard = Guard.new
      @ended, @reason = true, "forked"
      @grants.each_value { |grant| grant.lose("forked", silently: true) }
      @grants = {}
    end

    private

    # The grant that must be asked about now. Else it sets when to look again.
    def overdue
      now = Clock.now
      grant = @grants.each_value.min_by(&:ask_at)
      return grant if grant && grant.ask_at <= now

      # Without a grant it comes again in time for a grant of the next moment, so most acquires wake nobody.
      @wakes_at = [grant ? grant.ask_at : Float::INFINITY, now + (@shortest / 2)].min
      nil
    end

    def wake_sooner(grant)
      @shortest = [@shortest, grant.life].min
      return if grant.ask_at >= @wakes_at

      @wakes_at = grant.ask_at
      @guard.changed
    end

    def keep_news(name, news)
      (@news[name] ||= {}).update(news)
      @news.shift if @news.size > MOST_NEWS
    end

    def deliver(grant, news)
      grant.stopping.fire(news["stop"]) if news.key?("stop")
      grant.lose(news["lost"]) if news.key?("lost")
    end
  end
  private_constant :Grant, :Entry, :Session
end
