package proxy

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// Long bodies that are never complete do not fill the memory, and short ones pass beside them.
// Proves: threat flood
func TestTooManyLongBodies(t *testing.T) {
	blanks := strings.Repeat(" ", 40<<10)
	fixed := fmt.Sprintf("PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 60<<10)
	chunked := fmt.Sprintf("PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", len(blanks))
	for name, head := range map[string]string{"of a length": fixed, "in chunks": chunked} {
		t.Run(name, func(t *testing.T) {
			f := start(t, func(c *Config) { c.MaxBodies = 2 * c.MaxBody; c.Timeouts.Request = unhurried })
			one, two := f.dial(), f.dial()
			for _, c := range []*client{one, two} {
				c.send(head + blanks)
			}
			await.Until(t, "two long bodies are being read", func() bool { return f.conns.LongBodies() == int64(2*f.cfg.MaxBody) })
			three := f.dial()
			_, _ = io.WriteString(three, head+blanks) // the answer may come before the end
			three.read().want(t, 429, "limit")
			three.wantEnd()
			f.dial().do("PUT", "/v1/locks/b", `{"wait_ms":0}`).want(t, 200, "")

			_ = one.Close()
			await.Until(t, "a place is free", func() bool { return f.conns.LongBodies() == int64(f.cfg.MaxBody) })
			four := f.dial()
			four.do("PUT", "/v1/locks/c", "{}"+blanks).want(t, 200, "")
			await.Until(t, "the complete body takes none", func() bool { return f.conns.LongBodies() == int64(f.cfg.MaxBody) })
		})
	}
}

// A call that waits, and a connection that is idle or an event stream, keep neither a long body nor the storage of a long head.
// Proves: threat flood
func TestConnectionsKeepNoLongRequests(t *testing.T) {
	const n = 200
	blanks := strings.Repeat(" ", 60<<10)
	var head strings.Builder
	for i := range 500 {
		fmt.Fprintf(&head, "X-%d: %s\r\n", i, strings.Repeat("y", 20))
	}
	long := func(method, target, body, head string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", method, target, head, len(body), body)
	}
	for name, request := range map[string]string{
		"waits, long body":  long("PUT", "/v1/locks/taken", `{"wait_ms":-1}`+blanks, ""),
		"waits, long head":  long("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, head.String()),
		"stream, long body": long("POST", "/v1/sessions", `{}`+blanks, ""),
		"stream, long head": long("POST", "/v1/sessions", `{}`, head.String()),
		"idle, long head":   long("GET", "/v1", "", head.String()),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, func(c *Config) { c.MaxBodies = 1 << 30 })
			f.fill()
			f.dial().do("PUT", "/v1/locks/taken", "").want(t, 200, "")
			before := liveHeap()
			clients := make([]*client, n)
			for i := range clients {
				clients[i] = f.dial()
				clients[i].send(request)
			}
			if strings.HasPrefix(name, "waits") {
				await.Until(t, "all calls wait", func() bool { return f.callsUnderWay() == n })
			} else {
				for _, c := range clients {
					if b, err := c.r.ReadByte(); err != nil || b != 'H' {
						t.Fatal(b, err)
					}
					c.r.Reset(c.Conn) // its memory is this test's
				}
			}
			const most = 48 << 10 // connMemory, and what this test's side takes
			if each := (liveHeap() - before) / n; each > most {
				t.Errorf("a connection takes %d bytes; at most %d are reckoned with", each, most)
			}
			runtime.KeepAlive(clients)
		})
	}
}

func liveHeap() int {
	var stats runtime.MemStats
	for range 3 { // a pool keeps what it has for one collection, and finalizers run between two
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// With little memory left, nothing that lasts begins, and all that ends something goes on.
// Proves: threat flood
func TestMemoryLow(t *testing.T) {
	low := false
	f := start(t, func(c *Config) { c.MemoryLow = func() bool { return low } })
	c := f.dial()
	token := c.do("PUT", "/v1/locks/a", "").json["token"]
	low = true
	for _, call := range [][3]string{
		{"PUT", "/v1/locks/b", ""}, {"POST", "/v1/locks", `{"keys":["b"]}`}, {"POST", "/v1/sessions", ""}, {"GET", "/v1/locks/a/events", ""},
	} {
		f.dial().do(call[0], call[1], call[2]).want(t, 429, "limit")
	}
	f.dial().do("GET", "/v1/locks/a", "").want(t, 200, "")
	for body, status := range map[string]int{`,"data":{"much":1}`: 429, `,"data":null`: 200, "": 200} {
		if a := c.do("PATCH", "/v1/locks/a", fmt.Sprintf(`{"token":%.0f%s}`, token, body)); a.StatusCode != status {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.text)
		}
	}
	c.do("DELETE", fmt.Sprintf("/v1/locks/a?token=%.0f", token), "").want(t, 200, "")
	low = false
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
}

// One alone may take more than the limit, because it would never pass otherwise.
func TestMaxBodiesOfLessThanOne(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxBodies = 1 })
	f.dial().do("PUT", "/v1/locks/a", "{}"+strings.Repeat(" ", 3*conn.MaxHead)).want(t, 200, "")
}
