# frozen_string_literal: true

require_relative "../locksidecar"

module Locksidecar
  # What the modules for job frameworks have in common: a job with a lock, and a job that runs once in each period.
  module Jobs
    class << self
      # @return [Client] of all jobs of this process
      attr_writer :client

      def client = @client ||= Client.new

      # Includes the class's methods, too.
      # @api private
      def included(job)
        super
        job.extend(Declarations)
      end
    end

    # The lock of the running job: its `token`, whether it is lost.
    # @return [Lock, nil]
    attr_accessor :held_lock

    # A tick that does not run, because another process has run it or may have. It is no failure.
    class TickSkipped < Error
      def initialize(message = nil, **more) = super(message, code: "skipped", **more)
    end

    # What a class of jobs says.
    module Declarations
      # Jobs run under a lock. The block gets the arguments of the job, and returns the key. A loss of the lock raises
      # LockLost in the job, between two of its steps. A worker that dies frees the lock.
      # @param held [Symbol] what becomes of a job whose lock is held: :fail (it raises LockHeld, and the framework tries
      #   it again if it has been told to) or :skip (it does not run)
      # @param options those of Client#lock; without a `wait` the job does not wait
      def with_lock(held: :fail, **options, &key)
        raise ArgumentError, "with_lock needs a block, which returns the key" unless key
        raise ArgumentError, "held: #{held.inspect} must be :fail or :skip" unless %i[fail skip].include?(held)

        options = { wait: 0, **options }
        Options.new(**options) # so that a mistake is found here
        self.locksidecar_way = Locked.new(key, held, options)
      end

      # Jobs run at most once in each period, however many schedulers send them.
      # @param period [Numeric] seconds, at most a day, counted from 1970 in UTC. The time for which the job is first sent
      #   decides: its attempts belong to it
      # @param min_hold [Numeric] for so long after the period nobody runs it again. A worker that gets the job later than
      #   half of it after its time does not run it
      # @param wait [Numeric] how long to wait for the end of the run before
      # @param key [String] by default the name of the class
      def once_every(period, min_hold: 600, wait: 0, key: name)
        period = Check.seconds(:period, period, least: 1)
        self.locksidecar_way = Once.new(Check.text(:key, key), period, Check.seconds(:min_hold, min_hold),
                                        Check.seconds(:wait, wait))
      end

      # @api private
      def locksidecar_way = @locksidecar_way || (superclass.locksidecar_way if superclass.respond_to?(:locksidecar_way))

      private

      attr_writer :locksidecar_way
    end

    # Runs a job as its class says. Returns what the block returns, or nil for a job that does not run.
    # @api private
    def self.run(job, arguments, sent:, attempt:)
      way = job.class.locksidecar_way or return yield
      way.run(arguments, sent, attempt) do |lock|
        job.held_lock = lock
        yield
      ensure
        job.held_lock = nil
      end
    rescue TickSkipped => e
      Locksidecar.log.call("#{job.class} does not run: #{e.message}")
      nil
    end

    # @see Declarations#with_lock
    # @api private
    Locked = Struct.new(:key, :held, :options) do
      def run(arguments, _sent, _attempt, &job)
        name = key.call(*arguments)
        begun = false
        Jobs.client.lock(name, on_loss: :raise, **options) do |lock|
          begun = true
          job.call(lock)
        end
      rescue LockHeld => e
        raise if begun || held == :fail

        raise TickSkipped, "its lock is held: #{e.message}"
      end
    end

    # @see Declarations#once_every
    #
    # The tick has a key of its own, `tick:job@time`, which nobody gets again in its time: the period, and `min_hold`. So a
    # host whose clock is late skips it, and so does one that has it twice. The run has the lock `job`: runs do not overlap,
    # and its token grows.
    # @api private
    Once = Struct.new(:job, :period, :min_hold, :wait) do
      def run(_arguments, sent, attempt, &work)
        begins = (sent / period).floor * period
        tick = tick_key(begins, attempt)
        check(tick, begins, sent) if attempt.zero?
        take(tick)
        begun = false
        Jobs.client.lock(job, wait:, data: { tick: }, on_loss: :raise) do |lock|
          begun = true
          work.call(lock)
        end
      rescue LockHeld => e
        raise if begun

        raise TickSkipped, "#{tick} is skipped in the whole fleet: an earlier run goes on in #{Once.pod(e)}"
      end

      def self.pod(error) = error.holder ? "pod #{error.holder.pod.inspect}" : "another process"

      private

      def hold = [period + min_hold, Check::DAY].min

      def tick_key(begins, attempt)
        at = Time.at(begins).utc.iso8601(3)
        "tick:#{job}@#{at}#{"##{attempt}" if attempt.positive?}"
      end

      # Refuses what was planned so long ago that its key may be free again.
      def check(tick, begins, sent)
        now = Time.now.to_f
        late = now - sent
        return if late <= min_hold / 2 && now <= begins + hold - (min_hold / 2)

        raise TickSkipped, "#{tick} is #{late.round} s late, and min_hold is #{min_hold}: others may have run it"
      end

      def take(tick)
        Jobs.client.lock(tick, wait: 0, min_hold: hold) { nil }
      rescue LockHeld => e
        raise TickSkipped, "#{tick} was taken by #{Once.pod(e)}"
      end
    end
    private_constant :Locked, :Once
  end
end
