# frozen_string_literal: true

require_relative "helper"
require_relative "scheduler"

# Fibers under a scheduler. With the scheduler of this folder, which does the least that Ruby asks for, and, if it is
# installed, with that of the gem async.
class FiberTest < TestCase
  class Limit < StandardError; end

  # Runs the block in a fiber of a thread with a scheduler, until all fibers have ended.
  def scheduled
    result(aside do
      Fiber.set_scheduler(Scheduler.new)
      Fiber.schedule { yield }
    end)
  end

  def test_fibers_wait_for_each_other_and_the_thread_goes_on
    order = []
    scheduled do
      client.lock(key) do
        Fiber.schedule { client.lock(key) { order << "second" } }
        Fiber.schedule { order << "others run" }
        sleep(0.05)
        order << "first"
      end
    end
    assert_equal ["others run", "first", "second"], order
    free(client, key)
  end

  # Proves: client self wait
  def test_each_fiber_is_its_own_holder
    scheduled do
      client.lock(key, reentrant: true) do
        assert_raises(ThreadError) { client.acquire(key) }
        client.lock(key, reentrant: true) { |lock| assert_equal 2, lock.reentry }
        fiber = Fiber.schedule { assert_raises(Locksidecar::LockHeld) { client.acquire(key, wait: 0, reentrant: true) } }
        sleep(0.001) while fiber.alive?
      end
    end
  end

  # Proves: client interrupts
  def test_a_fiber_that_is_raised_in
    scheduled do
      client.lock(key) do
        waiter = nil
        ended = nil
        Fiber.schedule do
          waiter = Fiber.current
          client.acquire(key)
        rescue Limit
          ended = true
        end
        sleep(0.01) until client.get(key, fresh: true).queue_length == 1
        waiter.raise(Limit)
        sleep(0.01) until ended && client.get(key, fresh: true).queue_length.zero?
      end
    end
    free(client, key)
  end

  # Proves: client interrupts
  def test_fibers_that_are_raised_in_at_any_wait
    left = 0
    80.times do |n|
      scheduled do
        working = nil
        ended = false
        Fiber.schedule do
          working = Fiber.current
          client.lock(key) { sleep(0.001) }
        rescue Limit
          nil
        ensure
          ended = true
        end
        sleep(n * 0.00005)
        working.raise(Limit) unless ended
      end
      held = client.locks(scope: :session).to_a
      left += held.size
      held.each { |lock| client.release(lock.key, lock.token) }
    end
    assert_equal 0, left
  end

  # Proves: client interrupts
  def test_a_fiber_that_is_raised_in_while_it_releases
    lock = nil
    scheduled do
      slow = new_client(sidecar.path, ttl: 3600)
      lock = slow.acquire(key)
      sidecar.hang
      ended = releasing = nil
      Fiber.schedule do
        releasing = Fiber.current
        lock.release
      rescue Limit
        ended = true
      end
      releasing.raise(Limit)
      sidecar.resume
      sleep(0.01) until ended
    end
    until_true("it is released") { lock.released? }
  end

  def test_a_loss_cannot_be_raised_in_a_fiber
    scheduled do
      assert_match(/not for fibers/, assert_raises(ArgumentError) { client.lock(key, on_loss: :raise) { flunk } }.message)
      client.lock(key) do |lock|
        told = Queue.new
        lock.on_lost { told << lock.lost.reason }
        other.force_release(key)
        assert_equal "forced", told.pop
      rescue Locksidecar::LockLost
        nil
      end
    rescue Locksidecar::LockLost => e
      assert_equal "forced", e.reason
    end
  end

  def test_under_async
    require "async"
    seen = []
    result(aside do
      Async do |task|
        client.lock(key) do
          task.async { client.lock(key) { seen << "second" } }
          waits = task.async { client.acquire(key) }
          sleep(0.05)
          waits.stop
          sleep(0.01) until client.get(key, fresh: true).queue_length == 1
          seen << "first"
        end
      end
    end)
    assert_equal %w[first second], seen
    free(client, key)
  end
end
