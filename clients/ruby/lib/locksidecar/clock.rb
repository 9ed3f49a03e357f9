# frozen_string_literal: true

module Locksidecar
  # The clock of this process, which nobody sets.
  # @api private
  module Clock
    # @return [Float] seconds
    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
