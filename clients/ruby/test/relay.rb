# frozen_string_literal: true

require "socket"
require "tmpdir"

# A relay that loses answers. The sidecar's side of such a connection stays open.
class Relay
  attr_reader :path, :asked
  # The number of answers to acquires that it loses; of releases that it answers itself: the store is not available; of
  # answers to releases that it loses; of answers to acquires in whose place it writes what nobody can read; whether it loses
  # the client's questions for its locks.
  attr_accessor :lose, :refuse, :lose_releases, :spoil, :mute

  REFUSAL = '{"status":503,"code":"store_unavailable","detail":"no store"}'
  UNREADABLE = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{not JSON"

  def initialize(upstream)
    @upstream = upstream
    @folder = Dir.mktmpdir("relay-")
    @path = File.join(@folder, "s.sock")
    @lose = @refuse = @lose_releases = @spoil = 0
    @mute = false
    @asked = [] # the first lines of the requests
    @sockets = []
    @listener = UNIXServer.new(@path)
    Thread.new { accept }
  end

  def close
    [@listener, *@sockets].each do |socket|
      socket.close
    rescue IOError
      nil
    end
    FileUtils.remove_entry(@folder)
  end

  private

  def accept
    loop do
      client = @listener.accept
      server = UNIXSocket.new(@upstream)
      @sockets.push(client, server)
      lost = []
      Thread.new { ask(client, server, lost) }
      Thread.new { answer(client, server, lost) }
    end
  rescue IOError, SystemCallError
    nil # it was closed
  end

  def ask(client, server, lost)
    loop do
      data = client.readpartial(65_536)
      @asked << data[/.*(?= HTTP)/]
      next refused(client) if data.start_with?("DELETE /v1/locks/") && refuse.positive?
      next if data.start_with?("PATCH ") && mute

      lost << true if loses?(data)
      server.write(data)
    end
  rescue IOError, SystemCallError
    server.close_write if lost.empty? && !server.closed?
  end

  def refused(client)
    self.refuse -= 1
    client.write("HTTP/1.1 503 x\r\nContent-Length: #{REFUSAL.bytesize}\r\n\r\n#{REFUSAL}")
  end

  def loses?(data)
    if data.start_with?("PUT ", "POST /v1/locks") && lose.positive?
      self.lose -= 1
    elsif data.start_with?("DELETE /v1/locks/") && lose_releases.positive?
      self.lose_releases -= 1
    end
  end

  def spoils?
    self.spoil -= 1 if spoil.positive? && @asked.last.start_with?("PUT ", "POST /v1/locks")
  end

  def answer(client, server, lost)
    loop do
      data = server.readpartial(65_536)
      break if lost.any?

      client.write(spoils? ? UNREADABLE : data)
    end
  rescue IOError, SystemCallError
    nil
  ensure
    client.shutdown unless client.closed?
  end
end
