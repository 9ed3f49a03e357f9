# frozen_string_literal: true

# Distributed locks through a locksidecar.
#
#   client = Locksidecar::Client.new
#   client.lock("report:daily", wait: 5) { |lock| write(fencing_token: lock.token) }
#
# Only Client is made by an app. What has `@api private` is not for apps.
module Locksidecar
  @log = ->(text) { warn("locksidecar: #{text}") }

  class << self
    # @return [#call] is called with a text that nobody else can get, such as a release that failed after a block had
    #   raised; by default it is printed with `warn`
    attr_accessor :log
  end
end

require_relative "locksidecar/version"
require_relative "locksidecar/clock"
require_relative "locksidecar/types"
require_relative "locksidecar/errors"
require_relative "locksidecar/interrupts"
require_relative "locksidecar/guard"
require_relative "locksidecar/forks"
require_relative "locksidecar/options"
require_relative "locksidecar/wire"
require_relative "locksidecar/tracing"
require_relative "locksidecar/signal"
require_relative "locksidecar/session"
require_relative "locksidecar/call"
require_relative "locksidecar/endpoint"
require_relative "locksidecar/connections"
require_relative "locksidecar/trouble"
require_relative "locksidecar/stream"
require_relative "locksidecar/transport"
require_relative "locksidecar/release"
require_relative "locksidecar/keeper"
require_relative "locksidecar/acquire"
require_relative "locksidecar/lock"
require_relative "locksidecar/loss"
require_relative "locksidecar/block"
require_relative "locksidecar/events"
require_relative "locksidecar/lead"
require_relative "locksidecar/semaphore"
require_relative "locksidecar/client"
