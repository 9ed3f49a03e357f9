# frozen_string_literal: true

require_relative "helper"

# Proves: client descriptors
# Without a free descriptor: waiting calls take all, and the holder still releases.
class DescriptorTest < TestCase
  def test_a_release_gets_through
    program = ruby(<<~'RUBY', key)
      Process.setrlimit(:NOFILE, 60, 60)
      client = Locksidecar::Client.new
      lock = client.acquire(ARGV[0])
      done = Queue.new
      threads = Array.new(100) { Thread.new { client.lock(ARGV[0]) { done << 1 } } }
      Thread.pass while File.open(IO::NULL).close.nil? rescue true # until the threads have all
      refused = Array.new(10) { Thread.new { begin client.acquire(ARGV[0], wait: 0.3) rescue $!.message end } }.map(&:value)
      text = refused.grep(/no free file descriptor/).first or abort refused.inspect
      text.include?("60 (RLIMIT_NOFILE") or abort text
      lock.check
      lock.release
      threads.each(&:join)
      puts done.size
    RUBY
    assert_equal "100\n", program.gets
    free(client, key)
  end

  # The question about the lock gets no descriptor, because the calls that hang have all.
  # Proves: client own clock
  def test_a_loss_is_told_in_time
    program = ruby(<<~'RUBY', key, sidecar.path, sidecar.instance_variable_get(:@pid).to_s)
      Process.setrlimit(:NOFILE, 30, 30)
      client = Locksidecar::Client.new(ARGV[1], timeout: 60)
      acquired = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      lock = client.acquire(ARGV[0], ttl: 2)
      Process.kill("STOP", ARGV[2].to_i)
      60.times { Thread.new { client.get(ARGV[0]) } }
      lock.wait_lost
      puts lock.lost.reason, Process.clock_gettime(Process::CLOCK_MONOTONIC) - acquired
      exit!
    RUBY
    assert_equal "expired\n", program.gets
    assert_includes 1.5..20, program.gets.to_f # half of the silence after which the stream counts as broken
  end

  # The app has all descriptors. The client asks on a connection that it has kept.
  # Proves: client own clock
  def test_a_lock_stays_without_a_free_descriptor
    program = ruby(<<~'RUBY', key, sidecar.path)
      Process.setrlimit(:NOFILE, 40, 40)
      client = Locksidecar::Client.new(ARGV[1])
      lock = client.acquire(ARGV[0], ttl: 4)
      files = []
      begin
        loop { files << File.open(IO::NULL) }
      rescue Errno::EMFILE
        p lock.wait_lost(6)
      end
      p lock.check.expires_in.positive?, lock.release
    RUBY
    assert_equal "false\ntrue\ntrue\n", program.read
  end

  def test_the_limit_at_the_first_call_is_named
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      Process.setrlimit(:NOFILE, 3, 3)
      begin
        client.acquire(ARGV[0])
      rescue Locksidecar::Unavailable => e
        puts e.message, e.code
      end
    RUBY
    assert_match(/no free file descriptor: its limit is 3 \(RLIMIT_NOFILE/, program.gets)
    assert_equal "unreachable\n", program.gets
  end
end
