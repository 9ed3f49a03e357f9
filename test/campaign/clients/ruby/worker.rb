# frozen_string_literal: true

# A program of the campaign: `ruby worker.rb TASK`, with what it is to do as JSON. Threads that are raised in.

$LOAD_PATH.unshift(File.expand_path("../../../../clients/ruby/lib", __dir__))
require "json"
require "locksidecar"

TASK = JSON.parse(ARGV.fetch(0))
KEYS = %w[k0 k1 k2 k3].freeze
FORMS = %w[block block acquire acquire try many semaphore permit nested].freeze
LIMIT = 2
# How long an object that all threads use may take until it was granted again, when nothing fails.
AGAIN = 20
# What it may take besides its code, with the stacks of its threads.
MEMORY = 512 << 20

# The campaign interrupts a call.
class Struck < Exception; end # rubocop:disable Lint/InheritException -- as Interrupt

# The history: a line for each beginning and each end.
class Notes
  def initialize
    @file = File.open(TASK["records"], File::WRONLY | File::CREAT | File::APPEND)
    @numbers = Thread::Queue.new.tap { |numbers| numbers << 0 }
  end

  def begin(kind, actor, **fields)
    number = @numbers.pop + 1
    @numbers << number
    op = { id: "#{TASK["name"]}-#{number}", app: TASK["name"], program: TASK["program"], sidecar: TASK["sidecar"],
           pid: Process.pid, actor:, kind:, call: now, **fields }
    write(op)
    op
  end

  def end(op, outcome, **fields) = write(op.update(fields, outcome:, return: now))

  # From now on it is cancelled. It may never end.
  def cancel(op) = op.key?(:return) || write(op.update(cancel: now))

  def add(kind, actor, **fields) = self.end(self.begin(kind, actor), "done", **fields)

  def fail(op, error)
    waited = op.fetch(:wait, 0)
    if error.is_a?(Struck)
      self.end(op, "cancelled")
    elsif op[:kind] == "acquire" && error.instance_of?(waited.zero? ? Locksidecar::LockHeld : Locksidecar::WaitTimeout)
      self.end(op, "timeout")
    else
      self.end(op, "failed", error: error.class.name, text: error.message)
    end
  end

  private

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) + TASK["offset"]

  def write(op) = @file.syswrite("#{JSON.generate(op)}\n")
end

# One acquire, and what becomes of it.
class Hold
  def initialize(program, actor, rng, op)
    @program, @notes, @actor, @rng, @op = program, program.notes, actor, rng, op
    @exposing = Mutex.new
    @thread = Thread.current
    @granted = false
  end

  # From here on the thread may be raised in.
  def expose(op) = @exposing.synchronize { @exposed = op }

  # From here on it may not. What was raised just before comes here.
  def cover
    expose(nil)
    Thread.pass while Thread.pending_interrupt?
  end

  def strike
    @exposing.synchronize do
      return unless @exposed

      @notes.cancel(@exposed)
      @exposed = nil
      @thread.raise(Struck)
    end
  end

  def run(form, keys, wait)
    send(form, keys, { wait:, ttl: TASK["ttl"], data: @op[:id] })
    cover
    @notes.end(@release, "done") if @release
  rescue Exception => e # rubocop:disable Lint/RescueException -- Struck, and what the client must not raise
    uncovered(e)
  end

  private

  def client = @program.client

  def uncovered(error)
    cover
    broken(error)
  rescue Struck
    retry
  end

  def broken(error)
    return @notes.fail(@op, error) unless @granted

    leaves(exposed: false) unless @release
    @notes.fail(@release, error)
  end

  def got(*locks)
    cover
    @notes.end(@op, "granted", keys: locks.map(&:key), tokens: locks.map(&:token))
    @granted = true
    locks.each { |lock| lock.on_lost { @notes.add("lost", @actor, hold: @op[:id], keys: [lock.key]) } }
  end

  # Now and then for longer than a lease.
  def rest = sleep(@rng.rand < 0.98 ? [0, 0.005, 0.02, 0.05].sample(random: @rng) : 1 + (@rng.rand * 7))

  def leaves(exposed: true)
    @release = @notes.begin("release", @actor, form: @op[:form], hold: @op[:id])
    expose(@release) if exposed
  end

  def body(*locks)
    got(*locks)
    rest
    leaves
  end

  def block(keys, options)
    expose(@op)
    client.lock(keys.first, **options) { |lock| body(lock) }
  end

  def many(keys, options)
    expose(@op)
    client.acquire_many(keys, **options) { |locks| body(*locks) }
  end

  def semaphore(_keys, options)
    expose(@op)
    @program.semaphore.hold(**options) { |permit| body(permit) }
  end

  # Not exposed: between the return and the assignment an interruption loses the lock, whatever the client does.
  def acquire(keys, options) = holds(client.acquire(keys.first, **options))

  def through(keys, options)
    lock = client.acquire(keys.first, **options)
    got(lock)
    sleep 0.05 until lock.lost? || @program.calm?
    release(lock)
  end

  def permit(_keys, options) = holds(@program.semaphore.acquire(**options))

  def try(keys, options)
    lock = client.try_acquire(keys.first, **options.except(:wait))
    lock ? holds(lock) : @notes.end(@op, "timeout")
  end

  def holds(lock)
    got(lock)
    rest
    release(lock)
  end

  def release(lock)
    leaves(exposed: false)
    lock.release
  rescue Locksidecar::Unavailable, Locksidecar::LimitReached => e
    @notes.fail(@release, e)
    sleep 0.2
    retry
  end

  def nested(keys, options)
    options = { **options, reentrant: true }
    expose(@op)
    client.lock(keys.first, **options) do |lock|
      got(lock)
      enter(keys, options)
      leaves
    end
  end

  def enter(keys, options)
    entry = @notes.begin("enter", @actor, form: "nested", keys:, wait: @op[:wait], hold: @op[:id])
    client.lock(keys.first, **options) do |inner|
      @notes.end(entry, "granted", tokens: [inner.token])
      rest
      entry = @notes.begin("leave", @actor, form: "nested", hold: @op[:id])
    end
    @notes.end(entry, "done")
  rescue StandardError => e
    @notes.fail(entry, e)
  end
