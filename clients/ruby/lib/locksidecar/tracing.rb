# frozen_string_literal: true

module Locksidecar
  # Traces, if the app has loaded OpenTelemetry: a span for each acquire and each release, and the context of their calls.
  # Without its SDK the spans are empty. No span becomes the current one.
  # @api private
  module Tracing
    # The headers that the sidecar reads.
    NAMES = %w[traceparent tracestate baggage].freeze
    # The most characters of a key in a span.
    LONGEST = 512

    class << self
      # The context of this thread (fiber), for operations that run in another one. nil without OpenTelemetry. Not
      # `defined?`, because that of a nested name swallows all that is raised in it, such as Timeout::Error.
      def context = (::OpenTelemetry::Context.current if loaded?)

      # The header lines of a context. Empty outside of a span.
      def headers(context = self.context)
        span = context ? ::OpenTelemetry::Trace.current_span(context).context : nil
        return "" unless span&.valid?

        carrier = {}
        ::OpenTelemetry.propagation.inject(carrier, context:)
        # An app whose propagators are of another kind still has its span.
        carrier["traceparent"] ||= "00-#{span.hex_trace_id}-#{span.hex_span_id}-#{span.trace_flags.sampled? ? "01" : "00"}"
        NAMES.filter_map { |name| "#{name}: #{carrier[name]}\r\n" if carrier[name]&.match?(/\A[\x20-\x7e]+\z/) }.join
      end

      # Begins an acquire.
      def acquire(keys, mode, context = self.context) = begun("lock.acquire", keys, { "lock.mode" => mode }, context)

      # Begins a release.
      def release(key, token, context = self.context) = begun("lock.release", [key], { "lock.token" => token }, context)

      private

      def loaded? = Object.const_defined?(:OpenTelemetry) && ::OpenTelemetry.const_defined?(:Trace)

      def begun(name, keys, more, context) = context ? Operation.new(name, { **about(keys), **more }, context) : Untraced

      # What is no key is refused later.
      def about(keys)
        texts = keys.grep(String).map { |key| key.encode("UTF-8", invalid: :replace, undef: :replace).scrub[0, LONGEST] }
        types = texts.map { |text| text[/\A([^:]+):/, 1] }.uniq
        { (texts.one? ? "lock.key" : "lock.keys") => texts.one? ? texts.first : texts,
          "lock.type" => (types.first if types.one?) }.compact
      end
    end

    # Without OpenTelemetry.
    module Untraced
      def self.headers = ""

      def self.ended_by = yield
    end

    # An operation with all its calls. Its span has no texts of errors, because they may contain an app's data.
    class Operation
      # Of its calls.
      attr_reader :headers

      def initialize(name, attributes, context)
        @span = ::OpenTelemetry.tracer_provider.tracer("locksidecar", VERSION)
                               .start_span(name, with_parent: context, attributes:, kind: :client)
        @headers = Tracing.headers(::OpenTelemetry::Trace.context_with_span(@span, parent_context: context))
      end

      # The block does it, and the span ends with it. The block returns the answers with the grants, or that of the release.
      def ended_by
        answers = yield
        told = true
        answers.is_a?(Array) ? granted(answers) : note("released")
        answers
      rescue Exception => e # rubocop:disable Lint/RescueException -- it goes on
        failed(e) unless told
        told = true
        raise
      ensure
        note("caller_left") unless told # its thread is killed
        @span.finish
      end

      private

      def note(result) = @span.set_attribute("lock.result", result)

      def granted(answers)
        note(answers.all? { |one| one["reentry"] > 1 } ? "reentered" : "granted")
        @span.set_attribute("lock.token", answers.first["token"]) if answers.one?
      end

      def failed(error)
        case error
        when Error then note(error.code)
        when ArgumentError, TypeError, ThreadError then nil # of the app
        else return note("caller_left")
        end
        fault(error)&.then do |type|
          @span.set_attribute("error.type", type)
          @span.status = ::OpenTelemetry::Trace::Status.error
        end
      end

      # Why the operation needs attention: no answer, a fault of the sidecar or its store, or wrong use.
      def fault(error)
        return error.class.name unless error.is_a?(Error)

        unanswered = error.status.nil? && (error.is_a?(NoAnswer) || error.is_a?(ProtocolError))
        error.code if unanswered || (error.status && error.status >= 500)
      end
    end
    private_constant :Untraced, :Operation
  end
  private_constant :Tracing
end
