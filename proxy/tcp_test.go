package proxy

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/bearer"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

const (
	token      = "0123456789abcdef0123456789abcdef"
	authorized = "Authorization: Bearer " + token
)

// tokenFile writes a file of tokens.
func tokenFile(t *testing.T, tokens ...string) string {
	t.Helper()
	file := filepath.Join(tempDir(t), "tokens")
	if err := os.WriteFile(file, []byte(strings.Join(tokens, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withToken lets a server ask for a token on loopback.
func withToken(t *testing.T) func(*Config) {
	tokens, err := bearer.Load(tokenFile(t, token), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.TCPAddr, c.Authorized = "127.0.0.1:0", tokens.Match }
}

// withTLS lets a server have a certificate for localhost.
func withTLS(t *testing.T, ca *certtest.Authority) func(*Config) {
	made := ca.Issue("localhost", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(made.Cert, made.Key)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		c.TCPAddr, c.TLS = "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
}

// encrypted wraps a client's connection.
func (c *client) encrypted(ca *certtest.Authority) *client {
	c.t.Helper()
	over := tls.Client(c.Conn, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
	if err := over.Handshake(); err != nil {
		c.t.Fatal(err)
	}
	c.Conn = over
	c.r.Reset(over)
	return c
}

// A call over TCP needs a token where there is one, on each path, and whatever its Host.
// Proves: threat tcp
func TestTCPNeedsAToken(t *testing.T) {
	f := start(t, withToken(t))
	addr := f.TCPAddr().String()
	for _, headers := range [][]string{
		nil,
		{"Authorization: Bearer"},
		{"Authorization: Bearer "},
		{"Authorization: Bearer " + token[1:]},
		{"Authorization: Bearer " + token + "0"},
		{"Authorization: Bearer  " + token},
		{"Authorization: Basic " + token},
		{"Authorization: " + token},
		{"Authorization: Bearer " + strings.ToUpper(token)},
		{authorized, "Authorization: Bearer wrong"},
		{authorized, authorized},
	} {
		for _, target := range []string{"/v1/locks/a", "/v1", "/", "/healthz", "/metrics", "/nothing"} {
			c := dialTo(t, "tcp", addr)
			a := c.do("GET", target, "", headers...)
			a.want(t, 401, "unauthorized")
			if got := a.Header.Get("WWW-Authenticate"); got != "Bearer" {
				t.Errorf("WWW-Authenticate: %q", got)
			}
			c.wantEnd()
		}
	}
	if a := f.dial().do("GET", "/v1/locks/a", ""); a.json["state"] != "free" {
		t.Errorf("a stranger's call was carried out: %s", a.text)
	}
	c := dialTo(t, "tcp", addr)
	c.do("PUT", "/v1/locks/a", "", authorized).want(t, 200, "")
	c.send("GET /v1 HTTP/1.1\r\nHost: sidecar.example:7624\r\nauthorization: bearer " + token + "\r\n\r\n")
	c.read().want(t, 200, "")
	// Each call shows the token, and a page does not come in with a foreign origin.
	c.do("GET", "/v1", "", authorized, "Origin: http://evil.example").want(t, 403, "forbidden")
	c.do("GET", "/v1", "").want(t, 401, "unauthorized")
	c.wantEnd()
	await.Receive(t, f.locks.ended, "the session's end")
	// The socket needs none.
	f.dial().do("GET", "/v1", "").want(t, 200, "")
	if text := f.log.text(); strings.Contains(text, token) || strings.Contains(text, token[1:]) || !strings.Contains(text, "code=unauthorized") {
		t.Errorf("log:\n%s", text)
	}
}

// The body of a stranger is not read.
// Proves: threat tcp
func TestTCPDoesNotReadAStrangersBody(t *testing.T) {
	f := start(t, withToken(t))
	c := dialTo(t, "tcp", f.TCPAddr().String())
	c.send("PUT /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n")
	c.read().want(t, 401, "unauthorized")
	c = dialTo(t, "tcp", f.TCPAddr().String())
	c.send("PUT /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n")
	c.send(`{"dat`)
	c.read().want(t, 401, "unauthorized")
	c = dialTo(t, "tcp", f.TCPAddr().String())
	c.do("PUT", "/v1/locks/a", `{"data":{"a":1}}`, authorized).want(t, 200, "")
	c.do("PUT", "/v1/locks/a", `{"data":"`+strings.Repeat("a", 70_000)+`"}`, authorized).want(t, 413, "too_large")
}

// Strangers take neither the connections of apps nor all descriptors, and keep no app out.
// Proves: threat tcp
func TestStrangersTakeNoConnectionOfApps(t *testing.T) {
	f := start(t, withToken(t), func(c *Config) { c.MaxConns = 2 })
	addr := f.TCPAddr().String()
	app := dialTo(t, "tcp", addr)
	app.do("PUT", "/v1/locks/a", "", authorized).want(t, 200, "")
	var strangers []*client
	for range conn.MaxUnproven + 10 {
		strangers = append(strangers, dialTo(t, "tcp", addr))
	}
	if n, err := strangers[0].Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the oldest stranger stays", n, err)
	}
	second := dialTo(t, "tcp", addr)
	second.do("GET", "/v1", "", authorized).want(t, 200, "")
	dialTo(t, "tcp", addr).do("GET", "/v1", "", authorized).want(t, 429, "limit")
	app.do("GET", "/v1/locks/a", "", authorized).want(t, 200, "")
	await.Until(t, "those that made room are gone", func() bool { return len(f.conns.Conns()) <= conn.MaxUnproven+2 })
	if n := f.conns.Apps(); n != 2 {
		t.Errorf("%d connections of apps", n)
	}
	for _, c := range append(strangers, app, second) {
		_ = c.Close()
	}
	await.Until(t, "all are gone", func() bool { return len(f.conns.Conns()) == 0 && f.conns.Apps() == 0 })
}

// Sessions by connection, explicit sessions, waits and closes work over TLS as on the socket.
// Proves: threat tcp
func TestTCPWithTLS(t *testing.T) {
	ca := certtest.New(t)
	f := start(t, withToken(t), withTLS(t, ca))
	dial := func() *client { return dialTo(t, "tcp", f.TCPAddr().String()).encrypted(ca) }
	c := dial()
	c.do("PUT", "/v1/locks/a", "", authorized).want(t, 200, "")
	c.do("GET", "/v1", "", authorized, "Origin: https://localhost").want(t, 200, "")
	c.do("GET", "/v1", "", authorized, "Origin: http://localhost").want(t, 403, "forbidden")

	stream := dial()
	stream.request("POST", "/v1/sessions", "", authorized)
	e := stream.events()
	_, data := e.next()
	session := "Lock-Session: " + data["session"].(string)
	waiter := dial()
	waiter.request("PUT", "/v1/locks/a", `{"wait_ms":60000}`, authorized, session)
	f.dial().do("GET", "/v1/locks/a", "").want(t, 200, "")
	await.Until(t, "the call waits", func() bool {
		return f.dial().do("GET", "/v1/locks/a", "").json["queue_length"] == 1.0
	})
	// The close of a connection without close_notify, and with one, releases what it holds.
	_ = c.Conn.(*tls.Conn).NetConn().Close()
	await.Receive(t, f.locks.ended, "the session's end")
	waiter.read().want(t, 200, "")
	_ = stream.Close()
	await.Receive(t, f.locks.ended, "the end of the explicit session")
	await.Until(t, "the session's lock is released", func() bool { // which it is after its end
		return f.dial().do("GET", "/v1/locks/a", "").json["state"] == "free"
	})
	// A caller that leaves under a call.
	held := dial()
	held.do("PUT", "/v1/locks/b", "", authorized).want(t, 200, "")
	second := dial()
	second.request("PUT", "/v1/locks/b", `{"wait_ms":60000}`, authorized)
	await.Until(t, "the call waits", func() bool {
		return f.dial().do("GET", "/v1/locks/b", "").json["queue_length"] == 1.0
	})
	_ = second.Close()
	await.Until(t, "the waiting call has left", func() bool {
		return f.dial().do("GET", "/v1/locks/b", "").json["queue_length"] == 0.0
	})
}

// A long answer over TLS arrives whole.
func TestLongAnswerWithTLS(t *testing.T) {
	ca := certtest.New(t)
	f := start(t, withTLS(t, ca))
	f.fill()
	c := dialTo(t, "tcp", f.TCPAddr().String()).encrypted(ca)
	c.do("GET", longList, "").want(t, 200, "")
}

func TestNoTLSHandshake(t *testing.T) {
	ca := certtest.New(t)
	f := start(t, withTLS(t, ca), func(c *Config) { c.Timeouts.Handshake = 100 * time.Millisecond })
	c := dialTo(t, "tcp", f.TCPAddr().String())
	c.request("GET", "/v1", "")
	a := c.read()
	a.want(t, 400, "invalid_request")
	a.detail(t, "https://")
	f.wantLine(`"connection without a TLS handshake"`, "does not look like a TLS handshake")
	c.wantEnd()

	silent := dialTo(t, "tcp", f.TCPAddr().String())
	if n, err := silent.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a silent connection stays:", n, err)
	}
	f.wantLine(`"connection without a TLS handshake"`, "deadline")

	distrusts := tls.Client(dialTo(t, "tcp", f.TCPAddr().String()), &tls.Config{ServerName: "localhost"})
	if err := distrusts.Handshake(); err == nil {
		t.Error("an unknown CA is trusted")
	}
	old := tls.Client(dialTo(t, "tcp", f.TCPAddr().String()), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err := old.Handshake(); err == nil {
		t.Error("TLS 1.1 is taken")
	}
	await.Until(t, "all are gone", func() bool { return len(f.conns.Conns()) == 0 })
}

// An answer never promises a lock for longer than the connection of its session is surely believed in.
func TestPromisesEndBeforeASilentConnection(t *testing.T) {
	f := start(t, withToken(t), func(c *Config) { c.TTL = 2 * time.Second })
	limit := conn.SilenceFor(2 * time.Second)
	addr := f.TCPAddr().String()
	c := dialTo(t, "tcp", addr)
	a := c.do("PUT", "/v1/locks/a", `{"ttl_ms":3600000}`, authorized)
	a.want(t, 200, "")
	if got := ms(a, "expires_in_ms"); got <= 0 || got > limit.Limit-limit.Probe {
		t.Errorf("promised for %s, with %+v", got, limit)
	}
	stream := dialTo(t, "tcp", addr)
	stream.request("POST", "/v1/sessions", `{"ttl_ms":3600000}`, authorized)
	e := stream.events()
	_, data := e.next()
	if got := data["expires_in_ms"].(float64); got <= 0 || got > float64((limit.Limit-limit.Probe).Milliseconds()) {
		t.Errorf("the session begins with %v", got)
	}
	session := "Lock-Session: " + data["session"].(string)
	for _, at := range []*client{c, f.dial()} { // what counts is the connection of the session
		a = at.do("PUT", "/v1/locks/"+at.LocalAddr().Network(), "", authorized, session)
		if got := ms(a, "expires_in_ms"); got <= 0 || got > limit.Limit-limit.Probe {
			t.Errorf("over %s: %s", at.LocalAddr().Network(), got)
		}
		a = at.do("PATCH", "/v1/locks/"+at.LocalAddr().Network(), `{"token":`+strconv.FormatInt(int64(a.json["token"].(float64)), 10)+`}`, authorized, session)
		if got := ms(a, "expires_in_ms"); got <= 0 || got > limit.Limit-limit.Probe {
			t.Errorf("PATCH over %s: %s", at.LocalAddr().Network(), got)
		}
		a = at.do("POST", "/v1/locks", `{"keys":["`+at.LocalAddr().Network()+`2"]}`, authorized, session)
		if got := a.json["locks"].([]any)[0].(map[string]any)["expires_in_ms"].(float64); got <= 0 || got > float64((limit.Limit-limit.Probe).Milliseconds()) {
			t.Errorf("POST over %s: %v", at.LocalAddr().Network(), got)
		}
	}
	// A bind:ttl lock does not end with a connection, and a connection of the socket cannot vanish. So both are promised for their whole time.
	a = c.do("PUT", "/v1/locks/t", `{"bind":"ttl","ttl_ms":3600000}`, authorized)
	if got := ms(a, "expires_in_ms"); got < 30*time.Minute {
		t.Errorf("bind:ttl is promised for %s", got)
	}
	a = f.dial().do("PUT", "/v1/locks/u", `{"ttl_ms":3600000}`)
	if got := ms(a, "expires_in_ms"); got < 30*time.Minute {
		t.Errorf("over the socket: %s", got)
	}
}

// ms is a member of an answer that is a time.
func ms(a answer, member string) time.Duration {
	return time.Duration(a.json[member].(float64) * float64(time.Millisecond))
}
