package proxy

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
)

func (f *fixture) session(id string) *lease.Session {
	f.t.Helper()
	s, err := f.locks.Session(id)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// Proves: trap late head
func TestStreamBeginsAtOnce(t *testing.T) {
	f := start(t)
	c := f.dial()
	c.request("POST", "/v1/sessions", `{"ttl_ms":30000,"name":"worker"}`)
	e := c.events()
	name, data := e.next()
	id, _ := data["session"].(string)
	if s := f.session(id); name != "session" || data["ttl_ms"] != 30000.0 || data["expires_in_ms"] != float64(s.ExpiresIn().Milliseconds()) {
		t.Error(name, data)
	}
	if e.comments == 0 {
		t.Error("no comment line before the first event")
	}
	o := f.locks.options(id)
	if o.TTL != 30*time.Second || o.Name != "worker" || !o.Explicit {
		t.Errorf("%+v", o)
	}
}

func TestStreamReportsLostLocks(t *testing.T) {
	f := start(t)
	e, id := f.explicit()
	s := f.session(id)
	const n = 1000
	for i := range n {
		f.locks.options(id).OnLost(lease.Lost{Key: fmt.Sprintf("k\n%d", i), Token: int64(i + 1), Reason: lease.LostExpired})
	}
	for i := range n {
		name, data := e.next()
		if name != "lost" || data["key"] != fmt.Sprintf("k\n%d", i) || data["token"] != float64(i+1) || data["reason"] != "expired" {
			t.Fatal(i, name, data)
		}
	}
	// Events from before the end are sent before the end.
	f.locks.options(id).OnLost(lease.Lost{Key: "last", Token: 1, Reason: lease.LostStore})
	s.End(lease.EndDeleted)
	if _, data := e.next(); data["key"] != "last" {
		t.Error(data)
	}
	if name, _ := e.next(); name != "" {
		t.Error(name)
	}
	e.wantEnd()
}

// A session's stream says of each lock why it is lost, before it ends: also if the sidecar stops, or the client has only closed its
// side of the connection. Nothing is lost if the client ended the session.
// Proves: promise 10
func TestStreamEndsWithItsLosses(t *testing.T) {
	for reason, end := range map[string]func(f *fixture, m *lease.Manager, e *events, id string){
		"shutdown":      func(_ *fixture, m *lease.Manager, _ *events, _ string) { m.Stop() },
		"shutdown, too": func(f *fixture, _ *lease.Manager, _ *events, _ string) { f.Stop() },
		"disconnected":  func(_ *fixture, _ *lease.Manager, e *events, _ string) { _ = e.Conn.(*net.UnixConn).CloseWrite() },
		"": func(f *fixture, _ *lease.Manager, _ *events, id string) {
			f.dial().do("DELETE", "/v1/sessions/"+id, "").want(t, 200, "")
		},
	} {
		t.Run(reason, func(t *testing.T) {
			f, m := withManager(t)
			e, id := f.explicit()
			want, got := map[string]string{}, map[string]string{}
			for _, key := range []string{"a", "b", "shared"} {
				mode := "exclusive"
				if key == "shared" {
					mode = "shared"
				}
				token := tokenOf(f.dial().do("PUT", "/v1/locks/"+key, `{"mode":"`+mode+`"}`, "Lock-Session: "+id))
				if reason != "" {
					want[key] = token + " " + strings.TrimSuffix(reason, ", too")
				}
			}
			end(f, m, e, id)
			for {
				name, data := e.next()
				if name == "" {
					break
				}
				got[data["key"].(string)] = fmt.Sprintf("%.0f %v", data["token"], data["reason"])
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: lost %v, want %v", reason, got, want)
			}
		})
	}
}

func TestStreamHeartbeat(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Heartbeat = 5 * time.Millisecond })
	e, id := f.explicit()
	before := e.comments
	for e.comments < before+3 {
		line, err := e.body.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, ":") {
			e.comments++
		}
	}
	f.session(id).End(lease.EndDeleted)
}

