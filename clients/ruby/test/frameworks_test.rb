# frozen_string_literal: true

require_relative "helper"
require "sidekiq/api"

# Sidekiq and ActiveJob for real: a Redis server, and two processes of Sidekiq.
class FrameworksTest < TestCase
  APP = File.expand_path("frameworks/app.rb", __dir__)

  def setup
    super
    @folder = Dir.mktmpdir("lsr")
    ENV.update("REDIS_SOCKET" => "#{@folder}/r.sock", "SAID" => "#{@folder}/said", "LOCKSIDECAR_SOCKET" => sidecar.path)
    start("redis-server", "--port", "0", "--unixsocket", "#{@folder}/r.sock", "--save", "", "--dir", @folder)
    until_true("Redis answers") { File.socket?("#{@folder}/r.sock") }
    require APP
    Sidekiq.redis = Sidekiq::RedisConnection.create(path: ENV.fetch("REDIS_SOCKET"))
    Locksidecar::Jobs.client = @jobs = Locksidecar::Client.new
  end

  def teardown
    warn File.readlines("#{@folder}/log").grep_v(/brpop|deprecated/) unless passed?
    @jobs.close
    (@programs || []).reverse_each { |program| end_program(program) }
    FileUtils.remove_entry(@folder)
    %w[REDIS_SOCKET SAID LOCKSIDECAR_SOCKET].each { |name| ENV.delete(name) }
    super
  end

  def test_a_job_with_a_lock_runs_alone
    workers
    4.times { ReportJob.perform_async("daily") }
    go
    until_true("all have run") { said.grep(/\Aend/).size == 4 }
    tokens = said.grep(/\Abegin/).map { |line| line.split.last.to_i }
    assert_equal tokens.uniq.sort, tokens
    said.each_slice(2) { |first, second| assert_match(/begin.*end/, "#{first} #{second}") }
  end

  # Proves: client loss
  def test_a_job_that_loses_its_lock_is_tried_again
    workers
    ReportJob.perform_async("daily")
    until_true("it runs") { said.grep(/\Abegin/).size == 1 }
    sidecar.lose("report:daily")
    until_true("it is told") { said.include?("lost daily forced") }
    until_true("it runs again") { said.grep(/\Abegin/).size == 2 }
    go
    until_true("it has run") { said.include?("end daily") }
  end

  def test_a_worker_that_dies_frees_its_lock
    first = worker
    ReportJob.perform_async("daily")
    until_true("it runs") { said.grep(/\Abegin/).size == 1 }
    Process.kill("KILL", first)
    free(new_client(sidecar.path), "report:daily")
  end

  # Sidekiq gives a job back whose process must end, and the next one runs it.
  def test_a_worker_that_is_stopped_frees_its_lock_and_the_job_runs_again
    first = worker("-t", "4") # longer than an idle thread waits for a job, which it would take and lose
    ReportJob.perform_async("daily")
    until_true("it runs") { said.grep(/\Abegin/).size == 1 }
    Process.kill("TERM", first)
    free(new_client(sidecar.path), "report:daily")
    worker
    go
    until_true("it has run") { said.include?("end daily") }
  end

  def test_a_job_whose_lock_is_held_is_skipped
    workers
    SkippedJob.perform_async
    until_true("one runs") { said == ["run"] }
    3.times { SkippedJob.perform_async }
    until_true("the others are gone") { Sidekiq::Queue.new.size.zero? && Sidekiq::Workers.new.size <= 1 }
    go
    until_true("all have ended") { Sidekiq::Workers.new.size.zero? }
    assert_equal ["run"], said
    assert_equal 0, Sidekiq::RetrySet.new.size
  end

  # Proves: client once a period
  def test_a_job_runs_once_in_its_period_however_often_it_is_sent
    workers
    5.times { BooksJob.perform_async }
    ActiveBooksJob.perform_later
    2.times { ActiveBooksJob.perform_later }
    until_true("all have come") { Sidekiq::Queue.all.sum(&:size).zero? && Sidekiq::Workers.new.size.zero? && said.size >= 2 }
    assert_equal ["books true"] * 2, said # one of each class
  end

  # Proves: client once a period
  def test_a_job_of_a_period_that_fails_is_tried_again
    workers
    BooksJob.perform_async(true)
    until_true("it has run again") { said.size == 2 }
    ActiveBooksJob.perform_later(true)
    until_true("it has run again") { said.size == 4 }
  end

  def test_active_job_over_sidekiq
    workers
    ActiveReportJob.perform_later("weekly")
    until_true("it runs") { said.grep(/\Abegin/).size == 1 }
    ActiveReportJob.perform_later("weekly")
    sidecar.lose("report:weekly")
    until_true("it is told") { said.include?("lost weekly forced") }
    go
    until_true("both have run") { said.grep(/\Aend/).size == 2 }
  end

  def test_active_job_in_this_process
    require "active_support/core_ext/numeric/time"
    job = Class.new(ActiveJob::Base) do
      include Locksidecar::ActiveJob
      self.queue_adapter = :inline
      with_lock(wait: 1.second, ttl: 30.seconds) { |name| "inline:#{name}" }
      define_method(:perform) { |_| said held_lock.key }
    end
    Object.const_set(:InlineJob, job)
    InlineJob.perform_later("a")
    assert_equal ["inline:a"], said
    new_client(sidecar.path).lock("inline:a") do
      assert_raises(Locksidecar::LockHeld) { InlineJob.perform_later("a") }
    end
    assert_match(/wait: "5"/, assert_raises(TypeError) { job.with_lock(wait: "5") { "k" } }.message)
    assert_raises(ArgumentError) { job.with_lock }
    assert_raises(ArgumentError) { job.with_lock(held: :retry) { "k" } }
    assert_raises(Locksidecar::InvalidRequest) { job.once_every(86_401) }
  ensure
    Object.send(:remove_const, :InlineJob) if Object.const_defined?(:InlineJob)
  end

  def test_a_late_job_does_not_run
    job = Class.new(ActiveJob::Base) do
      include Locksidecar::ActiveJob
      once_every 60, min_hold: 10, key: "late"
      define_method(:perform) { said "late" }
    end
    late = job.new
    late.instance_variable_set(:@locksidecar_sent, Time.now.to_f - 6)
    late.perform_now
    assert_empty said
    assert_match(/tick:late@.* is 6 s late/, Helper.said.last)
  end

  private

  def start(*command)
    log = File.open("#{@folder}/log", "a")
    (@programs ||= []).push(Process.spawn(*command, %i[out err] => log, pgroup: true)).last
  end

  def worker(*options) = start("sidekiq", "-r", APP, "-c", "3", "-q", "default", *options)

  def workers = 2.times { worker }

  def end_program(pid)
    Process.kill("KILL", -pid)
  rescue Errno::ESRCH
    nil
  ensure
    Process.wait(pid)
  end

  def said = File.exist?("#{@folder}/said") ? File.readlines("#{@folder}/said", chomp: true) : []

  def go = File.write("#{@folder}/said.go", "")
