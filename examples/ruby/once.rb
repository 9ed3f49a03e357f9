#!/usr/bin/env ruby
# frozen_string_literal: true

# Ruby with net/http from its standard library: three workers want an image; one pulls it, and the
# others receive what it pulled. They share one explicit session, as the threads of an app do.
require "json"
require "net/http"
require "socket"

SOCKET = ENV.fetch("LOCKSIDECAR_SOCKET", "/run/locksidecar/locksidecar.sock")

# Net::HTTP over a Unix socket.
class UnixHTTP < Net::HTTP
  def initialize(...)
    super
    # Net::HTTP sends PUT and DELETE again by itself when a connection breaks. A second acquire would
    # be a stranger to the first one, so whoever calls decides.
    self.max_retries = 0
    # By default it replaces a connection after 2 idle seconds. For calls that name a session that is
    # only a waste; a lock without one would be released by it.
    self.keep_alive_timeout = 86_400
  end

  def connect
    @socket = Net::BufferedIO.new(UNIXSocket.new(SOCKET), read_timeout: read_timeout)
    on_connect
  rescue SystemCallError => e
    abort "once.rb: no sidecar listens at #{SOCKET}; is it running, and LOCKSIDECAR_SOCKET right? (#{e.message})"
  end
end

# What the sidecar says no with. `code` is stable; decide by it.
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
    @id = opened.pop or @reader.value # raises what went wrong
  end

  # Waits for the lock, does the block, and says how it went. Or returns what somebody else's block,
  # for which it has waited, has returned.
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

  def look(key)
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
    http.read_timeout = 40 # a comment comes every 15 s; without one, the sidecar is gone
    http.start do
      http.request(Net::HTTP::Post.new("/v1/sessions", "Content-Type" => "application/json"), JSON.generate(name: name)) do |answer|
        raise Refused, JSON.parse(answer.read_body) unless answer.is_a?(Net::HTTPSuccess)

        buffer = +""
        answer.read_body do |part|
          buffer << part
          while (event = buffer.slice!(/\A.*?\n\n/m))
            hear(event[/^event: (.*)/, 1], event[/^data: (.*)/, 1], opened)
          end
        end
      end
    end
  ensure
    opened << nil # nobody waits for a session that did not come
  end

  def hear(event, data, opened)
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
      # The work: it takes until the others stand in line. (no-cache: as the store knows it.)
      sleep 0.01 until session.look("pull:img")["queue_length"] == 2
      { "digest" => "sha256:4711" }
    end
  end
end.map(&:value)
session.close

puts "all three have #{results.uniq.inspect}"
abort "#{pulls.size} workers pulled" unless pulls.size == 1
abort "the results differ: #{results}" unless results == [{ "digest" => "sha256:4711" }] * 3