end

# One client, and what its threads share.
class Program
  attr_reader :client, :notes, :semaphore

  def initialize
    @notes = Notes.new
    @client = Locksidecar::Client.new(TASK["socket"], name: TASK["name"], timeout: TASK["timeout"], reconnect: TASK["reconnect"])
    @semaphore = @client.semaphore("s0", limit: LIMIT, ttl: TASK["ttl"])
    only = TASK["forms"].to_a
    @forms = only.empty? ? FORMS : FORMS & only
  end

  def run
    work
    $stdin.each_line(chomp: true) do |word|
      case word
      when "calm" then calm
      when "again" then use_again
      else work
      end
    end
    quieten
    @client.close
    @notes.add("quiet", -1, form: "closed")
    sleep # until SIGTERM
  end

  def calm? = @calm

  private

  def work
    @calm = false
    @threads = Array.new(TASK["actors"]) do |actor|
      Thread.new do
        rng = Random.new((TASK["seed"] * 100) + actor)
        until @calm
          act(actor, rng)
          sleep(rng.rand * 0.05)
        end
      end
    end
    @threads << Thread.new { hold_through until @calm }
  end

  # Holds a lock until it is lost, also while the sidecar is frozen.
  def hold_through
    actor, keys = TASK["actors"], ["through:#{TASK["name"]}"]
    op = @notes.begin("acquire", actor, form: "through", keys:, wait: -1, limit: 0)
    Hold.new(self, actor, nil, op).run("through", keys, nil)
    sleep 0.05
  end

  def act(actor, rng)
    form = @forms.sample(random: rng)
    wait = form == "try" ? 0 : [0, 50, 200, 1000, 2000, -1].sample(random: rng)
    keys = wanted(form, actor, rng)
    op = @notes.begin("acquire", actor, form:, keys:, wait:, limit: keys == ["s0"] ? LIMIT : 0)
    hold = Hold.new(self, actor, rng, op)
    delay = [0, 0.0003, 0.0006, 0.001, 0.005, 0.05, 0.5, 2].sample(random: rng)
    strike = (Thread.new { sleep delay and hold.strike } if rng.rand < 0.5)
    hold.run(form, keys, wait.negative? ? nil : wait / 1000.0)
    strike&.kill
  end

  # Now and then a key that nobody else wants. The call is quick then, so an interruption meets all its steps.
  def wanted(form, actor, rng)
    case form
    when "many" then KEYS.sample(2 + rng.rand(2), random: rng)
    when "semaphore", "permit" then ["s0"]
    else rng.rand < 0.4 ? ["own:#{TASK["name"]}:#{actor}"] : [KEYS.sample(random: rng)]
    end
  end

  def quieten
    @calm = true
    @threads.each(&:join)
  end

  def calm
    quieten
    @kept = @client.acquire("keep:#{TASK["name"]}", wait: AGAIN, ttl: TASK["ttl"], data: "kept")
    @notes.add("quiet", -1, keys: [@kept.key], tokens: [@kept.token])
  end

  def use_again
    @kept.release
    KEYS.each { |key| use("block", [key]) { @client.lock(key, wait: AGAIN) { nil } } }
    use("semaphore", ["s0"]) { @semaphore.hold(wait: AGAIN) { nil } }
    use("many", KEYS) { @client.acquire_many(KEYS, wait: AGAIN) { nil } }
    @notes.add("quiet", -1, form: "again")
  end

  def use(form, keys)
    op = @notes.begin("again", -1, form:, keys:)
    yield
    @notes.end(op, "done")
  rescue StandardError => e
    @notes.fail(op, e)
  end
end

Process.setrlimit(:DATA, MEMORY)
trap("TERM") { exit!(0) }
Thread.abort_on_exception = true
Program.new.run
