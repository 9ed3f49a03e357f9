# frozen_string_literal: true

require_relative "../testing"

module Locksidecar
  module Testing
    # A sidecar for each test of a class, which the clients that the test makes find.
    #
    #   class ReportTest < Minitest::Test # or ActiveSupport::TestCase
    #     include Locksidecar::Testing::Minitest
    #
    #     def test_the_report_ends_when_its_lock_is_lost
    #       report = start_report # holds the lock report:daily
    #       locksidecar.lose("report:daily")
    #       assert report.ended_with?("lock lost")
    #     end
    #   end
    #
    # A method `locksidecar_settings` of your own names settings of the sidecar: `{ TTL: "2s" }`.
    module Minitest
      # @return [Sidecar] that of this test
      attr_reader :locksidecar

      # @return [Hash]
      def locksidecar_settings = {}

      # @api private
      def before_setup
        super
        @locksidecar = Sidecar.new(**locksidecar_settings)
        @locksidecar_env = @locksidecar.env.to_h { |name, _| [name, ENV.fetch(name, nil)] }
        ENV.update(@locksidecar.env)
        @locksidecar.start
      end

      # @api private
      def after_teardown
        @locksidecar&.close
        ENV.update(@locksidecar_env || {})
        super
      end
    end
  end
end
