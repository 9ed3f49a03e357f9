package locksidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pair is a connection of a socket, and its other end.
func pair(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ours, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return newConn(ours), theirs
}

// A kept connection is used if the sidecar has it open and has sent nothing, also after the time of its last call.
func TestAKeptConnectionIsOpen(t *testing.T) {
	k, theirs := pair(t)
	_ = k.SetDeadline(past)
	for range 2 { // the question changes nothing
		if !k.isOpen() {
			t.Error("an open one is not used")
		}
	}
	_ = theirs.Close()
	if k.isOpen() {
		t.Error("a closed one is used")
	}
	k, theirs = pair(t)
	_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\n")
	if k.isOpen() {
		t.Error("one with an answer to no call is used")
	}
}

func TestAKeptConnectionWithTLSIsOpen(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer server.Close()
	raw, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	k := newConn(&inTurn{Conn: tls.Client(raw, &tls.Config{InsecureSkipVerify: true}), sent: func() {}})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody)
	if _, err := k.exchange(&request{Request: req}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the question changes nothing
		if !k.isOpen() {
			t.Error("an open one is not used")
		}
	}
	server.CloseClientConnections()
	for end := time.Now().Add(time.Minute); k.isOpen(); { // TCP does not say when the other end has it
		if time.Now().After(end) {
			t.Fatal("a closed one is used")
		}
	}
}

// A release is sent once, so it needs a connection that the sidecar has not closed since the last call.
func TestAReleaseAfterAClosedConnection(t *testing.T) {
	for name, more := range map[string]string{
		"closed": "", "an answer to no call": "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + `{"released":false}`,
	} {
		t.Run(name, func(t *testing.T) {
			var releases atomic.Int32
			ended := make(chan struct{})
			c := fake(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case asSidecar(w, r):
				case r.Method == http.MethodPut:
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s%s", len(aGrant), aGrant, more)
					if more == "" {
						_ = conn.Close()
					} else {
						t.Cleanup(func() { _ = conn.Close() })
					}
					close(ended)
				default:
					releases.Add(1)
					_, _ = io.WriteString(w, `{"released":true,"reentry":0,"held_ms":1}`)
				}
			})
			lock, err := c.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			<-ended
			if err := lock.Release(); err != nil || releases.Load() != 1 {
				t.Errorf("%v, after %d releases", err, releases.Load())
			}
		})
	}
}

// A call that may be repeated gets another connection when a kept one breaks. It is not repeated when a new one breaks.
func TestAKeptConnectionBreaks(t *testing.T) {
	var calls atomic.Int32
	breaks := make(chan bool, 10)
	c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		select {
		case breaks := <-breaks:
			if breaks {
				cut(w)
				return
			}
		default: // one call too many
		}
		_, _ = io.WriteString(w, "{}")
	})
	try := func(repeatable bool, want int32, all ...bool) error {
		t.Helper()
		for _, b := range all {
			breaks <- b
		}
		calls.Store(0)
		err := c.t.do(t.Context(), call{method: http.MethodGet, path: "/", repeatable: repeatable}, nil)
		if n := calls.Load(); n != want {
			t.Errorf("%d calls instead of %d", n, want)
		}
		return err
	}
	if err := try(true, 1, true); !isCode(err, "connection_lost") {
		t.Errorf("a new one breaks: %v", err)
	}
	if err := errors.Join(try(true, 1, false), try(true, 2, true, false)); err != nil {
		t.Error(err)
	}
	if err := try(false, 1, true); !isCode(err, "connection_lost") {
		t.Errorf("a call that may not be repeated: %v", err)
	}
}

// The end of a caller ends its call, also if it came before the call.
func TestAnEndBeforeTheCall(t *testing.T) {
	for _, until := range []bool{false, true} {
		k, _ := pair(t)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		caller, other := ended, context.Context(nil)
		if until {
			caller, other = t.Context(), ended
		}
		stop := k.limitTo(caller, other, time.Now().Add(time.Hour))
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody)
		if _, err := k.exchange(&request{Request: req}); err == nil {
			t.Error("it has an answer")
		}
		if stop() {
			t.Error("the connection is said to be usable")
		}
	}
}

// The connections that are not used are closed after some time.
func TestUnusedConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan net.Conn, 2)
		p := newPool(func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			ends <- theirs
			return ours, nil
		})
		defer p.close()
		gone := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		var all [2]*conn
		for i := range all {
			all[i], _ = p.dial(t.Context())
			theirs := <-ends
			go func() {
				_, _ = io.Copy(io.Discard, theirs)
				close(gone[i])
			}()
		}
		isGone := func(i int) bool {
			synctest.Wait()
			select {
			case <-gone[i]:
				return true
			default:
				return false
			}
		}
		p.give(all[0])
		time.Sleep(idleTimeout - time.Second)
		p.give(all[1])
		time.Sleep(2 * time.Second)
		if !isGone(0) || isGone(1) {
			t.Errorf("after the time of the first: %t, %t", isGone(0), isGone(1))
		}
		time.Sleep(idleTimeout)
		if !isGone(1) || len(p.open) != 0 {
			t.Errorf("after the time of the second: %t, %d open", isGone(1), len(p.open))
		}
	})
}
