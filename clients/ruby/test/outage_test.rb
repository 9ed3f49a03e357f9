# frozen_string_literal: true

require_relative "helper"

# The sidecar restarts, drains, hangs, is away, or is something else.
class OutageTest < TestCase
  def own(**options) = new_client(sidecar.path, **options)

  def test_a_sidecar_that_restarts_under_a_waiting_client
    one, two = own, own
    lock = one.acquire(key)
    waiter = aside { two.acquire(key) }
    waiting(one, key)
    sidecar.kill
    assert lock.wait_lost(LONG)
    assert_equal "disconnected", lock.lost.reason
    assert_raises(Locksidecar::LockLost) { lock.release }
    assert_match(/nobody listens|no such socket/, assert_raises(Locksidecar::Unavailable) { one.acquire(key, wait: 0) }.message)
    sidecar.start
    granted = result(waiter)
    assert_predicate two.get(key), :mine?
    assert_nil one.try_acquire(key)
    granted.release
  end

  def test_a_sidecar_that_drains_under_a_waiting_client
    one, two = own, own
    one.acquire(key)
    waiter = aside { two.acquire(key) }
    waiting(one, key)
    sidecar.stop
    sidecar.start
    assert result(waiter).token
  end

  def test_an_idle_client_does_not_notice_a_restart
    client = own
    client.lock(key) { nil }
    sidecar.stop
    sidecar.start
    client.lock(key, wait: 0) { nil }
  end

  def test_a_dead_idle_connection_is_replaced
    client = own
    lock = client.acquire(key)
    2.times do
      client.transport.connections.instance_variable_get(:@idle).each(&:shut)
      assert_predicate client.get(key), :mine?
    end
    client.transport.connections.instance_variable_get(:@idle).each(&:shut)
    assert lock.release
    client.acquire(key)
    client.transport.connections.instance_variable_get(:@idle).each(&:shut)
    client.force_release(key) # it may not be repeated, but nothing was sent
  end

  def test_other_heads_may_come_before_the_answer
    heads = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    text = "#{heads}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    [1, 3, text.size].each do |size|
      parser = Locksidecar.const_get(:Wire)::AnswerParser.new
      answers = text.scan(/.{1,#{size}}/m).map { |piece| parser.feed(piece) }
      assert_equal [200, "{}"], answers.pop.to_a.values_at(0, 2)
      assert_empty answers.compact
    end
  end

  # Proves: client deadline
  def test_a_wait_without_the_sidecar_ends_in_its_time
    client = own(reconnect: 0.3)
    client.acquire(key)
    waiter = aside { client.acquire(key) }
    waiting(client, key)
    began = now
    sidecar.kill
    assert_raises(Locksidecar::Unavailable) { result(waiter) }
    assert_includes 0.3..25, now - began # it would be 30 s
    sidecar.start
    patient = own(reconnect: 3600)
    patient.acquire("#{key}:2")
    waiter = aside { patient.acquire("#{key}:2", wait: 2) }
    waiting(patient, "#{key}:2")
    sidecar.kill
    assert_raises(Locksidecar::Unavailable) { result(waiter) }
  end

  # Proves: client deadline
  def test_a_sidecar_that_hangs
    patient = own
    blocked = patient.acquire("#{key}:blocked")
    Locksidecar::Inside[:Stream].silence = 0.5 # for streams that are opened from now on
    client = own(reconnect: 0)
    lock = client.acquire(key, ttl: 3600)
    waiter = aside { client.acquire("#{key}:blocked") }
    waiting(patient, "#{key}:blocked")
    sidecar.hang
    patient.transport.timeout = 0.2
    assert_match(/did not answer .* within 0.2 s/, assert_raises(Locksidecar::Unavailable) { blocked.check }.message)
    assert lock.wait_lost(LONG) # the stream was silent for too long
    assert_raises(Locksidecar::Unavailable) { result(waiter) }
    sidecar.resume
    assert_raises(Locksidecar::LockLost) { lock.check }
  ensure
    Locksidecar::Inside[:Stream].silence = 45.0
  end

  def test_a_session_that_ends_is_replaced
    lock = client.acquire(key)
    id = client.transport.live_session.id
    call = Locksidecar.const_get(:Call)
    other.transport.perform(call.new("DELETE", "/v1/sessions/#{id}", timeout: LONG)) { nil }
    assert lock.wait_lost(LONG)
    client.lock(key, wait: 0) { |again| assert_operator again.token, :>, lock.token }
  end

  def test_a_campaign_goes_on_through_an_outage
    client = own
    terms = Queue.new
    leading = aside do
      client.lead(key) do |term|
        terms << term
        term.wait_lost(LONG)
        raise ZeroDivisionError if terms.closed?
      end
    end
    terms.pop
    sidecar.kill
    sidecar.start
    assert_operator terms.pop.token, :>, 0
    terms.close
    sidecar.kill
    assert_raises(ZeroDivisionError) { result(leading) }
  end

  def test_no_sidecar
    missing = assert_raises(Locksidecar::Unavailable) { new_client("/tmp/none/s.sock").acquire(key) }
    assert_equal ["/tmp/none/s.sock", "unreachable"], [missing.path, missing.code]
    assert_match(/no such socket.*LOCKSIDECAR_SOCKET.*mounted/, missing.message)
    assert_match(/no socket/, assert_raises(Locksidecar::Unavailable) { new_client(__FILE__).get(key) }.message)
    long = assert_raises(Locksidecar::Unavailable) { new_client("/tmp/#{"x" * 200}").get(key) }
    assert_match(/at most 107 bytes/, long.message)
  end

  # A server that refuses each call with a problem, in a folder of its own.
  def refusing(code)
    body = JSON.generate(code:, detail: "not now")
    Dir.mktmpdir do |folder|
      server = UNIXServer.new("#{folder}/s")
      thread = Thread.new do
        loop do
          socket = server.accept
          nil until socket.gets.strip.empty?
          socket.write("HTTP/1.1 503 x\r\nRetry-After: 3\r\nConnection: close\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}")
          socket.close
        end
      end
      yield "#{folder}/s"
    ensure
      thread&.kill&.join
      server&.close
    end
  end

  def test_unavailable_is_any_sidecar_that_cannot_serve_now
    away = assert_raises(Locksidecar::NoAnswer) { new_client("/tmp/none/s.sock").get(key) }
    assert_kind_of Locksidecar::Unavailable, away
    assert_nil away.retry_after
    { "draining" => Locksidecar::Draining, "store_unavailable" => Locksidecar::StoreUnavailable }.each do |code, kind|
      refusing(code) do |path|
        error = assert_raises(kind) { new_client(path).get(key) }
        assert_kind_of Locksidecar::Unavailable, error
        assert_in_delta 3.0, error.retry_after
      end
    end
    refusing("limit") do |path|
      error = assert_raises(Locksidecar::LimitReached) { new_client(path).get(key) }
      refute_kind_of Locksidecar::Unavailable, error
    end
  end

  def test_something_else_listens
    Dir.mktmpdir do |folder|
      server = UNIXServer.new("#{folder}/s")
      ["hello\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhey", "HTTP/1.1 200 OK\r\n\r\n"].each do |answer|
        thread = aside do
          server.accept.tap { |socket| socket.readpartial(9999) and socket.write(answer) }
        end
        wrong = assert_raises(Locksidecar::ProtocolError) { new_client("#{folder}/s").get(key) }
        assert_match(/is this the socket of a locksidecar/, wrong.message)
        result(thread).close
      end
      thread = aside { server.accept.close }
      assert_equal("connection_lost", assert_raises(Locksidecar::Unavailable) { new_client("#{folder}/s").get(key) }.code)
      thread.join
    end
  end

  def test_the_usual_socket
    before = ENV.to_h.slice("LOCKSIDECAR_SOCKET", "HOME")
    ENV["LOCKSIDECAR_SOCKET"] = "/tmp/named"
    assert_includes Locksidecar::Client.new.inspect, "/tmp/named"
    ENV["LOCKSIDECAR_SOCKET"] = ""
    ENV["HOME"] = "/home/ada"
    usual = File.exist?("/run/locksidecar") ? "/run/locksidecar/" : "/home/ada/.locksidecar/"
    assert_includes Locksidecar::Client.new.inspect, "#{usual}locksidecar.sock"
    assert_includes Locksidecar::Client.new(Pathname("/tmp/p")).inspect, "/tmp/p" if defined?(Pathname)
  ensure
    ENV.update(before)
    ENV.delete("LOCKSIDECAR_SOCKET") unless before.key?("LOCKSIDECAR_SOCKET")
  end

  def now = Locksidecar::Inside[:Clock].now
end
