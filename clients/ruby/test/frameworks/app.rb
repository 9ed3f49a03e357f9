# frozen_string_literal: true

# What Sidekiq's processes load in the tests: jobs, which write what happens into a file.

$LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))

require "active_support"
require "active_job"
require "sidekiq"
require "locksidecar/active_job"
require "locksidecar/sidekiq"

Sidekiq.configure_client { |config| config.redis = { path: ENV.fetch("REDIS_SOCKET") } }
Sidekiq.configure_server do |config|
  config.redis = { path: ENV.fetch("REDIS_SOCKET") }
  config.options[:poll_interval_average] = 0.2 if config.respond_to?(:options)
end
Sidekiq.logger.level = Logger::WARN
Locksidecar::Sidekiq.install
ActiveJob::Base.queue_adapter = :sidekiq
ActiveJob::Base.logger = Logger.new(IO::NULL)

def said(text) = File.write(ENV.fetch("SAID"), "#{text}\n", mode: "a")

# Waits until the test has made this file.
def until_told(name) = (sleep(0.005) until File.exist?("#{ENV.fetch("SAID")}.#{name}"))

# A job with a lock, which must not be lost.
class ReportJob
  include Sidekiq::Job
  include Locksidecar::Sidekiq
  sidekiq_options retry: 5
  sidekiq_retry_in { 1 } # and up to 10 s more, by chance
  with_lock { |name| "report:#{name}" }

  def perform(name)
    said "begin #{name} #{held_lock.token}"
    until_told("go") unless File.exist?("#{ENV.fetch("SAID")}.go")
    said "end #{name}"
  rescue Locksidecar::LockLost => e
    said "lost #{name} #{e.reason}"
    raise
  end
end

# A job that does not run twice at a time.
class SkippedJob
  include Sidekiq::Job
  include Locksidecar::Sidekiq
  with_lock(held: :skip) { "skipped" }

  def perform
    said "run"
    until_told("go")
  end
end

# A job that each pod's scheduler sends.
class BooksJob
  include Sidekiq::Job
  include Locksidecar::Sidekiq
  sidekiq_options retry: 5
  sidekiq_retry_in { 1 } # and up to 10 s more, by chance
  once_every 86_400

  def perform(fails = false)
    said "books #{held_lock.token.positive?}"
    raise "once more" if fails && File.readlines(ENV.fetch("SAID")).size == 1
  end
end

# The same with ActiveJob, over Sidekiq.
class ActiveReportJob < ActiveJob::Base
  include Locksidecar::ActiveJob
  with_lock { |name| "report:#{name}" }
  retry_on Locksidecar::LockHeld, Locksidecar::LockLost, wait: 0, attempts: 100

  def perform(name)
    said "begin #{name} #{held_lock.token}"
    until_told("go")
    said "end #{name}"
  rescue Locksidecar::LockLost => e
    said "lost #{name} #{e.reason}"
    raise
  end
end

class ActiveBooksJob < ActiveJob::Base
  include Locksidecar::ActiveJob
  once_every 86_400
  retry_on ZeroDivisionError, wait: 0

  def perform(fails = false)
    said "books #{held_lock.token.positive?}"
    1 / 0 if fails && executions == 1
  end
end
