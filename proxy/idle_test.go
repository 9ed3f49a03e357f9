package proxy

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// An empty line between two requests is no request: the connection is idle.
// Proves: trap IdleTimeout
func TestEmptyLinesBetweenRequests(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.Request = unhurried })
	idle := make(map[string]*client)
	for name, lines := range map[string][2]string{
		"behind the body": {"\r\n", ""}, "later": {"", "\r\n"}, "line feed": {"", "\n"}, "many": {"\r\n\r\n\r\n\r\n\r\n\r\n", "\r\n\r\n"},
		"in two pieces": {"\r", "\n"}, "none": {"", ""},
	} {
		c := f.dial()
		c.send(requestText("PUT", "/v1/locks/"+named(name), "{}") + lines[0])
		c.read().want(t, 200, "")
		c.send(lines[1])
		idle[name] = c
	}
	var slow sync.WaitGroup
	// Those who send a part of a request have their answer when its time is over.
	for name, parts := range map[string][2]string{
		"head": {"", "GET /v"}, "head, sent ahead": {"GET /v1 HTTP/1.1\r\nHost: x\r\n", ""}, "empty line, head": {"\r\n", "G"},
		"empty lines, head": {"\r\n\r\n", "\r\nGET /v1 HTTP/1.1\r\n"}, "empty line and head": {"\r\nGET", ""},
		"body":    {"PUT /v1/locks/b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", "\r\n"},
		"chunks":  {"PUT /v1/locks/b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r", ""},
		"trailer": {"PUT /v1/locks/b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "\r"},
	} {
		c := f.dial()
		slow.Go(func() { // all at a time: the first answer may wait for what was sent ahead
			for i, text := range []string{requestText("GET", "/v1", "") + parts[0], parts[1]} {
				want := []int{200, 408}[i]
				_, _ = io.WriteString(c, text) // a 408 may be before it
				if a, err := readAnswer(c.r); err != nil || a.StatusCode != want {
					t.Errorf("%s: %s, %v, want %d", name, a.text, err, want)
					return
				}
			}
		})
	}
	slow.Wait()
	await.Silent(t, f.locks.ended, "end of a session")
	for name, c := range idle {
		c.do("GET", "/v1/locks/"+named(name), "").want(t, 200, "")
	}
}

// named is a name as it may stand in a path.
func named(name string) string { return strings.ReplaceAll(name, " ", "-") }

// Idle connections on the admin address keep nobody out.
// Proves: threat admin listener
func TestAdminConnections(t *testing.T) {
	f := start(t, func(c *Config) { c.AdminAddr = "127.0.0.1:0" })
	addr := f.AdminAddr().String()
	oldest := dialTo(t, "tcp", addr)
	await.Until(t, "the first is there", func() bool { return len(f.conns.Conns()) == 1 })
	for i := range 3 * conn.MaxAdmin {
		next := dialTo(t, "tcp", addr)
		next.send("GET /h")
		// And whose place it has taken is gone: a crowd that comes faster than others go is refused.
		await.Until(t, "the next is there", func() bool { return f.serves(next) && len(f.conns.Conns()) == min(i+2, conn.MaxAdmin) })
	}
	oldest.wantEnd()
	probe := dialTo(t, "tcp", addr)
	a := probe.do("GET", "/healthz", "")
	a.want(t, 200, "")
	if !a.Close {
		t.Error("the answer does not say that the connection closes")
	}
	probe.wantEnd()
}

// serves tells whether the server has a connection of a client, over TCP.
func (f *fixture) serves(c *client) bool {
	return slices.ContainsFunc(f.conns.Conns(), func(s *conn.Conn) bool { return s.RemoteAddr().String() == c.LocalAddr().String() })
}

// A request that a proxy before this server may read in another way is refused.
// Proves: threat malformed request
func TestBadFraming(t *testing.T) {
	f := start(t)
	const begin, end, chunks = "PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\n", "\r\n", "2\r\n{}\r\n0\r\n\r\n"
	next := requestText("GET", "/v1", "")
	for _, request := range []string{
		begin + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n" + end + chunks + next,
		begin + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n" + end + chunks + next,
		begin + "transfer-encoding: chunked\r\ncontent-length: 4\r\n" + end + chunks + next,
		begin + "Transfer-Encoding: identity\r\n" + end + next,
		begin + "Content-Length: 2\r\nTransfer-Encoding: identity\r\n" + end + "{}" + next,
		begin + "Transfer-Encoding: chunked\r\nTrailer: Lock-Session\r\n" + end + "0\r\nLock-Session: x\r\n\r\n" + next,
		begin + "Transfer-Encoding: gzip, chunked\r\n" + end + chunks + next,
		// Lines that go on in the next one, or end in LF alone: of such a head no header is
		// read in order, those that are checked here included.
		begin + "Transfer-Encoding:\r\n chunked\r\n" + end + chunks + next,
		begin + "X: y\r\n\tz\r\nContent-Length: 2\r\n" + end + "{}" + next,
		begin + "Content-Length: 4\nTransfer-Encoding: chunked\r\n" + end + chunks + next,
		begin + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n" + "\n" + chunks + next,
		begin + "Lock-Session: x\r\nContent-Length: 2\r\n" + "\n" + "{}" + next,
	} {
		c := f.dial()
		c.send(request)
		c.read().want(t, 400, "invalid_request")
		c.wantEnd()
	}
	if f.locks.granted() != 0 {
		t.Error("a refused request did something")
	}
	c := f.dial()
	c.send(begin + "Transfer-Encoding: Chunked\r\n" + end + chunks)
	c.read().want(t, 200, "")
	// A trailer is no header, whatever it says.
	c.send("GET /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nLock-Session: x\r\n\r\n")
	c.read().want(t, 200, "")
}
