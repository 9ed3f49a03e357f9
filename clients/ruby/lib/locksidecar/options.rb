# frozen_string_literal: true

require "json"

module Locksidecar
  # Checks of arguments.
  # @api private
  module Check
    LEAST_TTL = 0.5 # seconds
    DAY = 86_400.0 # seconds; the sidecar's limit
    MOST_NESTED = 100 # of JSON

    module_function

    # A duration in seconds: a number, or what is like one (ActiveSupport::Duration).
    def seconds(name, value, least: 0.0, most: DAY)
      unless value.is_a?(Numeric) && value.real?
        raise TypeError, "#{name}: #{value.inspect} must be a number of seconds, not #{value.class}"
      end

      number = value.to_f
      return number if number >= least && number <= most # not NaN

      more = name == :wait ? " (nil waits for ever)" : ""
      raise Problem.invalid("#{name}: #{value.inspect} is not between #{least} and #{most} seconds#{more}")
    end

    def text(name, value)
      raise TypeError, "#{name}: #{value.inspect} must be a String, not #{value.class}" unless value.is_a?(String)

      utf8 = value.encoding == Encoding::UTF_8 ? value : value.encode(Encoding::UTF_8)
      return utf8 if utf8.valid_encoding?

      raise Problem.invalid("#{name}: #{value.inspect} is no text in UTF-8")
    rescue EncodingError => e
      raise Problem.invalid("#{name}: #{value.inspect} has no form in UTF-8 (#{e.message})")
    end

    # One of the names of an option.
    def word(name, value)
      raise TypeError, "#{name}: #{value.inspect} must be a Symbol" unless value.is_a?(Symbol) || value.is_a?(String)

      text(name, value.to_s)
    end

    def whole(name, value)
      raise TypeError, "#{name}: #{value.inspect} must be a whole number" unless value.is_a?(Integer)

      value
    end

    def yes_or_no(name, value)
      raise TypeError, "#{name}: #{value.inspect} must be true or false" unless [true, false].include?(value)

      value
    end

    def keys(keys)
      raise TypeError, "keys: #{keys.inspect} must be an Array of keys, not #{keys.class}" unless keys.is_a?(Array)

      keys.map { |key| text(:key, key) }
    end

    # A value that JSON can carry. JSON.generate alone would make a text of any object.
    def json(name, value, depth = 0)
      case value
      when nil, true, false, Integer then value
      when String, Symbol then text(name, value.to_s)
      when Float then value.finite? or raise Problem.invalid("#{name}: it must be JSON, not #{value}")
      when Array, Hash
        raise Problem.invalid("#{name}: it must be JSON of at most #{MOST_NESTED} levels") if depth >= MOST_NESTED

        value.each { |one| parts(name, value, one).each { |part| json(name, part, depth + 1) } }
      else raise TypeError, "#{name}: it must be JSON, not #{value.class}"
      end
      value
    end

    def parts(name, whole, one)
      return [one] if whole.is_a?(Array)
      return one if one[0].is_a?(String) || one[0].is_a?(Symbol)

      raise TypeError, "#{name}: it must be JSON, whose names are String or Symbol, not #{one[0].class}"
    end

    # Rounded up, because 0 means "not at all".
    def to_ms(seconds) = (seconds * 1000).round(6).ceil
  end
  private_constant :Check

  # The options of an acquire. All durations are seconds.
  # @api private
  class Options
    MOST_HOLDERS = 1000 # of a semaphore; the sidecar's limit

    attr_reader :wait, :ttl, :shared, :limit, :bind, :reentrant, :max_hold, :min_hold, :on_success, :data, :request_id
    attr_accessor :owner

    def initialize(wait: nil, ttl: nil, shared: false, limit: nil, bind: :session, owner: nil, reentrant: false,
                   max_hold: nil, min_hold: nil, on_success: :acquire, data: nil, request_id: nil)
      @wait = wait && wait != Float::INFINITY ? Check.seconds(:wait, wait) : nil
      @ttl = ttl && Check.seconds(:ttl, ttl, least: Check::LEAST_TTL)
      @shared, @reentrant = Check.yes_or_no(:shared, shared), Check.yes_or_no(:reentrant, reentrant)
      @limit = limit && check_limit(limit)
      @bind, @on_success = Check.word(:bind, bind), Check.word(:on_success, on_success)
      @owner, @request_id = owner && Check.text(:owner, owner), request_id && Check.text(:request_id, request_id)
      @max_hold = max_hold && Check.seconds(:max_hold, max_hold)
      @min_hold = min_hold && Check.seconds(:min_hold, min_hold)
      @data = Check.json(:data, data)
    end

    # The members of the request, without the wait and the id.
    def fields
      {
        ttl_ms: in_ms(ttl), mode: ("shared" if shared), limit:, bind: (bind unless bind == "session"),
        owner:, reentrant: (true if reentrant), max_hold_ms: in_ms(max_hold), min_hold_ms: in_ms(min_hold),
        on_success: (on_success unless on_success == "acquire"), data:
      }.compact
    end

    # The features that they need.
    def needs
      [("shared" if shared), ("bind_ttl" if bind != "session"), ("reentrant" if owner), ("hold" if max_hold || min_hold),
       ("outcome" if on_success != "acquire"), ("data" unless data.nil?), ("wait" if waits?)].compact
    end

    def waits? = wait.nil? || wait.positive?

    private

    def in_ms(seconds) = seconds && Check.to_ms(seconds)

    def check_limit(limit)
      return limit if Check.whole(:limit, limit).between?(1, MOST_HOLDERS)

      raise Problem.invalid("limit: #{limit} is not between 1 and #{MOST_HOLDERS}")
    end
  end
  private_constant :Options
end
