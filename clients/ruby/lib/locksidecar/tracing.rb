# frozen_string_literal: true

module Locksidecar
  # The trace context of calls, if the app has loaded OpenTelemetry.
  # @api private
  module Tracing
    # The headers that the sidecar reads.
    NAMES = %w[traceparent tracestate baggage].freeze

    # The header lines of the current context. Empty without OpenTelemetry, or outside of a span.
    def self.headers
      return "" unless defined?(::OpenTelemetry::Trace)

      context = ::OpenTelemetry::Trace.current_span.context
      return "" unless context.valid?

      carrier = {}
      ::OpenTelemetry.propagation.inject(carrier)
      # An app whose propagators are of another kind still has its span.
      carrier["traceparent"] ||= "00-#{context.hex_trace_id}-#{context.hex_span_id}-#{flags(context)}"
      NAMES.filter_map { |name| "#{name}: #{carrier[name]}\r\n" if carrier[name]&.match?(/\A[\x20-\x7e]+\z/) }.join
    end

    def self.flags(context) = context.trace_flags.sampled? ? "01" : "00"
    private_class_method :flags
  end
  private_constant :Tracing
end
