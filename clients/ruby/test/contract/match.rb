# frozen_string_literal: true

module Contract
  # Compares a result with the expectation of a case: clients/contract/README.md, "Matching".
  module Match
    COMPARISONS = { "$gt" => :>, "$ge" => :>=, "$lt" => :<, "$le" => :<= }.freeze
    OPERATORS = [*COMPARISONS.keys, "$has", "$is", "$any"].freeze

    module_function

    # The value with each $name replaced by its saved value, and each {$long: n} by a text of n letters.
    def fill_in(value, saved)
      case value
      when Hash
        return "a" * value["$long"] if value.keys == ["$long"]

        value.transform_values { |one| fill_in(one, saved) }
      when Array then value.map { |one| fill_in(one, saved) }
      when /\A\$/ then saved.fetch(value[1..]) { raise "nothing was saved as #{value}" }
      else value
      end
    end

    # The difference, or nil if got matches.
    def difference(want, got, at = "result")
      return operator(*want.first, got, at) if operator?(want)

      case want
      when Hash
        return "#{at} is #{got.inspect}; it must be an object with #{want.keys.join(", ")}" unless got.is_a?(Hash)

        want.filter_map { |name, one| difference(one, got[name], "#{at}.#{name}") }.first
      when Array
        same = got.is_a?(Array) && got.size == want.size
        return "#{at} is #{got.inspect}; it must be a list of #{want.size}: #{want.inspect}" unless same

        want.zip(got).each_with_index.filter_map { |(w, g), n| difference(w, g, "#{at}[#{n}]") }.first
      else "#{at} is #{got.inspect}; it must be #{want.inspect}" unless want == got
      end
    end

    def operator?(want)
      return false unless want.is_a?(Hash) && want.keys.any? { |name| name.to_s.start_with?("$") }

      raise "#{want}: an operator stands alone" if want.size != 1 || !OPERATORS.include?(want.keys[0])

      true
    end

    def operator(name, argument, got, at)
      right = case name
              when "$any" then !got.nil?
              when "$is" then argument == got
              when "$has" then got.is_a?(String) && got.include?(argument)
              else got.is_a?(Numeric) && got.public_send(COMPARISONS.fetch(name), argument)
              end
      "#{at} is #{got.inspect}; it must be {#{name}: #{argument.inspect}}" unless right
    end
  end
end
