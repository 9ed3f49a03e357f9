# frozen_string_literal: true

require_relative "helper"

# Processes: killed, forked, replaced by exec, at their end.
class ProcessTest < TestCase
  def test_kill_9_frees_at_once
    client.lock("#{key}:blocked") do
      program = ruby(<<~'RUBY', key, "#{key}:blocked")
        client = Locksidecar::Client.new
        locks = Array.new(3) { |n| client.acquire(ARGV[0] + n.to_s) }
        puts "held"
        client.acquire(ARGV[1])
      RUBY
      assert_equal "held\n", program.gets
      waiting(client, "#{key}:blocked")
      Process.kill("KILL", program.pid)
      3.times { |n| client.acquire("#{key}#{n}", wait: LONG).release } # the lease would last an hour
      waiting(client, "#{key}:blocked", 0)
    end
  end

  def test_ctrl_c_while_waiting
    client.lock(key) do
      program = ruby(<<~'RUBY', key)
        trap("INT", "DEFAULT")
        client = Locksidecar::Client.new
        begin
          client.acquire(ARGV[0])
        rescue Interrupt
          puts "interrupted #{client.locks(scope: :session).to_a.size}"
        end
        sleep
      RUBY
      waiting(client, key)
      Process.kill("INT", program.pid)
      assert_equal "interrupted 0\n", program.gets
      waiting(client, key, 0)
    end
  end

  # Proves: client forks
  def test_a_child_has_a_session_of_its_own
    lock = client.acquire(key)
    called = []
    lock.on_lost { called << 1 }
    assert_equal [true, "forked", []].inspect, in_child { [lock.lost?, lock.lost.reason, called] }
    assert_equal "nil", in_child { client.try_acquire(key) } # its session is another one
    assert_equal [1, false].inspect, in_child { own = client.acquire("#{key}:child"); [own.check.reentry, other.get(key).mine] }
    assert_match(/LockLost/, in_child { lock.release })
    assert_match(/LockLost/, in_child { lock.check })
    refute lock.lost?
    assert_predicate client.get(key), :mine?
    assert_equal lock.token, lock.check.token
    free(client, "#{key}:child") # after the sidecar has seen the end of the child's connections
    assert lock.release
  end

  # Proves: client forks
  def test_a_child_that_leaves_the_block_of_its_parent
    client.lock(key) do |lock|
      pid = Process.fork do
        ObjectSpace.garbage_collect
        exit!(lock.lost? ? 7 : 8)
      end
      assert_equal 7, Process.wait2(pid)[1].exitstatus
      reader, writer = IO.pipe
      unless (pid = Process.fork)
        begin
          break # leaves the block, in the child
        rescue Locksidecar::LockLost => e
          writer.write(e.reason)
        ensure
          exit!(0)
        end
      end
      writer.close
      reader.read
      Process.wait(pid)
      assert_predicate client.get(key, fresh: true), :mine?
      lock.check
    end
  end

  # Proves: client forks
  def test_the_end_of_a_block_in_a_child
    reader, writer = IO.pipe
    parent = Process.pid
    begin
      client.lock(key) { Process.fork and Process.wait }
    rescue Locksidecar::LockLost => e
      raise if Process.pid == parent

      writer.write(e.reason)
    ensure
      exit!(0) unless Process.pid == parent
    end
    writer.close
    assert_equal "forked", reader.read
  end

  # Proves: client forks
  def test_a_child_keeps_no_descriptor_of_its_parent
    lock = client.acquire(key)
    waiter = aside { other.acquire(key, wait: LONG) } # a waiting connection is inherited, too
    waiting(client, key)
    assert_operator sockets, :>=, 4
    assert_equal "0", in_child { sockets }
    lock.release
    result(waiter).release
  end

  # Proves: client forks
  def test_a_child_whose_garbage_is_collected
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      lock = client.acquire(ARGV[0])
      pid = Process.fork do
        client = nil
        lock = nil
        3.times { GC.start }
        exit # runs all finalizers
      end
      Process.wait(pid)
      puts lock.check.token == lock.token, lock.wait_lost(0.1)
      pid = Process.fork do
        client.acquire("#{ARGV[0]}:child")
        exit
      end
      Process.wait(pid)
      puts lock.check.token == lock.token, client.try_acquire("#{ARGV[0]}:child") ? "free" : "held"
    RUBY
    assert_equal %W[true\n false\n true\n], Array.new(3) { program.gets }
    program.gets
  end

  # Proves: client forks
  def test_a_child_of_a_fork_that_ruby_did_not_tell
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      lock = client.acquire(ARGV[0])
      fork = Process.method(:_fork).super_method # as an extension in C would
      if fork.call.zero?
        client = lock = nil
        3.times { GC.start }
        exit # runs all finalizers
      end
      Process.wait
      if fork.call.zero?
        exit!(lock.lost? ? 1 : client.try_acquire("#{ARGV[0]}:child") && lock.lost? ? 0 : 2)
      end
      puts Process.wait2[1].exitstatus, lock.check.token == lock.token, lock.wait_lost(0.1)
    RUBY
    assert_equal %W[0\n true\n false\n], Array.new(3) { program.gets }
  end

  # Proves: client forks
  def test_a_child_that_lives_on_does_not_keep_locks_of_its_parent
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      lock = client.acquire(ARGV[0])
      Process.fork { sleep }
      puts "held"
      sleep
    RUBY
    assert_equal "held\n", program.gets
    assert_equal :held, client.get(key).state
    Process.kill("KILL", program.pid)
    client.acquire(key, wait: LONG).release
  end

  # Proves: client forks
  def test_forks_while_other_threads_are_busy
    busy = true
    threads = Array.new(4) { aside { client.lock(key) { nil } while busy } }
    20.times { |n| assert_equal "true", in_child { client.acquire("#{key}:#{n}", wait: LONG).release } }
  ensure
    busy = false
    threads.each(&:join)
  end

  def test_a_daemon_has_a_session_of_its_own
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      lock = client.acquire(ARGV[0])
      Process.daemon(true, true)
      puts lock.lost&.reason, client.acquire(ARGV[0], wait: 60).check.reentry, Process.pid
    RUBY
    assert_equal %W[forked\n 1\n], Array.new(2) { program.gets }
  end

  def test_exec_closes_the_descriptors
    client.acquire(key)
    code = "puts Dir['/proc/self/fd/*'].count { |fd| File.readlink(fd).start_with?('socket:') rescue false }"
    assert_equal "0\n", IO.popen(["ruby", "-e", code, { close_others: false }], &:read)
  end

  def test_the_end_of_a_process_waits_for_nothing_and_says_nothing
    program = ruby(<<~'RUBY', key)
      client = Locksidecar::Client.new
      $stderr.reopen($stdout)
      at_exit { client.lock("#{ARGV[0]}:at_exit") { puts "locked at exit" } }
      client.acquire(ARGV[0]).on_lost { puts "lost" }
      3.times { |n| Thread.new { client.lock("#{ARGV[0]}:#{n}") { sleep } } }
      Thread.new { client.acquire(ARGV[0], wait: 60) rescue nil }
      Thread.pass until client.locks(scope: :session).to_a.size == 4
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      at_exit { puts "ends" }
    RUBY
    assert_equal %W[ends\n locked\ at\ exit\n], program.readlines
    4.times { |n| free(client, n == 3 ? key : "#{key}:#{n}") }
  end

  def test_a_client_that_nobody_has_any_more_ends
    program = ruby(<<~'RUBY', key)
      def hold(key) = Locksidecar::Client.new.acquire(key) && nil
      hold(ARGV[0])
      def deep(n) = n.zero? ? nil : deep(n - 1)
      keeping = Locksidecar::Client.new.acquire("#{ARGV[0]}:keeping")
      until Locksidecar::Client.new.get(ARGV[0], fresh: true).free?
        deep(50)
        GC.start
      end
      puts "free", keeping.check.reentry
    RUBY
    assert_equal %W[free\n 1\n], Array.new(2) { program.gets }
  end

  def test_threads_of_a_client_that_somebody_kills
    lock = client.acquire(key)
    Thread.list.select { |thread| thread.name&.start_with?("locksidecar") }.each { |thread| thread.kill.join }
    refute lock.lost?
    client.acquire("#{key}:2").release
    other.stop(key, reason: "why")
    assert lock.grant.stopping.wait(LONG)
    lock.on_stopping { lock.release }
    free(other, key)
  end

  def sockets
    Dir["/proc/self/fd/*"].count do |fd|
      File.readlink(fd).start_with?("socket:")
    rescue Errno::ENOENT
      false
    end
  end
end
