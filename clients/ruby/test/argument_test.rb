# frozen_string_literal: true

require_relative "helper"

# Proves: client wrong use
# A wrong argument is refused by its name.
class ArgumentTest < TestCase
  WRONG = {
    { wait: "5" } => [TypeError, /wait: "5" must be a number of seconds, not String/],
    { wait: true } => [TypeError, /wait: true/],
    { wait: -1 } => [Locksidecar::InvalidRequest, /wait: -1 is not between .*nil waits for ever/],
    { wait: Float::NAN } => [Locksidecar::InvalidRequest, /wait: NaN/],
    { ttl: 0.1 } => [Locksidecar::InvalidRequest, /ttl: 0.1 is not between 0.5 and 86400/],
    { max_hold: 1e9 } => [Locksidecar::InvalidRequest, /max_hold/],
    { min_hold: :no } => [TypeError, /min_hold/],
    { shared: 1 } => [TypeError, /shared: 1 must be true or false/],
    { reentrant: "yes" } => [TypeError, /reentrant/],
    { shared: true, limit: 0 } => [Locksidecar::InvalidRequest, /limit: 0 is not between 1 and 1000/],
    { shared: true, limit: 1.5 } => [TypeError, /limit: 1.5 must be a whole number/],
    { bind: 5 } => [TypeError, /bind: 5 must be a Symbol/],
    { bind: :pod } => [Locksidecar::InvalidRequest, /bind/],
    { owner: :me } => [TypeError, /owner: :me must be a String/],
    { owner: "\xff" } => [Locksidecar::InvalidRequest, /owner: "\\xFF" is no text in UTF-8/],
    { data: Object.new } => [TypeError, /data: it must be JSON, not Object/],
    { data: { 1 => 2 } } => [TypeError, /data: .*names are String or Symbol, not Integer/],
    { data: [Float::INFINITY] } => [Locksidecar::InvalidRequest, /data: it must be JSON, not Infinity/],
    { data: "x" * 5000 } => [Locksidecar::TooLarge, /data/],
    { request_id: "7" } => [Locksidecar::InvalidRequest, /request_id/],
    { timeout: 5 } => [ArgumentError, /unknown keyword: :timeout/],
    { on_loss: :cancel } => [ArgumentError, /on_loss: :cancel must be nil or :raise/]
  }.freeze

  def test_wrong_options
    WRONG.each do |options, (error, text)|
      wrong = assert_raises(error, options.inspect) { client.lock(key, **options) { flunk } }
      assert_match(text, wrong.message)
    end
    free(client, key)
  end

  def test_a_hash_that_contains_itself
    endless = []
    endless << endless
    assert_match(/levels/, assert_raises(Locksidecar::InvalidRequest) { client.acquire(key, data: endless) }.message)
  end

  def test_wrong_keys
    { 5 => TypeError, nil => TypeError, :a => TypeError, "" => Locksidecar::InvalidRequest,
      "a\0" => Locksidecar::InvalidRequest, "\xff" => Locksidecar::InvalidRequest,
      "x" * 600 => Locksidecar::InvalidRequest }.each do |wrong, error|
      assert_raises(error, wrong.inspect) { client.acquire(wrong) }
      assert_raises(error, wrong.inspect) { client.get(wrong) }
    end
    assert_match(/must be an Array of keys/, assert_raises(TypeError) { client.acquire_many("abc") }.message)
    assert_raises(Locksidecar::InvalidRequest) { client.acquire_many([]) }
  end

  def test_no_block
    %i[lock once lead].each do |name|
      assert_match(/needs a block.*use acquire/, assert_raises(ArgumentError) { client.public_send(name, key) }.message)
    end
    lock = client.acquire(key)
    assert_raises(ArgumentError) { lock.on_lost }
    assert_raises(ArgumentError) { lock.on_stopping }
  end

  def test_wrong_releases
    lock = client.acquire(key)
    assert_raises(TypeError) { lock.release(outcome: :success, result: Object.new) }
    assert_raises(Locksidecar::TooLarge) { lock.release(outcome: :success, result: "x" * 5000) }
    assert_raises(Locksidecar::InvalidRequest) { lock.release(outcome: :maybe) }
    assert_raises(TypeError) { client.release(key, "7") }
    refute_predicate lock, :released?
    lock.check
    assert lock.release
  end

  def test_wrong_clients
    assert_raises(TypeError) { Locksidecar::Client.new(5) }
    assert_raises(Locksidecar::InvalidRequest) { Locksidecar::Client.new(timeout: 0) }
    assert_raises(TypeError) { Locksidecar::Client.new(ttl: "1") }
    assert_raises(ArgumentError) { Locksidecar::Client.new(sockets: 1) }
    assert_raises(TypeError) { Marshal.dump(client) }
  end

  def test_numbers_of_all_kinds
    [0, 0.0, 1r, nil, Float::INFINITY].each { |wait| client.lock(key, wait:) { nil } }
  end

  def test_an_old_sidecar
    client.describe
    client.transport.instance_variable_set(:@features, %w[sessions release_by_id])
    lacking = assert_raises(Locksidecar::Unsupported) { client.stop(key) }
    assert_equal "stop", lacking.feature
    assert_match(/has no feature "stop".*update the sidecar/, lacking.message)
  end

  # Also if the call was made in another thread, as those of the main thread are.
  def test_the_trace_of_an_error_has_a_line_of_the_app
    assert_same Thread.main, Thread.current
    wrong = [-> { new_client("/nowhere").lock(key) { flunk } }, -> { client.release(key, 1) }, -> { client.stop(key) }]
    wrong.each do |call|
      error = assert_raises(Locksidecar::Error, &call)
      assert_includes error.backtrace.map { |line| line[/\A\S+:(\d+)/] }, call.source_location.join(":"), error.message
    end
  end

  def test_errors_have_their_facts
    assert_equal ["unsupported", nil],
[Locksidecar::Unsupported.new("a", "1").code, Locksidecar::Unsupported.new("a", "1").status]
    error = Locksidecar.const_get(:Problem).error({ "code" => "limit", "detail" => "wait_ms \"a:wait_ms\"" }, 429, "7")
    assert_kind_of Locksidecar::LimitReached, error
    assert_equal ["limit", 429, 7.0, "wait (in ms) \"a:wait_ms\" (limit)"],
[error.code, error.status, error.retry_after, error.message]
    odd = Locksidecar.const_get(:Problem).error("odd", 500)
    assert_equal ["http_500", Locksidecar::Error], [odd.code, odd.class]
  end
end
