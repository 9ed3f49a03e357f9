# frozen_string_literal: true

require "sidekiq"
require_relative "jobs"

module Locksidecar
  # Jobs of Sidekiq with a lock, or that run once in each period.
  #
  #   Locksidecar::Sidekiq.install # beside Sidekiq.configure_server
  #
  #   class ReportJob
  #     include Sidekiq::Job
  #     include Locksidecar::Sidekiq
  #     with_lock { |customer| "report:#{customer}" }
  #
  #     def perform(customer) = write(fencing_token: held_lock.token)
  #   end
  #
  #   class CloseBooksJob # each pod's scheduler sends it
  #     include Sidekiq::Job
  #     include Locksidecar::Sidekiq
  #     once_every 3600
  #   end
  #
  # Sidekiq tries a job again that raises: LockHeld, LockLost, Unavailable and LimitReached, too, within its `retry`.
  module Sidekiq
    SENT = "locksidecar_sent" # in the job: the time for which it was first sent
    private_constant :SENT

    # @api private
    def self.included(job)
      super
      job.include(Jobs)
    end

    # Adds the middleware. Without it the declarations of jobs have no effect.
    def self.install
      ::Sidekiq.configure_client { |config| config.client_middleware { |chain| chain.add(Sending) } }
      ::Sidekiq.configure_server do |config|
        config.client_middleware { |chain| chain.add(Sending) }
        config.server_middleware { |chain| chain.add(Running) }
      end
    end

    # Middleware where jobs are sent: notes for when.
    class Sending
      def call(_class, job, _queue, _redis)
        job[SENT] ||= (job["at"] || Time.now).to_f
        yield
      end
    end

    # Middleware where jobs run. It comes last, so that other middleware runs outside of the lock.
    class Running
      def call(worker, job, _queue, &block)
        return yield unless worker.is_a?(Jobs)

        sent = (job[SENT] || Time.now).to_f
        attempt = job["retry_count"] ? job["retry_count"] + 1 : 0
        Jobs.run(worker, job["args"], sent:, attempt:, &block)
      end
    end
  end
end