end

# Puma, which loads the app and its client before it forks.
class PumaTest < TestCase
  APP = <<~'RUBY'
    require "locksidecar"
    CLIENT = Locksidecar::Client.new
    LOCK = CLIENT.acquire("#{ENV.fetch("KEY")}:preload") # used before the fork
    run(lambda do |_|
      CLIENT.lock(ENV.fetch("KEY"), wait: 60) { |mine| [200, {}, ["#{Process.pid} #{mine.token} #{LOCK.lost.reason}"]] }
    end)
  RUBY

  # Proves: client forks
  def test_a_preloaded_client
    Dir.mktmpdir do |folder|
      File.write("#{folder}/config.ru", APP)
      env = { "LOCKSIDECAR_SOCKET" => path, "KEY" => key, "RUBYLIB" => File.expand_path("../lib", __dir__) }
      puma = Process.spawn(env, "puma", "--preload", "-w", "2", "-b", "unix://#{folder}/p.sock", "config.ru",
                           chdir: folder, pgroup: true, %i[out err] => "#{folder}/log")
      workers = []
      tokens = []
      until_true("both workers answer") do
        pid, token, reason = ask("#{folder}/p.sock")
        next unless pid

        workers |= [pid]
        tokens << token.to_i
        assert_equal "forked", reason
        workers.size == 2
      end
      assert_equal tokens.uniq.sort, tokens
      assert_equal :held, client.get("#{key}:preload").state # the master's
      Process.kill("KILL", puma)
      client.acquire("#{key}:preload", wait: LONG).release # although the workers live on
    ensure
      Process.kill("KILL", -puma)
      Process.wait(puma)
    end
  end

  def ask(socket)
    UNIXSocket.open(socket) do |connection|
      connection.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
      connection.read[/\r\n\r\n(?:\h+\r\n)?([^\r\n]*)/, 1].split
    end
  rescue SystemCallError
    nil # it does not listen yet
  end
end
