package proxy

import (
	"context"
	"net"
	"testing"
	"time"
)

// closed tells whether a connection's watch has heard that the peer closed.
func (f *fixture) closed() bool {
	for _, c := range f.openConns() {
		c.watch.mu.Lock()
		closed := c.watch.closed
		c.watch.mu.Unlock()
		if closed {
			return true
		}
	}
	return false
}

// The end of a connection is heard once, and perhaps before its call waits.
func TestClosedBeforeTheCallWaits(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.locks.held["k"] = &fakeLock{token: 1000}
			asked, goOn := make(chan struct{}), make(chan struct{})
			f.locks.saw = func(op string, _ context.Context) {
				if op == "acquire" {
					close(asked)
					<-goOn
				}
			}
			c := f.dial()
			c.request("PUT", "/v1/locks/k", `{"wait_ms":-1,"bind":"ttl"}`)
			hear(t, asked, "the call")
			leave(c)
			eventually(t, "the close is heard", f.closed)
			close(goOn)
			hear(t, f.locks.abandoned, "the end of the wait")
		})
	}
}

// Who half-closes behind a request has the answer, if the call is over soon.
func TestAnswerAfterAHalfClose(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Watch = time.Hour })
	goOn := make(chan struct{})
	f.locks.hook = func(op, _ string) error {
		if op == "acquire" {
			<-goOn
		}
		return nil
	}
	c := f.dial()
	c.request("PUT", "/v1/locks/k", `{"bind":"ttl"}`)
	eventually(t, "the watch looks", f.looking)
	_ = c.Conn.(*net.UnixConn).CloseWrite()
	eventually(t, "the close is heard", f.closed)
	close(goOn)
	c.read().want(t, 200, "")
	silent(t, f.locks.discarded, "grant given back")
}

// Connections that have gone are forgotten.
func TestEndsForget(t *testing.T) {
	f := start(t)
	for range 3 {
		c := f.dial()
		c.do("GET", "/v1", "").want(t, 200, "")
		_ = c.Close()
	}
	eventually(t, "all are forgotten", func() bool {
		f.ends.mu.Lock()
		defer f.ends.mu.Unlock()
		return len(f.ends.conns) == 0
	})
}
