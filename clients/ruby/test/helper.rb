# frozen_string_literal: true

# Every test uses a real sidecar, in a process of its own.

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
ENV["LOCKSIDECAR_BINARY"] ||= File.expand_path("../../../bin/locksidecar", __dir__)

require "minitest/autorun"
require "monitor"
require "securerandom"
require "timeout"
require "locksidecar"
require "locksidecar/testing"

trap("INT", "DEFAULT") # a shell makes its background processes ignore it, and their children inherit that
Thread.report_on_exception = false

# What all tests use.
module Helper
  LONG = 60 # seconds; the limit for every wait of a test

  # The sidecar of all tests that do not stop it. Its TTL is an hour, so no lock expires during a test.
  def self.shared
    @starting.synchronize do
      @shared ||= Locksidecar::Testing::Sidecar.new(TTL: "1h").tap do |sidecar|
        pid = Process.pid
        Minitest.after_run { sidecar.close if Process.pid == pid }
        sidecar.start
      end
    end
  end
  @starting = Mutex.new

  # What the client has said to nobody else.
  def self.said = @said ||= []
  Locksidecar.log = said.method(:<<)

  def setup
    super
    @made = []
    @key = "test:#{SecureRandom.hex}"
    @making = Monitor.new # the first to ask for a client may be several threads
  end

  def teardown
    @made.each(&:close)
    super
  end

  def path = Helper.shared.path

  # A key that no other test has.
  attr_reader :key

  # A client that is closed after the test.
  def new_client(path = self.path, **options) = Locksidecar::Client.new(path, **options).tap { |made| @made << made }

  def client = @making.synchronize { @client ||= new_client(name: "one") }

  def other = @making.synchronize { @other ||= new_client(name: "other") }

  # A sidecar for this test.
  def sidecar(**settings)
    @making.synchronize do
      @sidecar ||= Locksidecar::Testing::Sidecar.new(**settings).tap do |made|
        @made << made
        made.start
      end
    end
  end

  def until_true(what, &look) = Locksidecar::Testing.until(what, &look)

  # Returns when the key has this number of waiters.
  def waiting(client, key, count = 1)
    until_true("#{count} wait for #{key}") { client.get(key, fresh: true).queue_length == count }
  end

  # Returns when the key is free and has no waiters.
  def free(client, key)
    until_true("#{key} is free") do
      info = client.get(key, fresh: true)
      info.free? && info.queue_length.zero?
    end
  end

  # Runs the block in a thread, and returns it.
  def aside(&block) = Thread.new(&block)

  # The result of a thread in its time.
  def result(thread)
    assert thread.join(LONG), "the thread does not end"
    thread.value
  end

  # Runs Ruby code in a process of its own, with the client loaded. Its output can be read.
  def ruby(code, *arguments, path: self.path)
    lib = File.expand_path("../lib", __dir__)
    command = [{ "LOCKSIDECAR_SOCKET" => path }, "ruby", "-w", "-I", lib, "-r", "locksidecar", "-e",
               "$stdout.sync = true; #{code}", *arguments]
    IO.popen(command, pgroup: true).tap { |process| @made << Program.new(process) }
  end

  # The result of the block in a forked child, or its error.
  def in_child
    path # a child would start a sidecar of its own, which nobody ends
    reader, writer = IO.pipe
    pid = Process.fork do
      reader.close
      Thread.new { sleep(LONG) and exit!(1) } # ends a child that hangs
      said = begin
        yield
      rescue Exception => e # rubocop:disable Lint/RescueException -- the parent looks at it
        "#{e.class}: #{e.message}"
      end
      writer.write(said.inspect)
      writer.close
      exit!(0)
    end
    writer.close
    said = reader.read
    Process.wait(pid)
    said
  ensure
    reader.close
  end

  # A process that ends with its test.
  class Program
    def initialize(process) = @process = process

    def close
      Process.kill("KILL", -@process.pid)
    rescue Errno::ESRCH
      nil # all have ended
    ensure
      @process.close
    end
  end
end

# Lets a client's parts be seen.
module Locksidecar
  Inside = [Transport, Connection, Interrupts, Wire, Stream, News, Forks, Clock, Release, Signal, Grant, Session, Lock, Options,
            Turn]
           .to_h { |one| [one.name.split("::").last.to_sym, one] }

  # Its private constants are seen only from here.
  module Interrupts
    Inside.update(Aside:, Worker:)
  end
end

class TestCase < Minitest::Test
  include Helper
end
