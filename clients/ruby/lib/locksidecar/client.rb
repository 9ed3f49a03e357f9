# frozen_string_literal: true

module Locksidecar
  # A client for threads. It has one session in each process, opened on first use. It may be made before a fork: the child
  # opens its own session, and the parent keeps its locks.
  #
  # Options of an acquire; durations are seconds:
  #
  # wait:: how long to wait in the queue: nil (the default) for ever, 0 not at all
  # shared:: true: shared holders do not exclude each other
  # limit:: with shared: at most this many holders; see `semaphore`
  # reentrant:, owner:: this thread, or each call with this owner, may enter its lock again
  # ttl:: how long the lock outlives a dead sidecar. With bind: :ttl, how long it lasts
  # bind:: :ttl: the lock outlives the process. Any caller with key and token can release it, and tokens can be guessed
  # max_hold:: after this time the sidecar releases the lock, which is then lost (`max_hold`)
  # min_hold:: until this time after the grant nobody else gets it, even if it is released
  # data:: JSON of at most 4 KiB, which others see as part of the holder
  # on_success:: :skip: raises Skipped with the result, if the holder releases with success meanwhile
  # request_id:: a UUID of your own: the same one gets the same grant. If such a call is interrupted, its grant stays
  class Client
    SOCKET = "/run/locksidecar/locksidecar.sock" # in pods, which have this folder
    HOME_SOCKET = ".locksidecar/locksidecar.sock" # elsewhere, in the user's home
    private_constant :SOCKET, :HOME_SOCKET

    # @param socket [String, nil] the sidecar's socket; by default LOCKSIDECAR_SOCKET, else
    #   `/run/locksidecar/locksidecar.sock` if this folder is there, else `~/.locksidecar/locksidecar.sock`
    # @param url [String, nil] instead of a socket: `https://HOST:PORT`, `http://127.0.0.1:PORT` or `unix:///PATH`; by
    #   default LOCKSIDECAR_URL
    # @param token_file [String, nil] over TCP: the file with the token, which is read again when it changes; by default
    #   LOCKSIDECAR_TOKEN_FILE
    # @param ca_file [String, nil] with https: the CA of the sidecar's certificate; by default LOCKSIDECAR_CA_FILE, else
    #   those of the system
    # @param name [String, nil] the public name of the session
    # @param ttl [Numeric, nil] the default of its locks
    # @param timeout [Numeric] the most seconds for an answer, in addition to a wait
    # @param reconnect [Numeric] the most seconds that a waiting call goes on in an outage of the sidecar, such as its
    #   restart. Other calls raise Unavailable at once
    # @raise [InvalidRequest] a setting is wrong
    def initialize(socket = nil, url: nil, token_file: nil, ca_file: nil, name: nil, ttl: nil, timeout: 10, reconnect: 30)
      endpoint = Endpoint.from_settings(socket, url:, token_file:, ca_file:, usual: Client.method(:usual_socket))
      @transport = Transport.new(
        endpoint, name: name && Check.text(:name, name), ttl: ttl && Check.seconds(:ttl, ttl, least: Check::LEAST_TTL),
                  timeout: Check.seconds(:timeout, timeout, least: 0.001),
                  reconnect: Check.seconds(:reconnect, reconnect, most: Float::INFINITY)
      )
      ObjectSpace.define_finalizer(self, Client.finalizer(@transport))
    end

    # Holds a lock in the block.
    #
    #   client.lock("workflow:123", wait: 5) { |lock| … }
    #
    # A block without its lock always ends with an error: its own, or else LockLost.
    # @param on_loss [Symbol, nil] :raise: a loss raises LockLost in the block, between two of its steps
    # @yieldparam lock [Lock]
    # @return [Object] the block's result
    # @raise [LockHeld] with wait: 0
    # @raise [WaitTimeout, Skipped, Unavailable, Error]
    # @raise [ThreadError] this thread holds it already, and would wait for itself for ever
    def lock(key, on_loss: nil, **options)
      needs_block("lock", "acquire", block_given?)
      Block.new(self, [key], Options.new(**options), on_loss:).run { |locks| yield locks.first }
    end

    # Acquires a lock. Prefer `lock`: after an interruption at the return of this call, nobody has the Lock.
    # @return [Lock] release it
    # @raise as `lock`
    def acquire(key, **options)
      acquire_all([key], options).first
    end

    # Acquires a lock if it is free.
    # @return [Lock, nil] nil: it is held
    def try_acquire(key, **options)
      acquire(key, **options, wait: 0)
    rescue LockHeld
      nil
    end

    # Acquires 1 to 100 locks, all or none. There are no deadlocks, whatever the order of the keys. With a block it holds
    # them there.
    # @yieldparam locks [Array<Lock>]
    # @return [Array<Lock>, Object] the locks, or the block's result
    def acquire_many(keys, on_loss: nil, **options, &block)
      return acquire_all(keys, options, several: true) unless block

      Block.new(self, Check.keys(keys), Options.new(**options), on_loss:, several: true).run(&block)
    end

    # Holds a permit in the block, or makes a Semaphore.
    #
    #   client.semaphore("gpu", limit: 5) { |permit| work(permit.slot) }
    #
    # At most `limit` callers have one, in all pods. All that use a key name the same limit, or get LimitMismatch.
    # @yieldparam permit [Lock] its `slot` is the smallest number from 0 that no other holder has
    # @return [Semaphore, Object] the block's result
    def semaphore(key, limit:, **options, &block)
      made = Semaphore.new(self, key, limit, options)
      block ? made.hold(&block) : made
    end

    # Acquires a shared lock: its holders do not exclude each other. Calls get the lock in their order, so neither mode
    # starves. With a block it holds it there, as `lock` does.
    # @yieldparam lock [Lock]
    # @return [Lock, Object] the lock, or the block's result
    def shared(key, **options, &block)
      block ? lock(key, **options, shared: true, &block) : acquire(key, **options, shared: true)
    end

    # Calls the block under the lock, or returns the result of another holder's `once` after a wait. If the block raises,
    # the next waiter calls its own.
    # @return [Object] JSON of at most 4 KiB, as JSON makes it: names in a Hash are String
    def once(key, on_loss: nil, **options)
      needs_block("once", "acquire", block_given?)
      begun = false
      block = Block.new(self, [key], Options.new(**options, on_success: :skip), on_loss:, outcome: :failure)
      block.run do |locks|
        begun = true
        result = Check.json(:result, yield)
        locks.first.release(outcome: :success, result:)
        JSON.parse(JSON.generate(result))
      end
    rescue Skipped => e
      raise if begun

      e.result
    end

    # Waits until it is the leader, and calls the block. At the end of a term it campaigns again.
    #
    # A term ends when its lock is lost or somebody asks to stop. The block has to look at `term.lost?`, and to return; or
    # on_loss: :raise raises LockLost in it. If the block returns before, this gives up the leadership and returns its
    # result. Its errors go on. A campaign goes on through an outage of the sidecar or its store, if the client has
    # reached them before.
    #
    # The client hears of a loss, and of a request to stop, at once while the sidecar answers. If the sidecar hangs, the
    # lock is lost when its lease ends by this process's clock.
    # @yieldparam term [Term]
    # @raise [Unavailable, LimitReached, SessionEnded] until the client has reached a sidecar
    # @raise [Error] that will not pass, such as InvalidRequest and Forbidden, and SessionEnded of a closed client
    def lead(key, on_loss: nil, data: nil, ttl: nil, max_hold: nil, min_hold: nil, &block)
      needs_block("lead", "acquire", !block.nil?)
      loop do
        term = nil
        options = Options.new(data:, ttl:, max_hold:, min_hold:)
        Block.new(self, [key], options, on_loss:, stops: true).run do |locks|
          term = Term.new(locks.first)
          value = yield term
          return value unless term.lost?
        end
      rescue Error => e
        await_return(e) unless term
        raise if term && !(e.is_a?(LockLost) && term.lost?)
      end
    end

    # @return [Object, nil] the data of the leader; nil without a leader, or if it has no data
    def leader(key) = get(key).holder&.data

    # The data of the leader, now and after each change: nil without one. A later `lock.update` is not an event.
    # @yieldparam data [Object, nil]
    # @return [Enumerator] without a block
    def watch_leader(key)
      return enum_for(:watch_leader, key) unless block_given?

      last = Call::UNSET
      events(key) do |event|
        data = leader_data(event)
        next if data.equal?(Call::UNSET) || (data == last && !last.equal?(Call::UNSET))

        last = data
        yield data
      end
    end

    # Watches a key: with a block, which gets each event until it breaks, or as an EventStream.
    # @yieldparam event [Event] the first one is the state
    # @return [EventStream, Object]
    # @raise [Unavailable] at the end of the stream
    def events(key, &block)
      stream = EventStream.new(self, key)
      return stream unless block

      begin
        stream.each(&block)
      ensure
        stream.close
      end
    end

    # Lists held locks by key.
    # @param scope [Symbol] :all of the whole namespace, :pod of this sidecar, :session of this client
    # @return [Enumerator<LockInfo>]
    def locks(scope: :all, prefix: nil, type: nil, page_size: nil)
      query = { scope: Check.word(:scope, scope), prefix: prefix && Check.text(:prefix, prefix),
                type: type && Check.text(:type, type), limit: page_size && Check.whole(:page_size, page_size) }
      pages("/v1/locks", query, "locks", "list", joins: query[:scope] == "session") { |one| LockInfo.from_json(one) }
    end

    # Lists the calls of all pods that wait, in their order: for a key, or for all.
    # @return [Enumerator<Waiter>]
    def waiters(key = nil, prefix: nil, page_size: nil)
      query = { prefix: prefix && Check.text(:prefix, prefix), limit: page_size && Check.whole(:page_size, page_size) }
      path = key ? Wire.lock_path(key, "/waiters") : "/v1/waiters"
      pages(path, query, "waiters", "waiters") { |one| Waiter.from_json(one) }
    end

    # Shows one lock.
    # @param fresh [Boolean] the sidecar asks the store, also for a lock of this pod
    # @return [LockInfo]
    def get(key, fresh: false)
      LockInfo.from_json(read(Wire.lock_path(key), fresh: Check.yes_or_no(:fresh, fresh)))
    end

    # Asks the holder of a lock to release it, or all shared holders, or the one that has the token. They may go on.
    # @raise [NotHeld]
    def stop(key, reason: nil, token: nil)
      query = Wire.query(token: token && Check.whole(:token, token))
      body = { reason: reason && Check.text(:reason, reason) }.compact
      ask(Call.new("POST", Wire.lock_path(key, "/stop#{query}"), body, timeout: @transport.timeout, needs: ["stop"]))
      nil
    end

    # Breaks a lock of any holder, or of all shared holders, or of the one that has the token. Returns when it is free.
    # @raise [Forbidden, NotHeld]
    def force_release(key, token: nil)
      # The answer comes when the lock is free, at the latest when its lease ends.
      query = Wire.query(force: true, token: token && Check.whole(:token, token))
      ask(Call.new("DELETE", Wire.lock_path(key, query), timeout: nil, repeatable: false, waits: true))
      nil
    end

    # Releases a lock by key and token, such as a bind: :ttl lock of another process. See Lock#release.
    # @return [Boolean]
    def release(key, token, outcome: nil, result: Call::UNSET, reentry: nil)
      release = Release.new(@transport, key, token, outcome:, result:, reentry:)
      Interrupts.runner.finish { release.run }["released"]
    end

    # Asks whether a lock is held under this token.
    # @return [Status]
    # @raise [LockLost, NotHolder]
    def check(key, token) = Amend.new(@transport, key, token, {}).run

    # Sets the remaining time of a bind: :ttl lock by key and token.
    # @param ttl [Numeric] seconds from now
    # @return [Status]
    def extend(key, *arguments)
      return super if key.is_a?(Module) # Object#extend, for test doubles and the like

      token, ttl = arguments
      ms = Check.to_ms(Check.seconds(:ttl, ttl, least: Check::LEAST_TTL))
      Amend.new(@transport, key, token, { ttl_ms: ms }).run
    end

    # Asks the sidecar for its version and features.
    # @return [Description]
    def describe = Interrupts.runner.run { @transport.learn }

    # Ends the session and releases its locks. The client cannot be used after that. May be called twice.
    def close
      Interrupts.runner.finish { @transport.close }
      nil
    end

    def inspect = "#<#{self.class} #{@transport.endpoint.name}>"

    # @api private
    attr_reader :transport

    class << self
      # Refers to no client, so that there will be one to finalize.
      # @api private
      def finalizer(transport) = ->(_) { transport.abandon }

      # The socket of a sidecar that was not told another one; the sidecar has the same rule.
      # @api private
      def usual_socket
        home = ENV.fetch("HOME", "")
        return SOCKET if !home.start_with?("/") || File.exist?(File.dirname(SOCKET))

        File.join(home, HOME_SOCKET)
      end
    end

    private

    def needs_block(name, other, given)
      raise ArgumentError, "#{name} needs a block, which holds the lock: use #{other} to get a Lock" unless given
    end

    def acquire_all(keys, options, several: false)
      acquire = Acquire.new(@transport, Check.keys(keys), Options.new(**options), several:)
      begin
        acquire.run
        locks = acquire.granted.map { |entry, value| Lock.new(self, entry, value) }
      ensure
        acquire.withdraw unless locks
      end
      locks
    end

    def await_return(error)
      raise error unless @transport.may_return?(error)

      sleep(error.retry_after || 1)
    end

    # The data of the leader after an event; UNSET if it does not tell.
    def leader_data(event)
      holder = event.data["holder"]
      case event.type
      when :released, :expired then nil
      when :state then holder && holder["data"]
      when :acquired then holder ? holder["data"] : Call::UNSET
      else Call::UNSET
      end
    end

    def ask(call) = Interrupts.runner.run { @transport.perform(call, &:result) }

    def read(target, needs: [], joins: false, fresh: false)
      again = false
      begin
        call = Call.new("GET", target, timeout: @transport.timeout, session: @transport.live_session, needs:,
                                       joins:, fresh:)
        ask(call)
      rescue SessionEnded
        call.session_ended
        raise if again || @transport.closed

        again = true
        retry
      end
    end

    def pages(path, query, name, feature, joins: false)
      Enumerator.new do |found|
        cursor = nil
        loop do
          page = read(path + Wire.query(**query, cursor:), needs: [feature], joins:)
          page[name].each { |one| found << yield(one) }
          cursor = page["next_cursor"] or break
        end
      end
    end
  end
end
