# frozen_string_literal: true

require "rspec/core"
require_relative "../testing"

# A sidecar for each example with the tag `:locksidecar`, which the clients that the example makes find.
#
#   RSpec.describe Report, :locksidecar do
#     it "ends when its lock is lost" do
#       report = start_report # holds the lock report:daily
#       locksidecar.lose("report:daily")
#       expect(report).to have_ended_with("lock lost")
#     end
#   end
#
# `let(:locksidecar_settings) { { TTL: "2s" } }` names settings of the sidecar.
RSpec.shared_context("locksidecar") do # -- it has the name of what it gives
  let(:locksidecar_settings) { {} }

  # @return [Locksidecar::Testing::Sidecar] that of this example
  attr_reader :locksidecar

  around do |example|
    Locksidecar::Testing::Sidecar.run(**locksidecar_settings) do |sidecar|
      @locksidecar = sidecar
      before = sidecar.env.to_h { |name, _| [name, ENV.fetch(name, nil)] }
      ENV.update(sidecar.env)
      example.run
    ensure
      ENV.update(before)
    end
  end
end

RSpec.configure { |config| config.include_context("locksidecar", :locksidecar) }
