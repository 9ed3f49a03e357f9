# frozen_string_literal: true

require_relative "match"

module Contract
  # The result of a step does not match.
  class Failed < StandardError; end

  # Plays one case through this package: clients/contract/README.md says what the verbs mean. Each call runs in a thread
  # of its own, because a client refuses that a thread waits for a lock of its own.
  class Player
    PATIENCE = 60.0 # seconds for one step
    SUCCESS = { "open" => { "opened" => true }, "watch" => { "watching" => true } }.freeze
    SILENT = %w[close cancel].freeze
    WORDS = %w[expect until save start].freeze
    DIRECT = %w[open close watch next finish cancel sidecar].freeze
    PLAIN = %w[limit bind owner reentrant on_success data request_id].freeze
    OUR_WORDS = /\b(wait|ttl|max_hold|min_hold)\b(?!_ms)( \(in ms\))?/ # in errors, for the API's

    # The app's error in a block.
    class OfTheBlock < StandardError; end

    # The caller of a call leaves.
    class Cancelled < StandardError; end

    # where: what a client needs to find the sidecar.
    def initialize(sidecar, socket: nil, **where)
      @sidecar, @socket, @where = sidecar, socket, where
      @prefix = "c#{SecureRandom.hex(6)}-"
      @clients, @locks, @events, @watches, @blocks, @calls, @saved = {}, {}, {}, {}, {}, {}, {}
    end

    def play(steps)
      steps.each_with_index do |step, n|
        play_step(step)
      rescue Failed => e
        raise Failed, "step #{n + 1}, #{verb(step)}: #{e.message}"
      end
    ensure
      @calls.each_value(&:kill)
      @watches.each_value(&:close)
      @clients.each_value(&:close)
    end

    private

    def verb(step) = (step.keys - WORDS).then { |verbs| verbs.size == 1 ? verbs[0] : raise("a step has one verb: #{verbs}") }

    def play_step(step)
      name = verb(step)
      arguments = with_prefix(Match.fill_in(step[name] || {}, @saved))
      return @calls[step["start"]] = start(name, arguments) if step["start"]

      ends = now + PATIENCE
      loop do
        result = without_prefix(DIRECT.include?(name) ? send("step_#{name}", arguments) : result_of(start(name, arguments)))
        return if SILENT.include?(name)

        want = Match.fill_in(step["expect"] || step["until"] || SUCCESS[name], @saved)
        wrong = Match.difference(want, result)
        break save(step.fetch("save", {}), result) unless wrong
        raise Failed, "#{wrong}\n    the result was #{result}" if !step.key?("until") || now > ends

        sleep(0.005) unless name == "next"
      end
    end

    def save(names, result)
      names.each do |name, path|
        @saved[name] = path.split(".").reduce(result) do |value, part|
          value.is_a?(Array) ? value.fetch(part.to_i) : value.fetch(part)
        end
      end
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    # Calls, each in a thread.

    def start(name, arguments) = Thread.new { guarded { send("call_#{name}", client(arguments["session"]), arguments) } }

    def guarded
      yield
    rescue Locksidecar::Skipped => e
      { "skipped" => true, "key" => e.key, "result" => e.result }
    rescue Locksidecar::Error => e
      problem(e)
    rescue TypeError, ArgumentError => e
      { "error" => "invalid_request", "detail" => e.message.gsub(OUR_WORDS, '\1_ms') }
    end

    def result_of(thread)
      raise Failed, "no answer within #{PATIENCE} s" unless thread.join(PATIENCE)

      thread.value
    end

    def new_client(**options) = Locksidecar::Client.new(@socket, reconnect: 0, **@where, **options)

    def client(session) = @clients[session] ||= new_client

    def problem(error)
      more = error.problem.except("type", "title", "status", "code")
      more["holder"] = holder(error.holder) if error.is_a?(Locksidecar::LockHeld)
      detail = (error.problem["detail"] || error.message).gsub(OUR_WORDS, '\1_ms')
      { **more, "error" => error.code, "detail" => detail }
    end

    # Sessions and streams.

    def step_open(it)
      made = guarded { new_client(**{ ttl: it["ttl_ms"]&.fdiv(1000), name: it["name"] }.compact) }
      return made unless made.is_a?(Locksidecar::Client)

      @clients[it["as"]] = made
      @events[it["as"]] = Queue.new
      # A client opens its session with the first call that needs it.
      result_of(Thread.new { guarded { made.locks(scope: :session).to_a and { "opened" => true } } })
    end

    def step_close(it) = @clients[it["session"]].close

    def step_watch(it)
      result_of(Thread.new do
        guarded { (@watches[it["as"]] = client(nil).events(it["key"])) and { "watching" => true } }
      end)
    end

    def step_next(it)
      watch = @watches[it["of"]]
      return result_of(Thread.new { watch.next.then { |event| { "event" => event.type.to_s, **event.data } } }) if watch

      ends = now + PATIENCE
      sleep(0.002) while @events[it["of"]].empty? && now < ends
      raise Failed, "no event within #{PATIENCE} s" if @events[it["of"]].empty?

      @events[it["of"]].pop
    end

    def step_finish(it) = result_of(@calls.delete(it["call"]))

    def step_cancel(it)
      thread = @calls.delete(it["call"])
      thread.raise(Cancelled)
      thread.join
    rescue Cancelled
      nil
    end

    def step_sidecar(it)
      @sidecar.signal(it["signal"])
      { "sent" => true }
    end

    # The verbs.

    def call_acquire(client, it) = granted(it, client.acquire(it["key"], **options(it)))

    def call_acquire_many(client, it)
      { "granted" => true, "locks" => client.acquire_many(it["keys"], **options(it)).map { |lock| granted(it, lock) } }
    end

    def call_enter(client, it)
      entered = Queue.new
      ends = Queue.new
      block = Thread.new do
        guarded do
          client.lock(it["key"], **options(it)) do |lock|
            entered << granted(it, lock)
            raise OfTheBlock if ends.pop
          end
          { "left" => true }
        end
      rescue OfTheBlock
        { "raised" => true }
      ensure
        entered << nil
      end
      @blocks[it["as"]] = [block, ends]
      entered.pop || block.value
    end

    def call_leave(_, it)
      block, ends = @blocks.delete(it["block"])
      ends << it.fetch("raise", false)
      block.value
    end

    def call_release(client, it)
      lock = held(it)
      more = %w[outcome result reentry].select { |name| it.key?(name) }.to_h { |name| [name.to_sym, it[name]] }
      free = lock ? lock.release(**more) : client.release(it["key"], it["token"], **more)
      { "key" => it["key"], "released" => free, "reentry" => free ? 0 : lock.grant.count }
    end

    def call_force_release(client, it)
      client.force_release(it["key"], token: it["token"])
      { "released" => true, "key" => it["key"] }
    end

    def call_check(client, it)
      lock = held(it)
      return status(lock.update(it["data"])) if it.key?("data")

      status(lock ? lock.check : client.check(it["key"], it["token"]))
    end

    def call_extend(client, it)
      lock, ttl = held(it), it["ttl_ms"] / 1000.0
      status(lock ? lock.extend(ttl) : client.extend(it["key"], it["token"], ttl))
    end

    def call_downgrade(_, it) = status(held(it).downgrade)

    def call_get(client, it) = info(client.get(it["key"], fresh: it.fetch("fresh", false)))

    def call_list(client, it)
      more = { scope: it["scope"], prefix: it["prefix"], type: it["type"], page_size: it["limit"] }.compact
      locks = client.locks(**more).to_a
      { "keys" => locks.map(&:key), "locks" => locks.map { |lock| info(lock) } }
    end

    def call_stop(client, it)
      client.stop(it["key"], reason: it["reason"], token: it["token"])
      { "requested" => true, "key" => it["key"] }
    end

    def call_features(client, _)
      client.describe.then { |one| { "version" => one.version, "api" => one.api, "features" => one.features } }
    end

    # Arguments and results, in the API's words.

    def options(it)
      wait = it.fetch("wait_ms", 0)
      made = PLAIN.select { |name| it.key?(name) }.to_h { |name| [name.to_sym, it[name]] }
      made[:wait] = wait == -1 ? nil : wait / 1000.0
      made[:shared] = it["mode"] == "shared" if it.key?("mode")
      %w[ttl max_hold min_hold].each { |name| made[name.to_sym] = it["#{name}_ms"] / 1000.0 if it.key?("#{name}_ms") }
      made
    end

    def granted(it, lock)
      all = @locks[[it["session"], lock.key, lock.token]] ||= []
      all << lock
      listen(@events[it["session"]], lock) if @events[it["session"]] && all.size == 1
      { "granted" => true, "key" => lock.key, "token" => lock.token, "session" => lock.session,
        "bind" => lock.bind.to_s, "reentry" => lock.reentry, "expires_in_ms" => ms(lock.expires_in),
        "waited_ms" => ms(lock.waited), "mode" => lock.mode.to_s, "limit" => lock.limit, "slot" => lock.slot }
    end

    def listen(events, lock)
      told = { "key" => lock.key, "token" => lock.token }
      lock.on_lost do |lost|
        ended = lost.reason == "disconnected"
        events << (ended ? { "event" => "end" } : { "event" => "lost", **told, "reason" => lost.reason })
      end
      lock.on_stopping { |stopping| events << { "event" => "stop", **told, "reason" => stopping.reason } }
    end

    def held(it) = @locks.fetch([it["session"], it["key"], it["token"]], []).reverse.find { |lock| !lock.released? }

    def ms(seconds) = (seconds * 1000).round

    def stopping(it) = it && { "reason" => it.reason, "requested_at" => it.requested_at }

    def holder(it)
      it && { "instance" => it.instance, "pod" => it.pod, "session" => it.session, "owner" => it.owner,
              "held_ms" => ms(it.held), "expires_in_ms" => ms(it.expires_in), "data" => it.data,
              "traceparent" => it.traceparent }
    end

    def info(it)
      holders = it.holders.map do |one|
        { **holder(one.holder), "token" => one.token, "slot" => one.slot, "stopping" => stopping(one.stopping) }
      end
      { "key" => it.key, "type" => it.type, "state" => it.state.to_s, "mine" => it.mine, "token" => it.token,
        "mode" => it.mode&.to_s, "limit" => it.limit, "holder" => holder(it.holder), "kept" => it.kept,
        "holders_count" => it.holders_count, "holders" => holders, "queue_length" => it.queue_length,
        "stopping" => stopping(it.stopping) }
    end

    def status(it)
      { "held" => true, "key" => it.key, "token" => it.token, "reentry" => it.reentry,
        "expires_in_ms" => ms(it.expires_in), "mode" => it.mode.to_s, "limit" => it.limit, "slot" => it.slot,
        "stopping" => stopping(it.stopping) }
    end

    # The prefix of the keys of this run.

    def with_prefix(it)
      it = it.dup
      %w[key prefix type].each { |name| it[name] = @prefix + it[name] if it.key?(name) }
      it["keys"] = it["keys"].map { |key| @prefix + key } if it["keys"].is_a?(Array)
      it
    end

    def without_prefix(value)
      case value
      when Hash then value.transform_values { |one| without_prefix(one) }
      when Array then value.map { |one| without_prefix(one) }
      when String then value.gsub(@prefix, "")
      else value
      end
    end
  end
end
