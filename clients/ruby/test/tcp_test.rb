# frozen_string_literal: true

require_relative "helper"
require_relative "tcp"

# The sidecar over TCP, with TLS of a CA that the test makes, and a token.
class TcpTest < TestCase
  class Limit < StandardError; end

  # Names are looked up when there is an answer.
  module SlowNames
    class << self
      attr_accessor :answers
    end

    def getaddrinfo(*arguments)
      SlowNames.answers&.pop unless arguments[5].to_i.anybits?(Socket::AI_NUMERICHOST)
      super
    end
  end
  Addrinfo.singleton_class.prepend(SlowNames)

  def self.authority = @authority ||= Tcp::Authority.new

  def authority = TcpTest.authority

  def token = @token ||= Tcp.write("#{Tcp::TOKEN}\n#{Tcp::OTHER}\n")

  # The sidecar of this test, and what a client needs for it.
  def encrypted(**settings)
    sidecar(**authority.settings, **settings)
    @encrypted ||= { url: "https://localhost:#{Tcp.port(sidecar)}", token_file: token, ca_file: authority.file }
  end

  # A client of it, through a relay.
  def through(wire, **options) = new_client(nil, **encrypted, url: "https://localhost:#{wire.port}", **options)

  def wire = @wire ||= Tcp::Wire.new(Tcp.port(sidecar)).tap { |made| @made << made }

  # A client without a relay.
  def tls_client(**options) = new_client(nil, **encrypted, **options)

  # Proves: threat tcp
  def test_locks_waits_events_and_losses
    one, two = tls_client, tls_client
    lock = one.acquire(key)
    assert_nil two.try_acquire(key)
    waiter = aside { two.lock(key, wait: LONG, &:token) }
    waiting(one, key)
    lock.release
    assert_operator result(waiter), :>, lock.token
    one.events(key) { |event| break assert_equal(:state, event.type) }
    lost = one.acquire(key, wait: LONG)
    sidecar.lose(key)
    assert lost.wait_lost(LONG)
    kept = one.acquire(key, wait: LONG)
    sidecar.kill
    assert kept.wait_lost(LONG)
    sidecar.start
    refute_includes sidecar.log, Tcp::TOKEN
    refute_includes [one, lock, lost.lost].map { |each| "#{each.inspect}#{each}" }.join, Tcp::TOKEN
    refute_includes one.transport.inspect, Tcp::TOKEN
  end

  # Proves: client many connections
  # Above 64 connections that have shown no token, the sidecar ends the oldest.
  def test_an_app_begins_with_many_calls
    encrypted
    client = through(wire)
    client.acquire(key).release
    client.transport.connections.drop_idle
    before = wire.connections
    wire.held = true
    threads = Array.new(300) { |n| aside { client.acquire("#{key}:#{n}").release } }
    looks = []
    until_true("no more connect") do
      looks << [wire.connections, threads.all?(&:stop?)]
      assert_operator looks.last.first, :<=, before + 16
      looks.last(20) == [[before + 16, true]] * 20
    end
    wire.held = false
    assert_equal([true], threads.map { |thread| result(thread) }.uniq)
    40.times do |n| # a call that is interrupted gives its turn to others
      assert_raises(Limit) do
        Timeout.timeout(0.0005 * (n + 1), Limit) do
          loop do
            client.transport.connections.drop_idle
            client.get(key)
          end
        end
      end
    end
    assert_empty client.transport.connections.instance_variable_get(:@unsent)
  end

  # Proves: client forks
  # A child ends nothing of its parent's, neither the connection nor TLS.
  def test_a_forked_child_has_its_own_session
    client = tls_client
    lock = client.acquire(key)
    client.get(key) # an idle connection
    held = tls_client.acquire("#{key}:waits")
    waiter = aside { client.acquire("#{key}:waits", wait: LONG) }
    waiting(client, "#{key}:waits")
    2.times do
      said = in_child do
        next "not lost" unless lock.lost?

        client.try_acquire(key) and next "a second holder"
        mine = client.acquire("#{key}:child")
        GC.start
        [mine.release, client.get(key).mine]
      end
      assert_equal [true, false].inspect, said
      pid = Process.fork { exit }
      Process.wait(pid)
      refute lock.lost?
      assert lock.check
      assert_predicate client.get(key), :mine?
    end
    held.release
    assert result(waiter).release
    assert lock.release
  end

  def test_a_token_is_read_again
    file = Tcp.write(Tcp::OTHER)
    client = new_client(nil, url: "http://127.0.0.1:#{Tcp.port(sidecar(**Tcp.plain))}", token_file: file)
    assert_raises(Locksidecar::Forbidden) { client.get(key) }
    File.write(file, Tcp::TOKEN)
    until_true("the right token") { client.get(key).free? rescue false }
    File.delete(file) # away for a moment: nothing changes
    sleep(1.1) # longer than a token is believed in
    assert_predicate client.get(key), :free?
    File.write(file, "")
    sleep(1.1)
    assert_predicate client.get(key), :free?
  end

  # Proves: threat tcp
  # An error says what is wrong and which setting to look at. It never contains a token.
  def test_mistakes
    others = { expired: authority.settings(ends: -Tcp::HOUR), elsewhere: authority.settings(names: "DNS:sidecar.example"),
               address: authority.settings(names: "IP:127.0.0.1"), plain: Tcp.plain }
    others.transform_values! do |settings|
      Locksidecar::Testing::Sidecar.new(**settings).tap { |made| @made << made }.tap(&:start)
    end
    at = ->(name) { { url: "https://localhost:#{Tcp.port(others[name])}" } }
    by_address = { url: encrypted[:url].sub("localhost", "127.0.0.1") }
    nobody = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    mistakes = {
      { token_file: Tcp.write(Tcp::OTHER) } => [Locksidecar::Forbidden, /LOCKSIDECAR_TCP_TOKEN_FILE/],
      { token_file: nil } => [Locksidecar::Forbidden, /LOCKSIDECAR_TCP_TOKEN_FILE/],
      { token_file: "/no/token" } => [Locksidecar::InvalidRequest, %r{token_file is "/no/token", and cannot be read}],
      { token_file: Tcp.write("s3cret\rX: y") } => [Locksidecar::InvalidRequest, /token_file.*no token/],
      { token_file: Tcp.write("") } => [Locksidecar::InvalidRequest, /token_file.*no token/],
      { token_file: Tcp.write("a" * 513) } => [Locksidecar::InvalidRequest, /token_file.*up to 512/],
      { ca_file: Tcp::Authority.new.file } => [Locksidecar::Unavailable, /does not trust.*ca_file is.*has to be/],
      { ca_file: nil } => [Locksidecar::Unavailable, /does not trust.*LOCKSIDECAR_CA_FILE/],
      { ca_file: "/no/ca" } => [Locksidecar::InvalidRequest, %r{ca_file.*"/no/ca"}],
      { ca_file: token } => [Locksidecar::InvalidRequest, /ca_file.*PEM/],
      at.call(:expired) => [Locksidecar::Unavailable, /not valid now: certificate has expired/],
      at.call(:elsewhere) => [Locksidecar::Unavailable, /another name \(DNS:sidecar.example, not localhost\). url has to/],
      at.call(:address) => [Locksidecar::Unavailable, /another name \(IP Address:127.0.0.1, not localhost\)/],
      by_address => [Locksidecar::Unavailable, /another name \(DNS:localhost, not 127.0.0.1\)/],
      { url: encrypted[:url].sub("https", "http") } => [Locksidecar::InvalidRequest, %r{https://}],
      at.call(:plain) => [Locksidecar::Unavailable, /does not speak TLS.*wrong version number.*Check url/],
      { url: "https://localhost:#{nobody}" } => [Locksidecar::Unavailable, /nobody listens.*LOCKSIDECAR_TCP_ADDR.*url/],
      { url: "https://no.invalid:1" } => [Locksidecar::Unavailable, /host is not known.*Check url/],
      { socket: "/s" } => [Locksidecar::InvalidRequest, /socket and url are both given/]
    }
    bad = %w[https://u:s3cret@localhost:1 https://localhost https://localhost:1/v1 https://localhost:1?s=3
             https://localhost:1#s unix://host/s unix:/s unix:// localhost:1 ftp://h:1 https://localhost:0
             https://localhost:65536 https://:1] + ["https://local host:1", "https://localhost:1\r\nX: y", "https://a:1\n"]
    allowed = %r{\Aurl is .*; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT}
    bad.each { |url| mistakes[{ url: }] = [Locksidecar::InvalidRequest, allowed] }
    mistakes.each do |change, (kind, text)|
      given = encrypted.merge(change)
      e = assert_raises(kind, change) { new_client(given.delete(:socket), **given).get(key) }
      assert_match text, e.message, change
      refute_match(/s3cret|#{Tcp::TOKEN}|#{Tcp::OTHER}/, e.full_message)
    end
    assert_predicate tls_client(**at.call(:address), url: at.call(:address)[:url].sub("localhost", "127.0.0.1")).get(key), :free?
  end

  # A certificate of a newer CA, after the file was replaced.
  def test_a_ca_file_is_read_for_each_connection
    file = Tcp.write(File.read(Tcp::Authority.new.file))
    client = tls_client(ca_file: file)
    assert_raises(Locksidecar::Unavailable) { client.get(key) }
    File.write(file, File.read(authority.file))
    assert_predicate client.get(key), :free?
  end

  def test_which_address_wins
    before = ENV.to_h.slice("LOCKSIDECAR_URL", "LOCKSIDECAR_SOCKET", "LOCKSIDECAR_TOKEN_FILE")
    tcp = "http://127.0.0.1:1"
    [[[], "", "/env"], [[], tcp, tcp], [[], "unix:///url", "/url"], [["/code"], tcp, "/code"],
     [[{ url: "https://[::1]:2/" }], tcp, "https://[::1]:2"], [[{ url: "" }], tcp, tcp]].each do |given, url, want|
      ENV.update("LOCKSIDECAR_URL" => url, "LOCKSIDECAR_SOCKET" => "/env")
      options = given.grep(Hash).first || {}
      assert_equal "#<Locksidecar::Client #{want}>", new_client(given.grep(String).first, **options).inspect
    end
    ENV["LOCKSIDECAR_URL"] = "ftp://h:1"
    assert_match(/LOCKSIDECAR_URL is "ftp/, assert_raises(Locksidecar::InvalidRequest) { Locksidecar::Client.new }.message)
    ENV.update("LOCKSIDECAR_URL" => tcp, "LOCKSIDECAR_TOKEN_FILE" => "/no/file")
    e = assert_raises(Locksidecar::InvalidRequest) { Locksidecar::Client.new.get(key) }
    assert_match(/LOCKSIDECAR_TOKEN_FILE is/, e.message)
    assert_raises(TypeError) { Locksidecar::Client.new(nil, url: 5) }
    assert_raises(TypeError) { Locksidecar::Client.new(nil, token_file: 5) }
  ensure
    ENV.update({ "LOCKSIDECAR_URL" => nil, "LOCKSIDECAR_SOCKET" => nil, "LOCKSIDECAR_TOKEN_FILE" => nil }.merge(before))
  end

  # Without TLS nobody needs the library.
  def test_openssl_is_loaded_for_https_alone
    program = ruby(<<~'RUBY')
      Locksidecar::Client.new(nil, url: "http://127.0.0.1:1").get("k") rescue nil
      puts defined?(OpenSSL).inspect
      module Kernel
        prepend(Module.new { def require(name) = name == "openssl" ? raise(LoadError, "cannot load such file") : super })
      end
      begin
        Locksidecar::Client.new(nil, url: "https://localhost:1")
      rescue Locksidecar::InvalidRequest => e
        puts e.message
      end
    RUBY
    assert_equal "nil\n", program.gets
    assert_match(%r{url is https://localhost:1, and https needs the library openssl}, program.gets)
  end

  # A peer that vanishes is noticed by the system.
  def test_a_silent_connection_is_probed
    client = tls_client
    client.get(key)
    socket = client.transport.connections.instance_variable_get(:@open).keys.first.instance_variable_get(:@io)
    options = { TCP_NODELAY: 1, TCP_KEEPIDLE: 3, TCP_KEEPINTVL: 3, TCP_KEEPCNT: 5, TCP_USER_TIMEOUT: 15_000 }
    assert_equal options, options.to_h { |name, _| [name, socket.getsockopt(Socket::IPPROTO_TCP, Socket.const_get(name)).int] }
    assert socket.getsockopt(:SOCKET, :KEEPALIVE).bool
  end

  # Proves: client own clock
  # A lock ends by this process's clock although the network carries nothing, and connections are not refused either.
  def test_a_lock_ends_in_time_without_a_network
    sidecar(**authority.settings, TTL: "2s")
    client = through(wire)
    lock = client.acquire(key)
    promised = lock.grant.expires_at
    wire.mute = true
    client.transport.connections.drop_idle # so that the next question needs a connection
    until lock.lost?
      assert_operator now, :<, promised + LONG
      promised = lock.grant.expires_at
      sleep(0.01)
    end
    assert_in_delta promised, now, 0.5
    assert_equal "expired", lock.lost.reason
  end

  # Proves: client own clock
  def test_a_lock_ends_in_time_while_its_host_is_looked_up
    client = new_client(nil, url: "http://localhost:#{Tcp.port(sidecar(**Tcp.plain, TTL: "2s"))}", token_file: token)
    lock = client.acquire(key)
    acquired = now
    client.transport.connections.drop_idle
    SlowNames.answers = Queue.new
    assert lock.wait_lost(20)
    assert_operator now - acquired, :>, 1.5
    assert_equal "expired", lock.lost.reason
  ensure
    SlowNames.answers&.close
    SlowNames.answers = nil
  end

  # Proves: client deadline
  def test_a_server_that_accepts_and_never_answers
    server = TCPServer.new("127.0.0.1", 0)
    ["http", "https"].each do |scheme|
      client = new_client(nil, url: "#{scheme}://127.0.0.1:#{server.addr[1]}", timeout: 0.5)
      began = now
      e = assert_raises(Locksidecar::Unavailable) { client.get(key) }
      assert_in_delta 0.5, now - began, 0.4
      assert_match scheme == "http" ? /did not answer GET/ : /timed out.*Check url, and the network/, e.message
    end
    tls_client.get(key) # a timeout as usual lets a handshake take five seconds
    client = new_client(nil, url: "https://127.0.0.1:#{server.addr[1]}", ca_file: authority.file)
    began = now
    assert_raises(Locksidecar::Unavailable) { client.get(key) }
    assert_in_delta 5, now - began, 1
  ensure
    server.close
  end

  # Proves: client interrupts
  def test_a_connection_that_is_being_made_is_interrupted
    server = TCPServer.new("127.0.0.1", 0)
    client = new_client(nil, url: "https://127.0.0.1:#{server.addr[1]}")
    [-> { Timeout.timeout(0.3, Limit) { client.get(key) } },
     -> { result(aside { Timeout.timeout(0.3, Limit) { client.acquire(key) } }) }].each do |call|
      began = now
      assert_raises(Limit, &call)
      assert_in_delta 0.3, now - began, 0.3
    end
    assert_equal 0, client.transport.connections.size
  ensure
    server.close
  end

  # Proves: client interrupts
  # Calls that are interrupted at any moment leave no lock, and no connection in the middle of an answer.
  def test_interruptions_leave_no_lock
    client = tls_client
    ends = now + 4
    interrupted = 0
    me = Thread.current
    while now < ends || interrupted <= 50
      client.transport.connections.drop_idle if rand < 0.2 # so that some are in a handshake
      thread = aside do
        sleep(rand * 0.004)
        me.raise(Limit)
      end
      begin
        client.lock(key, wait: LONG) { nil }
        sleep(LONG)
      rescue Limit
        interrupted += 1
      end
      thread.join
      assert_predicate client.get("#{key}:other"), :free?
    end
    assert_empty client.locks(scope: :session).to_a
  end

  # Proves: client interrupts
  # A release on a new connection, whose handshake hangs, is not ended by an interruption, and holds a thread for two
  # seconds at most.
  def test_a_release_whose_handshake_hangs
    encrypted
    client = through(wire, ttl: 3600)
    lock = client.acquire(key)
    client.transport.connections.drop_idle
    wire.mute = true
    thread = aside { lock.release }
    until_true("it waits") { thread.status == "sleep" }
    began = now
    thread.raise(Limit)
    assert_raises(Limit) { result(thread) }
    assert_in_delta 2, now - began, 0.8
    refute_predicate lock, :released?
    wire.mute = false
    client.transport.connections.drop_idle
    assert lock.release
  end

  # TLS may have decrypted more than was read. Then nothing comes on the socket any more.
  def test_an_answer_in_one_record
    pieces = Locksidecar::Inside[:Connection].piece
    Locksidecar::Inside[:Connection].piece = 100
    client = tls_client(timeout: 3)
    locks = client.acquire_many(Array.new(20) { |n| "#{key}:#{n}" })
    assert_equal 20, client.locks(prefix: key).to_a.size
    client.events(key) { |event| break assert_equal(:state, event.type) }
    locks.each(&:release)
  ensure
    Locksidecar::Inside[:Connection].piece = pieces
  end

  # The sidecar ends TLS, or the connection in the middle of an answer.
  def test_an_answer_that_is_cut
    server = TCPServer.new("127.0.0.1", 0)
    context = authority.context(names: "IP:127.0.0.1")
    ends = [->(_) {}, ->(tls) { tls.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") }]
    thread = aside do
      ends.each do |answer|
        tls = OpenSSL::SSL::SSLSocket.new(server.accept, context)
        tls.accept
        tls.readpartial(1000)
        answer.call(tls)
        tls.to_io.close
      end
    end
    client = new_client(nil, url: "https://127.0.0.1:#{server.addr[1]}", ca_file: authority.file)
    2.times do
      e = assert_raises(Locksidecar::Unavailable) { client.get(key) }
      assert_equal "connection_lost", e.code
    end
    result(thread)
  ensure
    server.close
  end

  def now = Locksidecar::Inside[:Clock].now
end
