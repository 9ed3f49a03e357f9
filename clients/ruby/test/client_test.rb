# frozen_string_literal: true

require_relative "helper"

# What a user calls.
class ClientTest < TestCase
  def test_a_block_holds_its_lock
    seen = client.lock(key, wait: 5) do |lock|
      assert_equal :held, client.get(key).state
      assert_predicate client.get(key), :mine?
      refute_predicate other.get(key), :mine?
      assert_equal lock.token, lock.check.token
      assert_operator lock.expires_in, :>, 0
      assert_kind_of Time, lock.acquired_at
      refute lock.lost?
      assert_nil lock.lost
      :result
    end
    assert_equal :result, seen
    assert_predicate client.get(key, fresh: true), :free?
  end

  def test_a_block_that_raises_breaks_or_throws_releases
    assert_raises(ZeroDivisionError) { client.lock(key) { 1 / 0 } }
    client.lock(key) { break }
    catch(:done) { client.lock(key) { throw :done } }
    returning = -> { client.lock(key) { return 1 } }
    assert_equal 1, returning.call
    assert_predicate client.get(key, fresh: true), :free?
  end

  def test_one_waits_for_the_other
    inside = 0
    most = 0
    threads = Array.new(8) do |n|
      aside do
        (n.even? ? client : other).lock(key) do
          most = [most, inside += 1].max
          Thread.pass
          inside -= 1
        end
      end
    end
    threads.each { |thread| result(thread) }
    assert_equal 1, most
  end

  def test_a_held_lock_is_refused
    client.lock(key, data: { by: "me" }) do
      held = assert_raises(Locksidecar::LockHeld) { other.lock(key, wait: 0) { flunk } }
      assert_equal ["held", 423, "one", { "by" => "me" }, 0, :exclusive],
                   [held.code, held.status, held.holder.session, held.holder.data, held.queue_length, held.mode]
      late = assert_raises(Locksidecar::WaitTimeout) { other.acquire(key, wait: 0.05) }
      assert_equal 1, late.queue_position
      assert_operator late.waited, :>=, 0.05
      assert_nil other.try_acquire(key)
    end
    assert other.try_acquire(key).release
  end

  def test_several_locks
    keys = %w[a b c].map { |name| "#{key}:#{name}" }
    client.acquire_many(keys) do |locks|
      assert_equal keys, locks.map(&:key)
      held = assert_raises(Locksidecar::LockHeld) { other.acquire_many(keys.reverse, wait: 0) }
      assert_includes keys, held.key
    end
    locks = other.acquire_many(keys)
    locks.each(&:release)
    keys.each { |one| assert_predicate client.get(one, fresh: true), :free? }
  end

  def test_a_semaphore
    client.semaphore(key, limit: 2) do |first|
      other.semaphore(key, limit: 2) do |second|
        assert_equal [0, 1], [first.slot, second.slot]
        assert_raises(Locksidecar::LockHeld) { client.semaphore(key, limit: 2, wait: 0) { flunk } }
        wrong = assert_raises(Locksidecar::LimitMismatch) { client.semaphore(key, limit: 3, wait: 0) { flunk } }
        assert_equal 2, wrong.limit
      end
    end
    gpu = client.semaphore(key, limit: 2)
    permits = [gpu.acquire, gpu.try_acquire]
    assert_nil gpu.try_acquire
    permits.each(&:release)
    gpu.hold(wait: 1) { |permit| assert_equal 0, permit.slot }
  end

  def test_shared_locks
    client.shared(key) do
      other.shared(key) { assert_equal 2, client.get(key).holders_count }
      share = other.shared(key, wait: 0)
      assert_equal [:shared, 2], [share.mode, client.get(key).holders_count]
      assert share.release
      assert_raises(Locksidecar::LockHeld) { other.lock(key, wait: 0) { flunk } }
    end
    lock = client.acquire(key)
    assert_equal :shared, lock.downgrade.mode
    assert_equal :shared, lock.mode
    other.shared(key) { assert lock.release }
  end

  def test_once
    begun = Queue.new
    ended = Queue.new
    first = aside do
      client.once(key) do
        begun << true
        ended.pop
        { rows: 120 }
      end
    end
    begun.pop
    others = Array.new(3) { aside { other.once(key) { flunk } } }
    waiting(client, key, 3)
    ended << true
    assert_equal([{ "rows" => 120 }] * 4, [first, *others].map { |thread| result(thread) })
    assert_raises(ZeroDivisionError) { client.once(key) { 1 / 0 } }
    assert_equal "again", other.once(key) { "again" }
  end

  def test_a_once_that_fails_lets_the_next_one_work
    begun = Queue.new
    first = aside do
      client.once(key) do
        begun << true
        waiting(client, key)
        raise "no"
      end
    end
    begun.pop
    second = aside { other.once(key) { "second" } }
    assert_equal "second", result(second)
    assert_equal("no", assert_raises(RuntimeError) { result(first) }.message)
  end

  def test_data_and_reads
    client.lock(key, data: { by: "me", list: [1, nil, 2.5] }) do |lock|
      assert_equal({ "by" => "me", "list" => [1, nil, 2.5] }, other.get(key, fresh: true).holder.data)
      lock.update("new")
      assert_equal "new", other.get(key, fresh: true).holder.data
      lock.update(nil)
      assert_nil other.leader(key)
      assert_equal [key], client.locks(prefix: key).map(&:key)
      assert_equal [key], client.locks(scope: :session).map(&:key)
      assert_empty other.locks(scope: :session).to_a
      waiter = aside { other.acquire(key) }
      waiting(client, key)
      assert_equal([[key, 1, "other"]], client.waiters(key).map { |one| [one.key, one.position, one.session] })
      lock.release
      result(waiter).release
    end
  end

  def test_pages
    keys = Array.new(5) { |n| "#{key}:#{n}" }
    client.acquire_many(keys) { assert_equal keys, other.locks(prefix: key, page_size: 2).map(&:key) }
  end

  def test_a_request_to_stop
    client.lock(key) do |lock|
      told = Queue.new
      lock.on_stopping { |stopping| told << stopping.reason }
      other.stop(key, reason: "deploy")
      assert_equal "deploy", told.pop
      assert lock.stopping?
      assert_equal "deploy", lock.stopping.reason
      lock.on_stopping { told << "at once" }
      assert_equal "at once", told.pop
    end
    assert_raises(Locksidecar::NotHeld) { other.stop(key) }
  end

  def test_events
    events = Queue.new
    watching = aside { other.events(key) { |event| events << event } }
    assert_equal :state, events.pop.type
    client.lock(key) { assert_equal :acquired, events.pop.type }
    assert_equal :released, events.pop.type
    watching.kill.join
    stream = other.events(key)
    assert_equal :state, stream.next.type
    waits = aside { stream.next }
    Thread.pass until waits.status == "sleep"
    stream.close
    assert_raises(Locksidecar::Unavailable) { result(waits) }
  end

  def test_a_leader
    led = client.lead(key, data: { at: "me" }) do |term|
      assert_equal({ "at" => "me" }, other.leader(key))
      assert_operator term.token, :>, 0
      "led"
    end
    assert_equal "led", led
    assert_nil other.leader(key)
    terms = 0
    led = client.lead(key) do |term|
      next "second" if (terms += 1) == 2

      terms == 1 && other.stop(key)
      term.wait_lost(LONG)
    end
    assert_equal "second", led
    seen = Queue.new
    watching = aside { other.watch_leader(key) { |data| seen << data } }
    assert_nil seen.pop
    client.lead(key, data: 1) { assert_equal 1, seen.pop }
    assert_nil seen.pop
    watching.kill
  end

  def test_a_ttl_lock_belongs_to_nobody
    lock = client.acquire(key, bind: :ttl, ttl: 60)
    assert_equal lock.token, other.check(key, lock.token).token
    assert_in_delta 3600, other.extend(key, lock.token, 3600).expires_in, 200
    assert_in_delta 60, lock.extend(60).expires_in, 10
    assert other.release(key, lock.token)
    assert_raises(Locksidecar::NotHolder) { lock.check }
  end

  def test_a_lock_that_is_released_is_over
    lock = client.acquire(key)
    assert lock.release
    assert_predicate lock, :released?
    assert_equal("released", assert_raises(Locksidecar::NotHolder) { lock.release }.reason)
    assert_raises(Locksidecar::NotHolder) { lock.check }
    assert_includes lock.inspect, "released"
  end

  def test_a_release_in_the_block
    client.lock(key) { |lock| assert lock.release }
  end

  def test_break
    client.acquire(key)
    other.force_release(key)
    free(other, key)
    assert_raises(Locksidecar::NotHeld) { other.force_release(key) }
  end

  def test_reentry
    client.lock(key, reentrant: true) do |outer|
      client.lock(key, reentrant: true) do |inner|
        assert_equal [outer.token, 2], [inner.token, inner.reentry]
      end
      assert_equal 1, outer.check.reentry
    end
    free(other, key)
  end

  def test_the_same_request_gets_the_same_grant
    name = SecureRandom.uuid
    lock = client.acquire(key, request_id: name)
    assert_equal lock.token, client.acquire(key, request_id: name).token
    assert lock.release
  end

  def test_hold_times
    client.lock(key, min_hold: 0.2) { nil }
    assert_raises(Locksidecar::LockHeld) { other.acquire(key, wait: 0) }
    other.acquire(key, wait: LONG).release
  end

  def test_a_closed_client
    lock = client.acquire(key)
    client.close
    client.close
    free(other, key)
    assert_equal "disconnected", lock.lost.reason
    [-> { client.acquire(key) }, -> { client.get(key) }, -> { client.describe }, -> { client.events(key) }].each do |call|
      assert_match(/was closed/, assert_raises(Locksidecar::SessionEnded, &call).message)
    end
  end

  def test_close_ends_a_wait_on_a_connection_that_was_used_before
    closing = new_client
    held = [key, "#{key}:a", "#{key}:b"].map { |name| other.acquire(name) }
    # Each of these waits has a connection.
    waits = held.drop(1).map { |lock| aside { closing.acquire(lock.key, bind: :ttl).release } }
    held.drop(1).each { |lock| waiting(other, lock.key) }
    held.drop(1).each(&:release)
    waits.each { |wait| result(wait) }
    idle = closing.transport.connections.instance_variable_get(:@idle)
    before = idle.size
    waiter = aside { assert_raises(Locksidecar::SessionEnded) { closing.acquire(key, bind: :ttl) } }
    waiting(other, key)
    assert_equal before - 1, idle.size
    closing.close
    assert_match(/was closed/, result(waiter).message)
    waiting(other, key, 0)
  end

  def test_a_call_makes_no_connection_for_a_closed_client
    closing = new_client
    connections = closing.transport.connections
    connections.define_singleton_method(:take) do |patience|
      super(patience).tap do |connection, _|
        connection.define_singleton_method(:open) do |*how|
          closing.close
          super(*how)
        end
      end
    end
    ended = assert_raises(Locksidecar::SessionEnded) { closing.acquire(key, wait: 0, bind: :ttl) }
    assert_match(/was closed/, ended.message)
    assert_equal 0, connections.size
    assert_predicate other.get(key, fresh: true), :free?
  end

  def test_description
    assert_includes client.describe.features, "sessions"
    assert_match(/\S/, client.describe.version)
  end

  def test_object_extend
    more = Module.new { def more = "more" }
    assert_equal "more", client.extend(more).more
    client.lock(key) { |lock| assert_equal "more", lock.extend(more).more }
  end

  def test_keys_of_any_text
    ["a b/c?d#e%f", "größe:日本", ".", "..", "'\"\\"].each do |name|
      name = "#{key}#{name}"
      client.lock(name) { assert_includes client.locks(prefix: key).map(&:key), name }
    end
    latin = "#{key}gr\u00f6\u00dfe".encode("ISO-8859-1")
    client.lock(latin) { |lock| assert_equal "#{key}größe", lock.key }
  end
end
