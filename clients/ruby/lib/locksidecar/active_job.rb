# frozen_string_literal: true

require "active_job"
require_relative "jobs"

module Locksidecar
  # Jobs of ActiveJob with a lock, or that run once in each period.
  #
  #   class ReportJob < ApplicationJob
  #     include Locksidecar::ActiveJob
  #     with_lock { |customer| "report:#{customer}" }
  #     retry_on Locksidecar::LockHeld, Locksidecar::LockLost, Locksidecar::Unavailable, Locksidecar::LimitReached,
  #              wait: 5.seconds, attempts: 100
  #
  #     def perform(customer) = write(fencing_token: held_lock.token)
  #   end
  #
  #   class CloseBooksJob < ApplicationJob # each pod's scheduler sends it
  #     include Locksidecar::ActiveJob
  #     once_every 1.hour
  #   end
  module ActiveJob
    # @api private
    def self.included(job)
      super
      job.include(Jobs)
      job.around_perform do |it, block|
        Jobs.run(it, it.arguments, sent: it.locksidecar_sent, attempt: it.locksidecar_attempt, &block)
      end
    end

    # The time for which the job was first sent. Its attempts keep it.
    # @api private
    def locksidecar_sent = @locksidecar_sent ||= (scheduled_at || Time.now).to_f

    # The attempts before this one.
    # @api private
    def locksidecar_attempt = [executions - 1, 0].max

    # @api private
    def serialize = super.merge("locksidecar_sent" => locksidecar_sent)

    # @api private
    def deserialize(data)
      super
      @locksidecar_sent = data["locksidecar_sent"]
    end
  end
end
