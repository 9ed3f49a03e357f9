# frozen_string_literal: true

require_relative "helper"
require_relative "telemetry"

# The spans of acquires and releases, and the context that goes with calls: docs/api.md, Traces.
class TracingTest < TestCase
  def setup
    super
    Telemetry.reset
  end

  # Runs the block in a span of an app. Returns that span, and those of the client.
  def traced(&)
    tracer = OpenTelemetry.tracer_provider.tracer("app", "1")
    tracer.in_span("app", &)
    *ours, app = Telemetry.spans
    [app, *ours]
  end

  def about(span) = [span.name, span.kind, span.attributes, span.failed]

  def test_a_block_in_any_thread
    [->(&block) { block.call }, ->(&block) { Thread.new(&block).join }].each do |way|
      Telemetry.reset
      token = parent = nil
      way.call do
        app, acquire, release = traced do
          client.lock(key) do |lock|
            token = lock.token
            parent = other.get(key, fresh: true).holder.traceparent
          end
        end
        common = { "lock.key" => key, "lock.type" => "test", "lock.token" => token }
        assert_equal ["lock.acquire", :client, { **common, "lock.mode" => "exclusive", "lock.result" => "granted" }, false],
                     about(acquire)
        assert_equal ["lock.release", :client, { **common, "lock.result" => "released" }, false], about(release)
        assert_equal [app.id] * 2, [acquire.parent, release.parent]
        assert_equal "00-#{app.trace}-#{acquire.id}-01", parent
      end
      assert parent, "the assertions were not reached"
    end
  end

  def test_a_lock_by_hand
    app, _, release = traced { client.acquire(key).release }
    assert_equal ["lock.release", "released", app.id], [release.name, release.attributes["lock.result"], release.parent]
  end

  def results = Telemetry.spans.select { |span| span.name == "lock.acquire" }.map { |span| span.attributes["lock.result"] }

  def test_what_becomes_of_acquires
    client.lock(key, reentrant: true) do
      client.lock(key, reentrant: true) { nil }
      assert_nil other.try_acquire(key)
      assert_raises(Locksidecar::WaitTimeout) { other.acquire(key, wait: 0.001) }
      waiter = aside { other.acquire(key) }
      waiting(client, key)
      waiter.kill.join
      assert_raises(Timeout::Error) { Timeout.timeout(0.1) { other.acquire(key) } }
    end
    assert_equal %w[granted reentered held wait_timeout caller_left caller_left].sort, results.sort
    assert Telemetry.spans.none?(&:failed)
  end

  def test_several_keys
    client.acquire_many([key, "test", "other:a"], shared: true) { nil }
    acquire = Telemetry.spans.first.attributes
    assert_equal({ "lock.keys" => [key, "test", "other:a"], "lock.mode" => "shared", "lock.result" => "granted" }, acquire)
    assert_equal ["lock.acquire"] + (["lock.release"] * 3), Telemetry.spans.map(&:name)
  end

  def test_what_needs_attention
    assert_raises(Locksidecar::Unavailable) { new_client("/nowhere").acquire(key) }
    client.lock(key) { assert_raises(ThreadError) { client.acquire(key) } }
    failed = Telemetry.spans.select(&:failed).map { |span| span.attributes.values_at("error.type", "lock.result") }
    assert_equal [%w[unreachable unreachable], ["ThreadError", nil]], failed
  end

  # An app may have other propagators, and what they write may be of no use.
  def test_other_propagators
    before = OpenTelemetry.propagation
    OpenTelemetry.propagation = Odd
    app, = traced { @lines = headers }
    assert_equal "traceparent: 00-#{app.trace}-#{app.id}-01\r\nbaggage: a=b\r\n", @lines
    assert_equal "", headers # outside of a span
  ensure
    OpenTelemetry.propagation = before
  end

  def test_without_the_gem
    code = "client = Locksidecar::Client.new; client.lock('plain') { print Locksidecar.const_get(:Tracing).headers.inspect }"
    assert_equal '""', ruby(code).read
  end

  def headers = Locksidecar.const_get(:Tracing).headers

  # A propagator.
  module Odd
    def self.inject(carrier, **) = carrier.update("b3" => "x", "baggage" => "a=b", "tracestate" => "line\nbreak")
  end
end
