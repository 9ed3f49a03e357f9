# frozen_string_literal: true

module Locksidecar
  # A held lock. `token` is the fencing token: pass it to the resource that the lock protects.
  class Lock
    # @return [String]
    attr_reader :key
    # @return [Integer]
    attr_reader :token
    # @return [Symbol] :session or :ttl
    attr_reader :bind
    # @return [String, nil] the public name of the session
    attr_reader :session
    # @return [Symbol] :exclusive or :shared
    attr_reader :mode
    # @return [Integer, nil]
    attr_reader :limit
    # @return [Integer, nil] with a limit: 0 to limit - 1; no other holder has it
    attr_reader :slot
    # @return [Integer] the number of this entry of its owner, from 1
    attr_reader :reentry
    # @return [Float] how many seconds the acquire has waited
    attr_reader :waited

    # @api private
    def initialize(client, entry, value)
      @client, @entry, @grant = client, entry, entry.grant
      @key, @token = @grant.key, @grant.token
      @bind, @session, @reentry = value["bind"].to_sym, value["session"], value["reentry"]
      @mode, @limit, @slot = value.fetch("mode", "exclusive").to_sym, value["limit"], value["slot"]
      @waited = value["waited_ms"] / 1000.0
      @at = value["acquired_at"]
    end

    # @return [Time]
    def acquired_at = @acquired_at ||= Time.iso8601(@at)

    # Whether the lock was lost. It costs nothing: look often.
    # @return [Boolean]
    def lost? = @grant.lost.happened?

    # Why it was lost.
    # @return [LockLost, nil] nil: it is held, or was released
    def lost = lost? ? Problem.lost(key, @grant.lost.reason.to_s) : nil

    # Waits until it is lost.
    # @param timeout [Numeric, nil] seconds; nil: for ever
    # @return [Boolean] whether it is lost
    def wait_lost(timeout = nil) = @grant.lost.wait(timeout && Check.seconds(:timeout, timeout, most: Float::INFINITY))

    # Calls the block when it is lost, or soon if it was lost: in a thread of this package, one block after the other. So
    # return soon.
    # @yieldparam lost [LockLost]
    # @return [self]
    def on_lost(&block)
      raise ArgumentError, "on_lost needs a block" unless block

      @grant.lost.on { block.call(lost) }
      self
    end

    # Whether somebody asks the holder to release it.
    # @return [Boolean]
    def stopping? = @grant.stopping.happened?

    # Who asks, and why.
    # @return [Stopping, nil]
    def stopping = stopping? ? Stopping.new(reason: @grant.stopping.reason).freeze : nil

    # As `on_lost`, when somebody asks the holder to release it.
    # @yieldparam stopping [Stopping]
    # @return [self]
    def on_stopping(&block)
      raise ArgumentError, "on_stopping needs a block" unless block

      @grant.stopping.on { block.call(stopping) }
      self
    end

    # @return [Boolean] whether this entry of the lock was released
    def released? = @entry.released

    # Seconds until the end that the sidecar's last answer named, by this process's clock. A lock with bind: :ttl ends a
    # little later. The sidecar renews a session's lock.
    # @return [Float] never negative
    def expires_in = [@grant.expires_at - Clock.now, 0.0].max

    # Releases the lock, or one entry of it. An interrupted thread still releases. After Unavailable it may be called
    # again.
    # @param outcome [Symbol, nil] :success or :failure, for watchers and for waiters with `on_success: :skip`
    # @param result [Object] with success: JSON of at most 4 KiB for them
    # @return [Boolean] whether it is free now
    # @raise [LockLost, NotHolder, Unavailable]
    def release(outcome: nil, result: Call::UNSET, reentry: nil)
      check_released
      release = Release.new(@client.transport, key, token, entry: @entry, outcome:, result:,
                                                           reentry:)
      Interrupts.runner.finish { release.run }["released"]
    end

    # Asks the sidecar whether it is still held.
    # @return [Status]
    # @raise [LockLost, NotHolder, Unavailable]
    def check = amend({})

    # Sets the remaining time from now. Only with bind: :ttl, because the sidecar renews the others.
    # @param ttl [Numeric] seconds
    # @return [Status]
    def extend(ttl, *modules)
      return super if ttl.is_a?(Module) # Object#extend, for test doubles and the like

      amend({ ttl_ms: Check.to_ms(Check.seconds(:ttl, ttl, least: Check::LEAST_TTL)) })
    end

    # Replaces the data that others see. nil removes it.
    # @return [Status]
    def update(data) = amend({ data: Check.json(:data, data) }, "data")

    # Makes an exclusive lock shared, under the same token. Shared calls that wait are let in. There is no upgrade,
    # because two holders would wait for each other.
    # @return [Status]
    def downgrade
      status = amend({ mode: "shared" }, "shared")
      @mode, @limit, @slot = status.mode, status.limit, status.slot
      status
    end

    def inspect
      state = if released? then "released"
              else
                lost? ? "lost" : "held"
              end
      "#<#{self.class} #{key.inspect} token=#{token} #{state}>"
    end

    # @api private
    attr_reader :grant

    private

    def amend(change, *needs)
      check_released
      Amend.new(@client.transport, key, token, change, grant: @grant, needs:).run
    end

    def check_released
      return unless released?

      raise NotHolder.new("lock #{key.inspect} was released already (not_holder)", code: "not_holder", status: 409,
                                                                                   problem: { "reason" => "released" })
    end
  end

  # Checks that a lock is held, and changes its time (bind: :ttl), its data or its mode.
  # @api private
  class Amend
    def initialize(transport, key, token, change, grant: nil, needs: [])
      @transport, @grant = transport, grant
      @call = Call.new("PATCH", Wire.lock_path(key), { token: Check.whole(:token, token), **change },
                       timeout: transport.timeout, needs:, headers: Tracing.headers,
                       session: grant ? grant.session : transport.live_session)
    end

    def run
      Release.check_lost(@grant)
      value = Interrupts.runner.run do
        @transport.perform(@call) { |answer| answer.result.tap { |it| @grant&.note(it, @call.sent) } }
      end
      Status.from_json(value)
    rescue Error => e
      raise Release.lost_by(@grant, e)
    end
  end
  private_constant :Amend
end
