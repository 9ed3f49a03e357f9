# frozen_string_literal: true

# OpenTelemetry for the tests: its SDK, if it is installed, or else what the client uses of opentelemetry-api 1.x, because
# the gems are no part of Debian. Telemetry.spans are the finished spans.
module Telemetry
  Span = Struct.new(:name, :kind, :attributes, :failed, :trace, :id, :parent)

  begin
    require "opentelemetry/sdk"
    ENV["OTEL_TRACES_EXPORTER"] = "none"
    EXPORTER = OpenTelemetry::SDK::Trace::Export::InMemorySpanExporter.new
    OpenTelemetry::SDK.configure do |config|
      config.add_span_processor(OpenTelemetry::SDK::Trace::Export::SimpleSpanProcessor.new(EXPORTER))
    end

    FINISHED = lambda do
      EXPORTER.finished_spans.map do |span|
        Span.new(span.name, span.kind, span.attributes, span.status.code == OpenTelemetry::Trace::Status::ERROR,
                 span.hex_trace_id, span.hex_span_id, span.hex_parent_span_id)
      end
    end
    RESET = EXPORTER.method(:reset)
  rescue LoadError
    require "securerandom"

    RECORDED = [] # rubocop:disable Style/MutableConstant
    FINISHED = -> { RECORDED }
    RESET = RECORDED.method(:clear)

    # The part of OpenTelemetry.
    module Fake
      class << self
        attr_writer :propagation

        def propagation = @propagation ||= Propagation

        def tracer_provider = self

        def tracer(_name, _version = nil) = self

        def start_span(name, with_parent: Context.current, attributes: {}, kind: :internal)
          parent = Trace.current_span(with_parent)
          Recorded.new(name, kind, attributes.dup, parent)
        end

        def in_span(name)
          span = start_span(name)
          Context.with_current(span) { yield span }
        ensure
          span.finish
        end
      end

      # The W3C header.
      module Propagation
        def self.inject(carrier, context: Context.current)
          carrier["traceparent"] = "00-#{context.hex_trace_id}-#{context.hex_span_id}-01"
        end
      end

      # A context is its span here.
      module Context
        def self.current = Thread.current[:context] || Recorded::NONE

        def self.with_current(context)
          before = Thread.current[:context]
          Thread.current[:context] = context
          yield
        ensure
          Thread.current[:context] = before
        end
      end

      # Spans.
      module Trace
        def self.current_span(context = Context.current) = context

        def self.context_with_span(span, parent_context:) = parent_context && span

        # Of a span.
        module Status
          def self.error(_description = "") = :error
        end
      end

      # A span, its context and its flags.
      class Recorded
        attr_reader :hex_trace_id, :hex_span_id
        attr_writer :status

        def initialize(name, kind, attributes, parent)
          @parent = parent
          @hex_trace_id = parent&.valid? ? parent.hex_trace_id : SecureRandom.hex(16)
          @hex_span_id = SecureRandom.hex(8)
          @span = Span.new(name, kind, attributes, false, @hex_trace_id, @hex_span_id, parent&.hex_span_id)
        end

        NONE = new(nil, nil, {}, nil)

        def context = self

        def trace_flags = self

        def valid? = !equal?(NONE)

        def sampled? = true

        def set_attribute(name, value) = @span.attributes[name] = value

        def finish
          @span.failed = @status == :error
          RECORDED << @span
        end
      end
    end
    ::OpenTelemetry = Fake
  end

  def self.spans = FINISHED.call

  def self.reset = RESET.call
end
