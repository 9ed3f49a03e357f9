# frozen_string_literal: true

require_relative "helper"

# The trace of an app goes with its calls. The gem is no part of Debian, so this has what we use of it.
class TracingTest < TestCase
  Context = Struct.new(:hex_trace_id, :hex_span_id, :sampled) do
    def valid? = !hex_trace_id.nil?

    def trace_flags = self

    def sampled? = sampled
  end

  # As of opentelemetry-api 1.x.
  module FakeTelemetry
    class << self
      attr_accessor :context, :carried

      def propagation = self

      def inject(carrier) = carrier.update(carried || {})
    end

    # Has the current span.
    module Trace
      Span = Struct.new(:context)

      def self.current_span = Span.new(FakeTelemetry.context)
    end
  end

  def test_the_context_of_the_current_span
    assert_equal "", headers # without the gem
    Object.const_set(:OpenTelemetry, FakeTelemetry)
    FakeTelemetry.context = Context.new
    assert_equal "", headers # outside of a span
    FakeTelemetry.context = Context.new("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", true)
    FakeTelemetry.carried = { "b3" => "x", "baggage" => "a=b", "tracestate" => "line\nbreak" }
    assert_equal "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nbaggage: a=b\r\n", headers
    Thread.new { client.lock(key) { seen } }.join
    client.lock(key) { seen } # the call is made in another thread
  ensure
    Object.send(:remove_const, :OpenTelemetry) if Object.const_defined?(:OpenTelemetry)
  end

  def seen
    assert_match(/\A00-0af7651916cd43dd8448eb211c80319c-/, other.get(key, fresh: true).holder.traceparent)
  end

  def headers = Locksidecar.const_get(:Tracing).headers
end
