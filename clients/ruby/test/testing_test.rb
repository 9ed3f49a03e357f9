# frozen_string_literal: true

require_relative "helper"
require "open3"

# What apps use for their own tests.
class TestingTest < TestCase
  Sidecar = Locksidecar::Testing::Sidecar

  def test_a_lock_is_lost_on_request
    client = new_client(sidecar.path)
    assert_raises(Locksidecar::LockLost) do
      client.lock(key) do |lock|
        sidecar.lose(key)
        assert lock.wait_lost(LONG)
        assert_equal "forced", lock.lost.reason
      end
    end
    assert_raises(Locksidecar::NotHeld) { sidecar.lose(key) }
  end

  def test_one_permit_is_lost
    client = new_client(sidecar.path)
    permits = Array.new(2) { client.semaphore(key, limit: 2).acquire }
    sidecar.lose(key, token: permits[0].token)
    assert permits[0].wait_lost(LONG)
    refute permits[1].lost?
  end

  def test_it_hangs_is_away_and_comes_back
    client = new_client(sidecar.path, timeout: 0.2)
    sidecar.hanging { assert_raises(Locksidecar::Unavailable) { client.get(key) } }
    client.transport.timeout = LONG
    assert_predicate client.get(key), :free?
    held = client.acquire(key)
    sidecar.away do
      assert held.wait_lost(LONG)
      assert_raises(Locksidecar::Unavailable) { client.get(key) }
    end
    assert_predicate client.get(key), :free?
  end

  def test_settings
    Sidecar.run(ALLOW_FORCE: "false") do |sidecar|
      new_client(sidecar.path).acquire(key)
      assert_match(/ALLOW_FORCE/, assert_raises(Locksidecar::Forbidden) { sidecar.lose(key) }.message)
    end
    assert_match(/LOCKSIDECAR_TTL/, assert_raises(RuntimeError) { Sidecar.run(TTL: "15") { flunk } }.message)
  end

  def test_a_missing_program_is_named
    binary = ENV.fetch("LOCKSIDECAR_BINARY")
    ENV["LOCKSIDECAR_BINARY"] = "bin/none"
    missing = assert_raises(Errno::ENOENT) { Locksidecar::Testing.find_binary }
    assert_includes missing.message, "LOCKSIDECAR_BINARY=#{File.expand_path("bin/none")}"
    ENV["LOCKSIDECAR_BINARY"] = ""
    before = ENV.fetch("PATH")
    ENV["PATH"] = File.dirname(binary)
    assert_equal binary, Locksidecar::Testing.find_binary
    ENV["PATH"] = "/nowhere"
    assert_match(/no program `locksidecar` is in PATH/, assert_raises(Errno::ENOENT) { Locksidecar::Testing.find_binary }.message)
  ensure
    ENV["LOCKSIDECAR_BINARY"] = binary
    ENV["PATH"] = before if before
  end

  def test_minitest
    said = run_in_folder("app_test.rb", <<~'RUBY', "ruby", "-w", "app_test.rb")
      require "minitest/autorun"
      require "locksidecar/testing/minitest"
      class AppTest < Minitest::Test
        include Locksidecar::Testing::Minitest
        def locksidecar_settings = { TTL: "2s" }
        def test_the_first = assert(Locksidecar::Client.new.acquire("key"))
        def test_the_second_finds_nothing_of_the_first
          lock = Locksidecar::Client.new.acquire("key", wait: 0)
          locksidecar.lose("key")
          assert lock.wait_lost(60)
          assert_includes 0..2, lock.expires_in
        end
      end
    RUBY
    assert_match(/2 runs, 4 assertions, 0 failures, 0 errors/, said)
  end

  def test_rspec
    said = run_in_folder("app_spec.rb", <<~'RUBY', "rspec", "app_spec.rb")
      require "locksidecar/testing/rspec"
      RSpec.describe "an app", :locksidecar do
        let(:locksidecar_settings) { { TTL: "2s" } }
        it("is the first") { expect(Locksidecar::Client.new.acquire("key")).to be_truthy }
        it "finds nothing of the first" do
          lock = Locksidecar::Client.new.acquire("key", wait: 0)
          locksidecar.lose("key")
          expect(lock.wait_lost(60)).to be(true)
        end
      end
      RSpec.describe("without") { it("has none") { expect(respond_to?(:locksidecar)).to be(false) } }
    RUBY
    assert_match(/3 examples, 0 failures/, said)
  end

  def run_in_folder(name, code, *command)
    Dir.mktmpdir do |folder|
      File.write(File.join(folder, name), code)
      env = { "RUBYLIB" => File.expand_path("../lib", __dir__), "LOCKSIDECAR_SOCKET" => nil }
      said, = Open3.capture2e(env, *command, chdir: folder)
      said
    end
  end
end
