# frozen_string_literal: true

require_relative "lib/locksidecar/version"

Gem::Specification.new do |spec|
  spec.name = "locksidecar"
  spec.version = Locksidecar::VERSION
  spec.authors = ["The locksidecar authors"]
  spec.summary = "Distributed locks through a locksidecar, for threads and fibers"
  spec.homepage = "https://github.com/locksidecar/locksidecar/tree/main/clients/ruby#readme"
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1" # Process._fork and Fiber.current_scheduler
  spec.metadata = {
    "source_code_uri" => "https://github.com/locksidecar/locksidecar",
    "changelog_uri" => "https://github.com/locksidecar/locksidecar/blob/main/CHANGELOG.md",
    "bug_tracker_uri" => "https://github.com/locksidecar/locksidecar/issues",
    "rubygems_mfa_required" => "true"
  }
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "sig/*.rbs", "LICENSE", "README.md"].sort }
end