// A reader that does not read for hours, because the app computes, stays: comments alone do not fill its socket.
// Proves: threat flood
func TestCommentsDoNotFillASocket(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Heartbeat, c.Timeouts.StreamWrite = time.Millisecond, 100*time.Millisecond })
	busy, id := f.explicit()
	f.dial().do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
	other, _ := f.explicit()
	for other.comments < 2000 { // lines, two a comment. A Unix socket of Linux holds some 300 comments
		if _, err := other.body.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		other.comments++
	}
	f.locks.options(id).OnLost(lease.Lost{Key: "k", Token: 1, Reason: lease.LostExpired})
	if name, data := busy.next(); name != "lost" || data["key"] != "k" {
		t.Errorf("%s %v", name, data)
	}
	if busy.comments > 10 {
		t.Errorf("%d comments were not read", busy.comments)
	}
	if a := f.dial().do("GET", "/v1/locks/a", ""); a.json["state"] != "held" {
		t.Error(a.text)
	}
}

// A reader that does not read is dropped, and nobody waits for it meanwhile.
// Proves: threat flood
func TestSlowReaderIsDropped(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = 200 * time.Millisecond })
	_, id := f.explicit()
	f.dial().do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
	lost := lease.Lost{Key: strings.Repeat("k", 500), Reason: lease.LostExpired}
	for range 10_000 { // 5 MB, never blocks
		f.locks.options(id).OnLost(lost)
	}
	if reason := await.Receive(t, f.locks.ended, "the session's end"); reason != lease.EndDropped {
		t.Error(reason)
	}
	await.Until(t, "the lock is free", func() bool { return f.dial().do("GET", "/v1/locks/a", "").json["state"] == "free" })
	await.Until(t, "the drop is logged", func() bool { return strings.Contains(f.log.text(), "too slow") })
}

// The queue of a stream is bounded, whatever the reader's deadline.
func TestStreamQueueIsBounded(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = time.Hour })
	_, id := f.explicit()
	for range 2 * maxSessionEvents {
		f.locks.options(id).OnLost(lease.Lost{Key: "kkkkkkkkkkkkkkkkkkkkkk"})
	}
	await.Receive(t, f.locks.ended, "the session's end")
}

func TestInvalidSessionRequests(t *testing.T) {
	f := start(t)
	c := f.dial()
	for body, part := range map[string]string{
		`{"ttl_ms":1}`: "ttl_ms", `{"name":""}`: "name", `{"name":7}`: "name", `{"owner":"x"}`: "owner", "[]": "array",
		`{"name":"a\u0001"}`: "name", `{"name":"` + strings.Repeat("n", 256) + `"}`: "name",
	} {
		a := c.do("POST", "/v1/sessions", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	c.do("POST", "/v1/sessions?x=1", "").want(t, 400, "invalid_request")
	c.do("GET", "/v1/sessions", "").want(t, 405, "method_not_allowed")
	c.do("POST", "/v1/sessions/x", "").want(t, 405, "method_not_allowed")
	c.do("DELETE", "/v1/sessions/", "").want(t, 404, "not_found")
	f.locks.hook = func(string, string) error { return &lease.LimitError{What: "sessions", Limit: 1} }
	c.do("POST", "/v1/sessions", "").want(t, 429, "limit")
	if f.locks.sessions() != 0 {
		t.Error("sessions were opened")
	}
	c.send("POST /v1/sessions HTTP/1.0\r\n\r\n")
	c.read().want(t, 400, "invalid_request")
}

// The stream is proper HTTP: an ordinary client reads it.
func TestStreamWithOrdinaryClient(t *testing.T) {
	f := start(t, func(c *Config) { c.TCPAddr = "127.0.0.1:0" })
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://"+f.TCPAddr().String()+"/v1/sessions", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	n, err := resp.Body.Read(buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), ":\n\nevent: session\n") {
		t.Errorf("%q, %v", buf[:n], err)
	}
	_ = resp.Body.Close()
	await.Receive(t, f.locks.ended, "the session's end")
}
