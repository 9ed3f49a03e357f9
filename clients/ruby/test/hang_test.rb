# frozen_string_literal: true

require_relative "helper"

# Proves: client own clock
# A sidecar that hangs, and locks whose end nobody tells: this process's clock does.
class HangTest < TestCase
  IN_TIME = 20 # seconds; half of the silence after which a stream counts as broken

  def test_a_loss_is_told_in_time
    client = new_client(sidecar.path)
    lost = assert_raises(Locksidecar::LockLost) do
      client.lock(key, ttl: 2) do |lock|
        client.lock("#{key}:long", ttl: 3600) do |long|
          sleep(3)
          refute lock.lost? # it was renewed, and the client has asked
          told = Queue.new
          lock.on_lost { |lost| told << lost.reason }
          sidecar.hang
          began = now
          assert lock.wait_lost(IN_TIME)
          assert_operator now - began, :>, 0.5
          assert_equal "expired", told.pop
          refute long.lost?
          sidecar.resume
          long.check
        end
      end
    end
    assert_equal "expired", lost.reason
    free(client, key)
    client.lock(key, wait: LONG) { nil }
  end

  # Meanwhile the client gives back what it has lost before. That has no answer.
  def test_each_loss_is_told_in_time
    client = new_client(sidecar.path)
    first, second = [1, 2].map { |ttl| client.acquire("#{key}:#{ttl}", ttl:) }
    acquired = now
    sidecar.hang
    assert first.wait_lost(IN_TIME) && second.wait_lost(IN_TIME)
    took = now - acquired
    sidecar.resume
    assert_operator took, :<, 2.8
    free(client, "#{key}:1")
    free(client, "#{key}:2")
  end

  def test_a_question_has_no_more_time_than_the_first_lock
    session = Locksidecar::Inside[:Session].new("s", -> {})
    at = now
    held = lambda do |token, ends|
      value = { "key" => "k", "token" => token, "waited_ms" => 0, "expires_in_ms" => 30_000, "reentry" => 1 }
      session.hold(value, at - 30 + ends, who: 1, owner: nil, request_id: "r", reentrant: false).grant
    end
    first, second = held.call(1, -0.5), held.call(2, 20)
    assert_equal 1.0, session.patience(first) # the process was halted, and the sidecar may have renewed both
    assert_equal [first], session.unanswered(first)
    session.lost(first, "expired")
    assert_includes 19..20, session.patience(second)
    third = held.call(3, 2)
    assert_includes 1..2, session.patience(second)
    assert_includes 1..2, session.patience(third)
    fourth = held.call(4, -0.1)
    assert_equal 0.25, session.patience(fourth) # the sidecar hangs
    session.answered
    assert_equal 1.0, session.patience(fourth)
  end

  # What is lost is given back. A lock that is held meanwhile comes first.
  def test_many_releases_delay_no_question
    client = new_client(sidecar.path)
    keys = Array.new(100) { |n| "#{key}:#{n}" }
    many = client.acquire_many(keys, ttl: 1)
    other = client.acquire(key, ttl: 2)
    acquired = now
    sidecar.hang
    assert other.wait_lost(IN_TIME)
    took = now - acquired
    sidecar.resume
    assert_operator took, :<, 8 # each release of a lost lock takes 0.1 s
    assert many.all?(&:lost?)
    keys.each { |one| free(client, one) }
  end

  # Proves: client deadline
  def test_threads_that_wait_for_a_session_fail_together
    client = new_client(sidecar.path, timeout: 1)
    sidecar.hang
    began = now
    failed = Array.new(20) { aside { begin client.try_acquire(key) rescue $! end } }.map { |thread| result(thread) }
    assert_operator now - began, :<, 8
    failed.each { |error| assert_kind_of Locksidecar::Unavailable, error }
    sidecar.resume
    assert client.acquire(key, wait: LONG)
  end

  def test_a_short_hang_loses_nothing
    client = new_client(sidecar.path)
    client.lock(key, ttl: 30) do |lock|
      sidecar.hanging { refute lock.wait_lost(1) }
      lock.check
    end
  end

  # Proves: client leader
  def test_a_leader_ends_its_term_in_time
    client = new_client(sidecar.path)
    terms = 0
    led = client.lead(key, ttl: 2) do |term|
      next "again" if (terms += 1) > 1

      sidecar.hang
      in_time = term.wait_lost(IN_TIME)
      sidecar.resume
      in_time ? "in time" : "late"
    end
    assert_equal "again", led
  end

  # Proves: client loss
  def test_a_loss_is_raised_in_the_block
    client = new_client(sidecar.path)
    [-> { sidecar.lose(key) }, -> { sidecar.hang }].each do |trouble|
      began = now
      lost = assert_raises(Locksidecar::LockLost) do
        client.lock(key, ttl: 2, wait: LONG, on_loss: :raise) do
          trouble.call
          sleep(LONG)
        end
      end
      assert_includes %w[forced expired], lost.reason
      assert_operator now - began, :<, IN_TIME
    end
    sidecar.resume
    client.lock("#{key}:2", on_loss: :raise) { sleep(0.01) } # nothing comes later
    free(client, key)
  end

  # Proves: client loss
  def test_a_loss_that_comes_with_the_end_of_the_block_stays_there
    client = new_client
    200.times do |n|
      begin
        client.lock(key, wait: LONG, on_loss: :raise) do
          aside { sleep(n * 0.00001) and begin other.force_release(key) rescue Locksidecar::NotHeld end }
          sleep(rand * 0.002)
        end
      rescue Locksidecar::LockLost => e
        assert_equal "forced", e.reason
      end
      5.times { Thread.pass } # outside of the block nothing is raised
    end
  end

  # Proves: client loss
  def test_a_loss_after_the_block_is_not_raised
    client = new_client(sidecar.path, timeout: 0.3)
    held = nil
    assert_raises(Locksidecar::Unavailable) do
      client.lock(key, ttl: 2, on_loss: :raise) do |lock|
        held = lock
        sidecar.hang
      end
    end
    assert held.wait_lost(IN_TIME)
    sleep(0.01)
  end

  def test_a_leader_that_is_asked_to_stop_is_raised_in
    terms = 0
    led = client.lead(key, on_loss: :raise) do
      next "second" if (terms += 1) > 1

      other.stop(key)
      sleep(LONG)
    end
    assert_equal "second", led
  end

  # Proves: client loss
  def test_a_block_without_its_lock_ends_with_an_error
    lost = assert_raises(Locksidecar::LockLost) do
      client.lock(key) do |lock|
        other.force_release(key)
        assert lock.wait_lost(LONG)
        assert_equal "forced", lock.lost.reason
      end
    end
    assert_equal ["forced", key], [lost.reason, lost.key]
    Helper.said.clear
    assert_raises(ZeroDivisionError) do
      client.lock(key) do
        other.force_release(key)
        1 / 0
      end
    end
    assert_match(/could not be released.*forced/, Helper.said.join)
    lost = assert_raises(Locksidecar::LockLost) { client.lock(key, max_hold: 1) { |lock| assert lock.wait_lost(LONG) } }
    assert_equal "max_hold", lost.reason
  end

  def test_a_ttl_lock_ends_although_nobody_tells_it
    client = new_client(sidecar.path)
    lock = client.acquire(key, bind: :ttl, ttl: 0.5)
    told = Queue.new
    lock.on_lost { |lost| told << lost.reason }
    sidecar.hanging do
      assert lock.wait_lost(IN_TIME)
      assert_equal "expired", told.pop
      assert_equal 0, lock.expires_in
      lock.on_lost { told << "at once" }
      assert_equal "at once", told.pop
    end
    free(client, key)
    assert_equal("expired", assert_raises(Locksidecar::LockLost) { lock.check }.reason)
    assert_raises(Locksidecar::LockLost) { lock.release }
    until_true("the thread of the news has ended") { !Locksidecar::Inside[:News].busy? }
  end

  def test_an_extension_moves_the_end_of_a_ttl_lock
    lock = client.acquire(key, bind: :ttl, ttl: 3600)
    told = aside { lock.wait_lost(IN_TIME) }
    Thread.pass until told.status == "sleep"
    lock.extend(0.5) # sooner than the waiter knew
    assert result(told)
    assert_equal "expired", lock.lost.reason
    lock.extend(60)
  rescue Locksidecar::LockLost
    assert_equal "expired", lock.lost.reason # what comes after the end does not undo it
  end

  def test_the_store_decides_about_the_release_of_a_ttl_lock
    lock = client.acquire(key, bind: :ttl, ttl: 3600)
    lock.grant.lost.expires(now)
    assert lock.lost?
    assert lock.release
    assert_equal "expired", lock.lost.reason
    free(client, key)
  end

  def test_an_older_answer_that_is_read_late_sets_nothing_back
    grant = Locksidecar::Inside[:Grant].new("a", 7, nil)
    answer = ->(ms) { { "expires_in_ms" => ms, "waited_ms" => 0, "reentry" => 1 } }
    at = now
    grant.note(answer.call(9000), at)
    grant.note(answer.call(1000), at - 1)
    assert_in_delta at + 9, grant.expires_at, 0.001
    grant.released("released" => true, "reentry" => 0)
    grant.note(answer.call(10), at + 1)
    refute grant.lost.happened?
  end

  def now = Locksidecar::Inside[:Clock].now
end
