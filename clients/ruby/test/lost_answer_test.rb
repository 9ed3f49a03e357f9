# frozen_string_literal: true

require_relative "helper"
require_relative "relay"

# Proves: client given up, client lost answer
# Answers that are lost between the sidecar and the client.
class LostAnswerTest < TestCase
  def relay = @relay ||= Relay.new(path).tap { |made| @made << made }

  def test_a_waiting_call_is_repeated_and_gets_the_same_grant
    client = new_client(relay.path)
    client.acquire("other").release
    relay.lose = 2
    lock = client.acquire(key)
    assert_equal 4, relay.asked.grep(/\APUT /).size
    assert_predicate client.get(key), :mine?
    assert_equal 1, lock.check.reentry
    assert lock.release
    free(client, key)
  end

  def test_a_release_that_is_refused_does_not_keep_the_other_locks
    client = new_client(relay.path)
    relay.lose = 2
    relay.refuse = 1
    keys = %w[a b c].map { |name| "#{key}:#{name}" }
    assert_raises(Locksidecar::Unavailable) { client.acquire_many(keys, wait: 0) }
    keys.drop(1).each { |one| assert_predicate client.get(one, fresh: true), :free? }
  end

  def test_a_repeated_reentry_is_counted_once
    client = new_client(relay.path)
    client.lock(key, reentrant: true) do |outer|
      relay.lose = 1
      client.lock(key, reentrant: true) { |inner| assert_equal 2, inner.reentry }
      assert_equal 1, outer.check.reentry
    end
  end

  def test_a_lock_that_is_lost_by_the_clock_is_released_as_often_as_it_was_entered
    client = new_client(relay.path)
    assert_raises(Locksidecar::LockLost) do
      client.lock(key, ttl: 1, reentrant: true) do |outer|
        client.lock(key, ttl: 1, reentrant: true) do
          relay.mute = true
          assert outer.wait_lost(20)
          relay.mute = false
        end
      end
    end
    free(other, key)
  end

  def test_a_call_without_an_answer_withdraws_its_grant
    %i[session ttl].each do |bind|
      client = new_client(relay.path, timeout: 1)
      client.acquire("other").release
      client.transport.connections.drop_idle
      relay.lose = 1
      assert_raises(Locksidecar::Unavailable) { client.acquire(key, wait: 0, bind:) }
      free(other, key)
      relay.lose = 1
      client.transport.connections.drop_idle
      assert_raises(Locksidecar::Unavailable) { client.acquire_many([key, "#{key}2"], wait: 0, bind:) { flunk } }
      free(other, key)
      free(other, "#{key}2")
    end
  end

  def test_an_acquire_whose_answer_cannot_be_read_withdraws_its_grant
    client = new_client(relay.path)
    relay.spoil = 1
    assert_raises(Locksidecar::ProtocolError) { client.acquire(key, wait: 0, bind: :ttl) }
    free(other, key)
    relay.spoil = 1
    assert_raises(Locksidecar::ProtocolError) { client.acquire_many([key, "#{key}2"], wait: 0, bind: :ttl) { flunk } }
    [key, "#{key}2"].each { |name| free(other, name) }
  end

  def test_a_closed_client_withdraws_its_grant
    closing = new_client(relay.path)
    closing.acquire("other").release
    connections = closing.transport.connections
    connections.drop_idle
    relay.lose = 1
    lost = relay.method(:lose)
    connections.define_singleton_method(:take) do |patience|
      closing.close if lost.call.zero? # the acquire has lost its answer, and goes on
      super(patience)
    end
    ended = assert_raises(Locksidecar::SessionEnded) { closing.acquire(key, bind: :ttl) }
    assert_match(/was closed/, ended.message)
    free(other, key)
    assert_equal 2, relay.asked.grep(/\APUT /).size
  end

  def test_a_grant_with_a_request_id_of_the_app_stays
    client = new_client(relay.path)
    name = SecureRandom.uuid
    first = client.acquire(key, bind: :ttl, request_id: name)
    client.transport.connections.drop_idle
    relay.lose = 1
    assert_raises(Locksidecar::Unavailable) { client.acquire(key, wait: 0, bind: :ttl, request_id: name) }
    assert_equal 1, first.check.reentry
    assert_equal first.token, client.acquire(key, bind: :ttl, request_id: name).token
    first.release
  end

  # The connection breaks after the sidecar has released it: the call is made again, and finds that.
  def test_a_release_whose_answer_is_lost_may_be_called_again
    client = new_client(relay.path)
    lock = client.acquire(key)
    relay.lose_releases = 2
    assert_raises(Locksidecar::Unavailable) { lock.release }
    refute_predicate lock, :released?
    assert lock.release
    assert_predicate lock, :released?
    free(other, key)
  end

  def test_an_acquire_goes_behind_a_release_without_an_answer
    client = new_client(relay.path)
    2.times do
      relay.lose_releases = 0
      lock = client.acquire(key)
      relay.lose_releases = 2
      assert_raises(Locksidecar::Unavailable) { lock.release }
    end
    relay.lose_releases = 0
    client.lock(key, &:check)
    free(other, key)
  end

  def test_releases_without_an_answer_while_the_sidecar_hangs
    client = new_client(sidecar.path, timeout: 0.3, ttl: 60)
    lock = client.acquire(key)
    sidecar.hang
    assert_raises(Locksidecar::Unavailable) { lock.release }
    assert_raises(Locksidecar::Unavailable) { client.lock("#{key}:2", wait: 0) { flunk } }
    refute_predicate lock, :released?
    sidecar.resume
    client.transport.timeout = LONG
    assert lock.release
    free(client, key)
    free(client, "#{key}:2")
  end

  def test_a_block_whose_release_had_no_answer_may_be_entered_again
    client = new_client(sidecar.path, timeout: 0.3, ttl: 60)
    assert_raises(Locksidecar::Unavailable) { client.lock(key) { sidecar.hang } }
    sidecar.resume
    client.transport.timeout = LONG
    client.lock(key) { nil }
    free(client, key)
  end

  def test_a_release_of_a_ttl_lock_that_the_store_has_forgotten
    client = new_client(sidecar.path, timeout: 0.3)
    lock = client.acquire(key, bind: :ttl, ttl: 600)
    sidecar.hang
    assert_raises(Locksidecar::Unavailable) { lock.release }
    sidecar.resume
    client.transport.timeout = LONG
    new_client(sidecar.path).acquire(key, wait: LONG).release
    assert lock.release
  end
end
