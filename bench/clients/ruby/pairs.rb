# frozen_string_literal: true

# pairs.rb locksidecar|redis|socket SOCKET CALLERS SECONDS: prints the pairs of acquire and release a second, each thread with a key of its own.
# Before that, all threads want one key, and it fails if two have it at a time. `redis` does what the gem redlock does on one server: SET NX PX, and a
# script that deletes the key if it has the caller's token. Each thread has a connection of its own, as from a pool. `socket` is a bare loop over the sidecar's
# socket: constant headers, and nothing is read of an answer but its length and its token. So it shows what the hop through the sidecar costs without a client.
require "securerandom"

library, socket = ARGV
callers = Integer(ARGV[2])
seconds = Float(ARGV[3])

if library == "locksidecar"
  require_relative "../../../clients/ruby/lib/locksidecar"
  client = Locksidecar::Client.new(socket)
  ACQUIRE = lambda do |key|
    lock = client.try_acquire(key)
    lock && -> { lock.release }
  end
elsif library == "socket"
  require "socket"
  STREAM = UNIXSocket.new(socket) # the session's
  STREAM << "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
  SESSION = STREAM.each_line.lazy.filter_map { |line| line[/"session":"(\h+)"/, 1] }.first
  CALL = lambda do |method, target, body|
    conn = Thread.current[:conn] ||= UNIXSocket.new(socket)
    conn.write("#{method} #{target} HTTP/1.1\r\nHost: localhost\r\nLock-Session: #{SESSION}\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}")
    answer = +""
    answer << conn.readpartial(4096) until (head, text = answer.split("\r\n\r\n", 2)) && text && text.bytesize >= head[/^Content-Length: (\d+)/i, 1].to_i
    text if answer.start_with?("HTTP/1.1 200") || (raise answer unless answer.start_with?("HTTP/1.1 423"))
  end
  ACQUIRE = lambda do |key|
    text = CALL.call("PUT", "/v1/locks/#{key}", '{"wait_ms":0}') or next
    token = text[/"token":(\d+)/, 1]
    -> { CALL.call("POST", "/v1/locks/#{key}/release", "{\"token\":#{token}}") }
  end
else
  require "redis"
  DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
  SHA = Redis.new(path: socket).script(:load, DELETE)
  ACQUIRE = lambda do |key|
    redis = Thread.current[:redis] ||= Redis.new(path: socket)
    token = SecureRandom.hex(16)
    if redis.set(key, token, nx: true, px: 30_000)
      -> { redis.evalsha(SHA, [key], [token]) == 1 or raise "the key was not held" }
    end
  end
end

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

# each runs all threads for a time, and returns the number of pairs a second.
def each(callers, length)
  began = now
  threads = Array.new(callers) do |i|
    Thread.new do
      Thread.current.report_on_exception = false
      pairs = 0
      pairs += 1 if yield(i) while now - began < length
      pairs
    end
  end
  threads.sum(&:value) / (now - began)
end

holders = []
contended = each(callers, 0.5) do |i|
  release = ACQUIRE.call("bench:one")
  next false unless release

  holders << i
  Thread.pass
  raise "#{holders} had the lock at a time" unless holders == [i]

  holders.delete(i)
  release.call
  true
end
raise "nobody got the lock" if contended.zero?

own = lambda do |i|
  (ACQUIRE.call("bench:#{i}") || raise("a key that nobody else uses is held")).call
  true
end
each(callers, 1, &own) # warm
puts each(callers, seconds, &own).round
