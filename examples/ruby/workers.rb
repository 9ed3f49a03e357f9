#!/usr/bin/env ruby
# frozen_string_literal: true

# The Ruby client in forked workers, as those of Puma or Resque: they share one account, and two of them may use the
# printer at a time. The client is made before the fork. The parent's lock stays its own.
require "locksidecar"
require "tmpdir"

CLIENT = Locksidecar::Client.new
WORKERS = 4
ROUNDS = 5

ACCOUNT = File.join(Dir.tmpdir, "account-#{Process.pid}")
File.write(ACCOUNT, "0")

def balance = File.read(ACCOUNT).to_i

def work(worker)
  ROUNDS.times do
    # Without the lock, workers would overwrite each other's sums.
    CLIENT.lock("account:7", wait: 30) do |lock|
      before = balance
      sleep 0.002
      abort "the lock is lost: #{lock.lost.reason}" if lock.lost?
      File.write(ACCOUNT, (before + 1).to_s)
    end
  end
  CLIENT.semaphore("printer", limit: 2, wait: 30) { |permit| puts "worker #{worker} prints in slot #{permit.slot}" }
end

CLIENT.lock("shop:open") do |open|
  pids = Array.new(WORKERS) { |worker| fork { work(worker) } }
  abort "a worker has failed" unless pids.map { |pid| Process.wait2(pid)[1] }.all?(&:success?)
  open.check # the workers did not touch it
end
puts "the account has #{balance}"
abort "it must have #{WORKERS * ROUNDS}" unless balance == WORKERS * ROUNDS
File.delete(ACCOUNT)
CLIENT.close
