# frozen_string_literal: true

module Locksidecar
  VERSION = "0.1.0"
end
