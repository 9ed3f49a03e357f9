# frozen_string_literal: true

require_relative "helper"

# Proves: client self wait
# One thread that wants a key again, and threads that share a client.
class NestedTest < TestCase
  REFUSED = /this thread holds ".*" already, and would wait for itself for ever: give `reentrant: true`/

  def test_a_thread_does_not_wait_for_itself
    ways = [
      -> { client.acquire(key) },
      -> { client.lock(key) { flunk } },
      -> { client.acquire_many(["#{key}:2", key]) },
      -> { client.acquire_many([key]) { flunk } },
      -> { client.shared(key) { flunk } },
      -> { client.acquire(key, reentrant: true) }, # the first one is not
      -> { client.once(key) { flunk } },
      -> { client.semaphore(key, limit: 3) { flunk } },
      -> { client.lead(key) { flunk } }
    ]
    client.lock(key) do
      ways.each { |way| assert_match(REFUSED, assert_raises(ThreadError, &way).message) }
      assert_nil client.try_acquire(key)
      assert_raises(Locksidecar::WaitTimeout) { client.acquire(key, wait: 0.01) }
      @waiter = aside { client.acquire(key) } # another thread may wait
      waiting(other, key)
    end
    result(@waiter).release
    client.shared(key) { assert_raises(ThreadError) { client.acquire(key) } }
    client.lock(key, reentrant: true) { client.lock(key, reentrant: true) { nil } }
    free(other, key)
    free(other, "#{key}:2")
  end

  def test_a_thread_does_not_wait_for_itself_in_an_enumerator
    client.lock(key) do
      assert_raises(ThreadError) { Enumerator.new { |found| found << client.acquire(key) }.next }
    end
    client.lock(key, reentrant: true) do
      assert_equal 2, Enumerator.new { |found| client.lock(key, reentrant: true) { |lock| found << lock.reentry } }.next
    end
  end

  def test_a_lost_lock_is_not_held
    lock = client.acquire(key)
    other.force_release(key)
    assert lock.wait_lost(LONG)
    client.acquire(key).release
  end

  def test_a_lock_that_another_thread_will_release_is_waited_for_with_a_time
    lock = client.acquire(key)
    releasing = aside { waiting(other, key) || lock.release }
    client.acquire(key, wait: LONG).release
    result(releasing)
  end

  def test_a_thread_may_have_several_permits
    gpu = client.semaphore(key, limit: 2)
    gpu.hold do
      gpu.hold do
        third = aside { gpu.acquire(wait: 0.05) }
        assert_raises(Locksidecar::WaitTimeout) { result(third) }
      end
    end
    client.shared(key) { client.shared(key) { nil } }
  end

  # Proves: client groups
  def test_threads_want_overlapping_keys
    inside = []
    threads = Array.new(3) do |t|
      aside do
        20.times do |n|
          keys = ["#{key}:#{(n + t) % 3}", "#{key}:#{(n + t + 1) % 3}"]
          client.acquire_many(n.odd? ? keys : keys.reverse, wait: LONG) do
            assert_empty inside & keys
            inside.concat(keys)
            Thread.pass
            inside -= keys
          end
        end
      end
    end
    threads.each { |thread| result(thread) }
    3.times { |n| free(other, "#{key}:#{n}") }
  end
end
