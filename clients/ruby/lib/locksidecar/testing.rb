# frozen_string_literal: true

require "fileutils"
require "tmpdir"
require_relative "../locksidecar"

module Locksidecar
  # A real sidecar for the tests of an app, which misbehaves on request.
  #
  #   Locksidecar::Testing::Sidecar.run do |sidecar|
  #     client = Locksidecar::Client.new(sidecar.path)
  #     lock = client.acquire("report")
  #     sidecar.lose("report")
  #     assert lock.wait_lost(5)
  #   end
  #
  # `locksidecar/testing/minitest` and `locksidecar/testing/rspec` start one for a test.
  module Testing
    # The limit in seconds for what a sidecar must do at once: a busy machine may need long.
    PATIENCE = 60.0

    # Where the program `locksidecar` is: LOCKSIDECAR_BINARY, else in PATH.
    # @return [String]
    # @raise [Errno::ENOENT]
    def self.find_binary
      named = ENV.fetch("LOCKSIDECAR_BINARY", "")
      folders = ENV.fetch("PATH", "").split(File::PATH_SEPARATOR)
      found = named == "" ? folders.map { |folder| File.join(folder, "locksidecar") } : [named]
      program = found.find { |file| File.file?(file) && File.executable?(file) }
      return program if program

      where = named == "" ? "no program `locksidecar` is in PATH" : "LOCKSIDECAR_BINARY=#{File.expand_path(named)}"
      raise Errno::ENOENT, "#{where}: install the sidecar, or let LOCKSIDECAR_BINARY name its program"
    end

    # Waits until the block's result is true.
    # @api private
    def self.until(what)
      ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
      until yield
        raise "not within #{PATIENCE} s: #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > ends

        sleep(0.005)
      end
    end

    # A sidecar in a process of its own, on a socket of its own. Its store is `memory://`, so its locks end with it. Anybody
    # may break its locks, and a stop waits for nobody.
    class Sidecar
      # The socket, for `Client.new(path)`.
      # @return [String]
      attr_reader :path

      # Starts one for the time of the block.
      # @yieldparam sidecar [Sidecar]
      def self.run(**settings)
        sidecar = new(**settings)
        begin
          sidecar.start
          yield sidecar
        ensure
          sidecar.close
        end
      end

      # @param settings [Hash] those of docs/configuration.md, without the prefix: `TTL: "2s"`
      def initialize(**settings)
        @folder = Dir.mktmpdir("locksidecar-") # a short path: sockets need one
        @path = File.join(@folder, "s.sock")
        @settings = { STORE_URL: "memory://", ALLOW_FORCE: "true", DRAIN_TIMEOUT: "0s", **settings }
        @pid = nil
      end

      # What a process must find in its environment, so that its clients use this sidecar; nil: not there.
      # @return [Hash]
      def env = { "LOCKSIDECAR_SOCKET" => path, "LOCKSIDECAR_URL" => nil }

      # Starts the sidecar, and returns when it grants locks; with ready: false, when it answers.
      # @raise [Errno::ENOENT] there is no program
      # @raise [RuntimeError] it has ended
      def start(ready: true)
        raise "this sidecar runs already" if @pid

        log = File.join(@folder, "log")
        @pid = Process.spawn(environment, Testing.find_binary, "serve", in: File::NULL, %i[out err] => [log, "a"])
        Testing.until("the sidecar answers") { answers?(ready) }
      end

      # Stops the sidecar as Kubernetes would (SIGTERM), and waits for its end. Its holders lose their locks.
      def stop = finish("TERM")

      # Kills the sidecar, as a crash would. Until `start` it is away: no call is answered.
      def kill = finish("KILL")

      # In the block the sidecar is away, and afterwards it is a new one without locks.
      def away
        kill
        yield
      ensure
        start
      end

      # Lets the sidecar hang until `resume`: calls are accepted and not answered, and leases run out.
      def hang
        signal("STOP")
        Testing.until("all its threads have stopped") { stopped? } # they do not stop at the same time
      end

      # Lets a sidecar go on that hangs.
      def resume = signal("CONT")

      # In the block the sidecar hangs.
      def hanging
        hang
        yield
      ensure
        resume
      end

      # Takes a lock from its holder, who is told that it is lost, with the reason `forced`. Of a shared lock or a
      # semaphore all holders lose it, or with `token` one.
      # @raise [NotHeld]
      def lose(key, token: nil)
        client = Client.new(path, name: "test")
        client.force_release(key, token:)
      ensure
        client&.close
      end

      # Sends a signal to the process.
      def signal(name)
        raise "this sidecar does not run" unless @pid

        Process.kill(name, @pid)
      end

      # @return [String] what the sidecar has logged
      def log = File.read(File.join(@folder, "log"))

      # Kills the sidecar if it runs, and removes its files.
      def close
        kill
        FileUtils.remove_entry(@folder, true)
      end

      private

      # Without the sidecar's variables of the app, and with this one's.
      def environment
        own = ENV.keys.grep(/\ALOCKSIDECAR_/).to_h { |name| [name, nil] }
        own.merge(env, @settings.transform_keys { |name| "LOCKSIDECAR_#{name}" })
      end

      def answers?(ready)
        if Process.wait(@pid, Process::WNOHANG)
          @pid = nil
          raise "the sidecar has ended with #{$?.exitstatus}. Its log:\n#{log}"
        end
        client = Client.new(path)
        ready ? client.get("ready").free? : client.describe.version
      rescue Unavailable
        false
      ensure
        client&.close
      end

      def stopped?
        Dir.glob("/proc/#{@pid}/task/*/stat").all? { |file| File.read(file).include?(") T ") }
      end

      def finish(name)
        return unless @pid

        Process.kill("CONT", @pid) # it may hang
        Process.kill(name, @pid)
        Process.wait(@pid)
        @pid = nil
      end
    end
  end
end
