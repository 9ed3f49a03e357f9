# frozen_string_literal: true

require_relative "helper"

# Proves: client interrupts
# Thread#raise, Thread#kill, Timeout.timeout, the handlers of signals and fiber schedulers, at any moment. The objects are
# right afterwards, and no lock is held that nobody has.
class InterruptTest < TestCase
  class Limit < StandardError; end

  # Runs the block with an interruption at a random time, again and again. Returns how many ends left a lock.
  def storm(times, interrupt, longest: 0.0006)
    client.get("warm")
    left = interrupted = 0
    times.times do
      Thread.pass
      aside = aside { sleep(rand * longest) and interrupt.call }
      begin
        yield
        sleep(LONG)
      rescue Limit, Timeout::Error
        interrupted += 1
      end
      aside.join
      held = left_behind
      left += 1 if held.any?
      held.each { |lock| client.release(lock.key, lock.token) }
    end
    assert_equal times, interrupted
    left
  end

  # The locks that are still held after a second. The withdrawal of an interrupted acquire may overtake it on another
  # connection. Then the sidecar grants the lock, sees that the caller's connection is closed, and takes it back.
  def left_behind
    ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 1
    loop do
      held = client.locks(scope: :session).to_a
      return held if held.empty? || Process.clock_gettime(Process::CLOCK_MONOTONIC) > ends

      Thread.pass
    end
  end

  BLOCKS = [
    ->(client, key) { client.lock(key) { nil } },
    ->(client, key) { client.acquire_many([key, "#{key}:2"]) { nil } },
    ->(client, key) { client.semaphore("#{key}:3", limit: 1) { nil } },
    ->(client, key) { client.once(key) { nil } },
    ->(client, key) { client.lead(key) { nil } }
  ].freeze

  def test_blocks_of_a_thread_that_is_raised_in
    left = result(aside do
      me = Thread.current
      storm(400, -> { me.raise(Limit) }) { BLOCKS.sample.call(client, key) }
    end)
    assert_equal 0, left
  end

  def test_blocks_within_a_time_limit
    left = result(aside do
      storm(150, -> {}) do
        Timeout.timeout(0.0001 + (rand * 0.001)) do
          BLOCKS.sample.call(client, key)
          sleep(LONG)
        end
      end
    end)
    assert_equal 0, left
  end

  def test_blocks_of_the_main_thread_whose_signals_raise
    before = trap("USR1") { raise Limit }
    assert_same Thread.main, Thread.current
    left = storm(300, -> { Process.kill("USR1", Process.pid) }, longest: 0.002) { BLOCKS.sample.call(client, key) }
    assert_equal 0, left
  ensure
    trap("USR1", before)
  end

  # `defined?(A::B)` swallows what a handler raises in it.
  def test_no_interruption_is_swallowed_on_the_way_to_a_call
    before = trap("USR1") { raise Limit }
    tracing = Locksidecar.const_get(:Tracing)
    20.times do
      assert_raises(Limit) do
        sender = aside { Process.kill("USR1", Process.pid) }
        1000.times { tracing.context } while sender.alive?
        1000.times { tracing.context }
      end
    end
  ensure
    trap("USR1", before)
  end

  # What the storm above meets once in thousands of times.
  def test_handlers_that_raise_before_the_thread_of_a_part_has_begun
    %i[finish start started].each do |place|
      struck { client.lock(key) { Strikes.at(place) } }
      assert_predicate client.get(key, fresh: true), :free?, place
    end
    %i[start started].each do |place|
      lock = client.acquire(key)
      Strikes.at(place)
      struck { lock.release }
      assert_predicate lock, :released?, place
    end
    [[:run], [:start], [:started], %i[started start]].each do |places|
      Strikes.at(*places)
      struck { client.lock(key) { flunk } }
      assert_empty left_behind, places
    end
  end

  # The second handler comes while the caller leaves the acquire, whose answer is just being read.
  def test_two_handlers_and_an_answer
    client.lock("warm") { nil }
    before = trap("USR1") { raise Limit }
    threads_end do
      stub_reads(/"granted":true/) do
        Strikes.at(:start)
        Process.kill("USR1", Process.pid)
        Thread.pass until Strikes.places.empty?
        sleep(0.05) # a release that did not wait for the answer would come now
      end.call { struck { client.lock(key) { flunk } } }
    end
    client.lock(key) { nil } # raises if the client believes that this thread has it
  ensure
    trap("USR1", before)
  end

  def test_a_call_whose_caller_has_left_ends
    slow = new_client(sidecar.path, timeout: LONG)
    slow.get(key)
    sidecar.hanging do
      Strikes.at(:started)
      threads_end { struck { slow.get(key) } }
    end
  end

  def test_an_operation_runs_once
    ran = 0
    once = worker { ran += 1 }
    threads_end { 2.times { once.start } }
    assert_equal 1, ran
  end

  def test_a_caller_may_leave_twice
    never = worker { flunk }
    result(aside { 2.times { never.leave } })
    never.value # raises what it has raised
  end

  def test_blocks_of_threads_that_are_killed
    300.times do
      thread = aside { loop { BLOCKS.sample.call(client, key) } }
      sleep(rand * 0.002)
      thread.kill
      assert thread.join(LONG)
      assert_empty left_behind
    end
  end

  # What Ruby does between the return of `acquire` and the assignment, nobody can undo.
  def test_acquires_and_releases_by_hand
    left = result(aside do
      me = Thread.current
      storm(400, -> { me.raise(Limit) }) do
        lock = client.acquire(key)
        lock.release
      ensure
        Thread.handle_interrupt(Object => :never) { lock.release unless lock.nil? || lock.released? }
      end
    end)
    assert_operator left, :<=, 4
  end

  def test_a_wait_ends_and_is_withdrawn
    client.lock(key) do
      ways = {
        "raise" => [Limit, ->(thread) { thread.raise(Limit) }],
        "timeout" => [Timeout::Error, nil],
        "kill" => [nil, :kill.to_proc]
      }
      ways.each do |name, (error, interrupt)|
        waiter = aside { name == "timeout" ? Timeout.timeout(0.05) { other.acquire(key) } : other.acquire(key) }
        if interrupt
          waiting(client, key)
          interrupt.call(waiter)
        end
        error ? assert_raises(error) { result(waiter) } : result(waiter)
        waiting(client, key, 0)
      end
    end
    free(client, key)
  end

  # The interruption comes when the answer is there, and the app does not have it.
  def test_an_answer_that_is_interrupted
    me = nil
    stub_reads(/"granted":true/) { me.raise(Limit) }.call do
      thread = aside do
        me = Thread.current
        client.acquire(key)
      end
      assert_raises(Limit) { result(thread) }
    end
    free(client, key)
    lock = client.acquire(key)
    stub_reads(/"released":true/) { me.raise(Limit) }.call do
      thread = aside do
        me = Thread.current
        lock.release
      end
      assert_raises(Limit) { result(thread) }
    end
    assert_predicate lock, :released?
    assert_predicate client.get(key, fresh: true), :free?
    client.lock(key, wait: 0) { nil }
  end

  def test_an_interrupted_reentry_leaves_the_outer_lock_its_news
    thread = aside do
      client.lock(key, reentrant: true) do |outer|
        me = Thread.current
        stub_reads(/"granted":true/) { me.raise(Limit) }.call do
          assert_raises(Limit) { client.lock(key, reentrant: true) { flunk } }
        end
        assert_equal 1, outer.check.reentry
        other.stop(key, reason: "why")
        assert outer.grant.stopping.wait(LONG)
      end
    end
    result(thread)
  end

  def test_a_body_keeps_the_mask_of_its_caller
    thread = aside do
      Thread.handle_interrupt(Limit => :never) do
        client.lock(key) do
          Thread.current.raise(Limit)
          Thread.pass
        end
        assert_predicate client.get(key, fresh: true), :free?
        :out
      end
    end
    assert_raises(Limit) { result(thread) }
  end

  def test_a_wait_keeps_the_mask_of_its_caller
    got = nil
    waiter = nil
    client.lock(key) do
      waiter = aside { Thread.handle_interrupt(Limit => :never) { got = other.acquire(key) } }
      waiting(client, key)
      waiter.raise(Limit)
      refute waiter.join(0.05)
      waiting(client, key)
    end
    assert_raises(Limit) { result(waiter) }
    assert got.release
  end

  # A release that hangs does not hold an interrupted thread for long.
  def test_an_interrupted_release_has_a_limit
    slow = new_client(sidecar.path, timeout: LONG, ttl: 3600)
    lock = slow.acquire(key)
    sidecar.hanging do
      thread = aside { lock.release }
      Thread.pass until thread.status == "sleep"
      began = Locksidecar::Inside[:Clock].now
      thread.raise(Limit)
      assert_raises(Limit) { result(thread) }
      assert_operator Locksidecar::Inside[:Clock].now - began, :<, 20
      refute_predicate lock, :released?
    end
    assert lock.release
  end

  def test_a_second_signal_does_not_stop_the_release
    before = trap("USR1") { raise Limit }
    sidecar
    slow = new_client(sidecar.path, ttl: 3600)
    hung = aside { sleep(0.3) and 2.times { Process.kill("USR1", Process.pid) and sleep(0.3) } and sidecar.resume }
    assert_raises(Limit) { slow.lock(key) { sidecar.hang } }
    hung.join
    free(new_client(sidecar.path), key)
  ensure
    trap("USR1", before)
  end

  def worker(&) = Locksidecar::Inside[:Worker].new({ Object => :immediate }, &)

  # Runs the block, and waits until the threads that it has made have ended.
  def threads_end
    before = Thread.list
    yield
    (Thread.list - before).each { |thread| assert thread.join(LONG / 3), thread }
  end

  # Runs the block in the main thread, where all the handlers raise.
  def struck(&)
    assert_same Thread.main, Thread.current
    assert_raises(Limit, &)
    assert_empty Strikes.places
  ensure
    Strikes.at
  end

  # Calls the block when a connection reads an answer that matches, before the client sees it.
  def stub_reads(pattern)
    lambda do |&body|
      done = false
      Reads.seen = lambda do |answer|
        next if done || !pattern.match?(answer.body)

        done = true
        yield
      end
      body.call
      assert done, "nothing was read"
    ensure
      Reads.seen = nil
    end
  end

  # Raises at these places, one after the other, as handlers of signals would.
  module Strikes
    class << self
      attr_reader :places

      def at(*places) = @places = places

      def reached(place)
        return unless Thread.current == Thread.main && place == places.first

        places.shift
        raise Limit
      end
    end
    at

    # Of Aside.
    module Parts
      def run
        Strikes.reached(:run)
        super
      end

      def finish
        Strikes.reached(:finish)
        super
      end
    end

    # Of Worker.
    module Threads
      def start
        Strikes.reached(:start)
        super.tap { Strikes.reached(:started) }
      end
    end
    Locksidecar::Inside[:Aside].prepend(Parts)
    Locksidecar::Inside[:Worker].prepend(Threads)
  end

  # What connections read.
  module Reads
    class << self
      attr_accessor :seen
    end

    def read_answer = super&.tap { |answer| Reads.seen&.call(answer) }
    Locksidecar::Inside[:Connection].prepend(self)
  end
end
