#!/usr/bin/env ruby
# frozen_string_literal: true

# Ruby with net/http from its standard library: three workers want an image. One pulls it, and the
# others get its result. They share one explicit session, as the threads of an app do.
require "json"
require "net/http"
require "socket"

SOCKET = ENV.fetch("LOCKSIDECAR_SOCKET", File.join(Dir.home, ".locksidecar/locksidecar.sock"))

# Net::HTTP over a Unix socket.
class UnixHTTP < Net::HTTP
  def initialize(...)
    super
    # Net::HTTP repeats PUT and DELETE by itself when a connection breaks. The sidecar would take the
    # second acquire for another one, so the caller decides.
    self.max_retries = 0
    # By default it replaces a connection after 2 idle seconds. This would release the locks of a
    # connection's own session.
    self.keep_alive_timeout = 86_400
  end

  def connect
    @socket = Net::BufferedIO.new(UNIXSocket.new(SOCKET), read_timeout: read_timeout)
    on_connect
  rescue SystemCallError => e
    abort "once.rb: there is no sidecar at #{SOCKET}; is it running, and is LOCKSIDECAR_SOCKET right? (#{e.message})"
  end
end

# A refusal of the sidecar. `code` is stable; decide by it.
class Refused < StandardError
  attr_reader :code

  def initialize(problem)
    @code = problem["code"]
    super(problem["detail"])
  end
end

# An explicit session: a thread reads its events, and other connections join it by its id.
class Session
  attr_reader :id

  def initialize(name)
    opened = Queue.new
    @reader = Thread.new { read_events(name, opened) }
    @reader.report_on_exception = false
    @id = opened.pop or @reader.value # raises the error of the reader
  end

  # Waits for the lock, runs the block, and releases with its outcome. Or returns the result of another
  # caller's block after a wait.
  def once(key)
    answer = call(Net::HTTP::Put, key, { wait_ms: -1, on_success: "skip" })
    return answer["result"] unless answer["granted"]

    begin
      result = yield answer["token"]
      outcome = "success"
    ensure
      query = "token=#{answer["token"]}&outcome=#{outcome || "failure"}"
      call(Net::HTTP::Delete, "#{key}?#{query}", outcome ? { result: result } : {})
    end
    result
  end

  def get(key)
    request = Net::HTTP::Get.new("/v1/locks/#{key}", "Cache-Control" => "no-cache")
    JSON.parse(UnixHTTP.new("localhost").start { |http| http.request(request) }.body)
  end

  def close
    UnixHTTP.new("localhost").start { |http| http.request(Net::HTTP::Delete.new("/v1/sessions/#{id}")) }
    @reader.join
  end

  private

  # A call that waits has a connection of its own, and no read timeout: wait_ms is the limit.
  def call(method, path, body)
    http = UnixHTTP.new("localhost")
    http.read_timeout = nil
    request = method.new("/v1/locks/#{path}", "Lock-Session" => id, "Content-Type" => "application/json")
    answer = http.start { http.request(request, JSON.generate(body)) }
    parsed = JSON.parse(answer.body)
    answer.is_a?(Net::HTTPSuccess) ? parsed : raise(Refused, parsed)
  end

  def read_events(name, opened)
    http = UnixHTTP.new("localhost")
    http.read_timeout = 40 # a comment comes every 15 s, so a silent sidecar is gone
    http.start do
      http.request(Net::HTTP::Post.new("/v1/sessions", "Content-Type" => "application/json"), JSON.generate(name: name)) do |answer|
        raise Refused, JSON.parse(answer.read_body) unless answer.is_a?(Net::HTTPSuccess)

        buffer = +""
        answer.read_body do |part|
          buffer << part
          while (event = buffer.slice!(/\A.*?\n\n/m))
            receive(event[/^event: (.*)/, 1], event[/^data: (.*)/, 1], opened)
          end
        end
      end
    end
  ensure
    opened << nil # ends the wait for a session that was not opened
  end

  def receive(event, data, opened)
    case event
    when "session" then opened << JSON.parse(data)["session"]
    when "lost", "stop" then warn "#{event}: #{data}" # an app stops its work here
    end
  end
end

session = Session.new("once.rb")
pulls = Queue.new
results = 3.times.map do |i|
  Thread.new do
    session.once("pull:img") do |token|
      pulls << i
      puts "worker #{i} pulls the image, fencing token #{token}"
      # The work: it lasts until the others wait. (no-cache: asks the store.)
      sleep 0.01 until session.get("pull:img")["queue_length"] == 2
      { "digest" => "sha256:4711" }
    end
  end
end.map(&:value)
session.close

puts "all three have #{results.uniq.inspect}"
abort "#{pulls.size} workers pulled" unless pulls.size == 1
abort "the results differ: #{results}" unless results == [{ "digest" => "sha256:4711" }] * 3
