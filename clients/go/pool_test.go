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
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
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

// questions are the ways to learn whether a connection is open: that of this system, and that of systems which cannot read without waiting.
var questions = map[string]func(*conn) bool{
	"isOpen":            (*conn).isOpen,
	"isQuietAfterAWait": func(k *conn) bool { return k.answers.Buffered() == 0 && k.isQuietAfterAWait() },
}

// isGone asks until a connection is not open: a question that waits may be late, and TCP does not say when the other end has what was sent.
func isGone(t *testing.T, k *conn, isOpen func(*conn) bool, what string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); isOpen(k); {
		if time.Now().After(end) {
			t.Fatalf("%s is used", what)
		}
	}
}

// A kept connection is used if the sidecar has it open and has sent nothing, also after the time of its last call.
func TestAKeptConnectionIsOpen(t *testing.T) {
	for name, isOpen := range questions {
		t.Run(name, func(t *testing.T) {
			k, theirs := pair(t)
			_ = k.SetDeadline(past)
			for range 2 { // the question changes nothing
				if !isOpen(k) {
					t.Error("an open one is not used")
				}
			}
			_ = theirs.Close()
			isGone(t, k, isOpen, "a closed one")
			k, theirs = pair(t)
			_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\n")
			isGone(t, k, isOpen, "one with an answer to no call")
		})
	}
}

func TestAKeptConnectionWithTLSIsOpen(t *testing.T) {
	for name, isOpen := range questions {
		t.Run(name, func(t *testing.T) {
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
				if !isOpen(k) {
					t.Error("an open one is not used")
				}
			}
			_ = k.SetDeadline(time.Time{})
			if _, err := k.exchange(&request{Request: req}); err != nil {
				t.Errorf("a call after the question: %v", err)
			}
			server.CloseClientConnections()
			isGone(t, k, isOpen, "a closed one")
		})
	}
}

// Windows has numbers of its own for the end of a connection.
func TestErrorsOfWindows(t *testing.T) {
	of := func(number syscall.Errno) error {
		return &net.OpError{Op: "read", Err: os.NewSyscallError("wsarecv", number)}
	}
	if !isBroken(of(10053)) || !isBroken(of(10054)) || isBroken(of(10061)) {
		t.Error("what ends a connection")
	}
	if !isRefused(of(10061)) || isRefused(of(10054)) || !isExhausted(of(10024)) || isExhausted(of(10054)) {
		t.Error("why there is no connection")
	}
}

// A proxy may send other heads before that of the answer.
func TestInterimAnswers(t *testing.T) {
	c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		_, _ = io.WriteString(w, `{"is":"the answer"}`)
	})
	for range 2 { // the second on the same connection
		var answer struct {
			Is string `json:"is"`
		}
		if err := c.t.do(t.Context(), call{method: http.MethodGet, path: "/"}, &answer); err != nil || answer.Is != "the answer" {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
}

// ended is a connection that the sidecar closes just before the next call, of which some bytes are sent.
type ended struct {
	net.Conn

	sent int
}

func (c ended) Write([]byte) (int, error) {
	return c.sent, &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}
}

// A call of which nothing was sent goes on with another connection, also one that may not be carried out twice.
func TestNothingWasSent(t *testing.T) {
	for _, reserved := range []bool{false, true} {
		var calls atomic.Int32
		c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			_, _ = io.WriteString(w, "{}")
		})
		try := func(repeatable bool) error {
			return c.t.do(t.Context(), call{method: http.MethodPost, path: "/", repeatable: repeatable, reserved: reserved}, nil)
		}
		closeKept := func(sent int) {
			k := c.t.reserve.conn
			if !reserved {
				k = c.t.pool.idle[0]
			}
			k.Conn = ended{k.Conn, sent}
		}
		ok := func(err error, what string) {
			t.Helper()
			if err != nil {
				t.Errorf("reserved %t, %s: %v", reserved, what, err)
			}
		}
		ok(try(false), "the first call")
		closeKept(0)
		ok(try(false), "nothing was sent")
		closeKept(1)
		ok(try(true), "it may be repeated")
		closeKept(1)
		if err := try(false); !isCode(err, "connection_lost") {
			t.Errorf("reserved %t, a byte was sent: %v", reserved, err)
		}
		if n := calls.Load(); n != 3 {
			t.Errorf("reserved %t: %d calls", reserved, n)
		}
	}
}

// A call that may have been carried out has no known outcome, also if there is no connection for the next try.
func TestNoConnectionAfterACallWasSent(t *testing.T) {
	for _, reserved := range []bool{false, true} {
		c := fake(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
		try := func() error {
			return c.t.do(t.Context(), call{method: http.MethodPut, path: "/", repeatable: true, reserved: reserved}, nil)
		}
		for sent, code := range []string{"unreachable", "connection_lost"} {
			if err := try(); err != nil {
				t.Fatal(err)
			}
			k := c.t.reserve.conn
			if !reserved {
				k = c.t.pool.idle[0]
			}
			k.Conn = ended{k.Conn, sent}
			there := c.t.at.socket
			c.t.at.socket += ".gone"
			if err := try(); !isCode(err, code) {
				t.Errorf("reserved %t, %d bytes were sent: %v", reserved, sent, err)
			}
			c.t.at.socket = there
		}
	}
}

// All tries of a call have one end, also that of making a connection.
func TestOneEndForAllTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTransport(&endpoint{socket: "s"}, &Config{})
		defer tr.close()
		tr.pool.dialer = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done() // nobody answers
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}
		ours, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }()
		go func() {
			_, _ = theirs.Read(make([]byte, 4096))
			time.Sleep(800 * time.Millisecond)
			_ = theirs.Close()
		}()
		tr.pool.give(newConn(ours))
		began := time.Now()
		err := tr.do(t.Context(), call{method: http.MethodPatch, path: "/", repeatable: true, timeout: time.Second}, nil)
		if took := time.Since(began); !isCode(err, "timeout") || took != time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// After the end of a client there is no connection, and none is made.
func TestNothingIsKeptAfterClose(t *testing.T) {
	c := fake(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	r, err := c.t.prepare(t.Context(), call{method: http.MethodGet, path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	// The calls of the transport end with its life. These have begun before.
	if _, err := c.t.reserve.exchange(context.Background(), r, time.Time{}, true, &sendError{}); !errors.Is(err, net.ErrClosed) || c.t.reserve.conn != nil {
		t.Errorf("the reserve: %v", err)
	}
	if _, err := c.t.pool.dial(context.Background()); !errors.Is(err, net.ErrClosed) || len(c.t.pool.open) != 0 {
		t.Errorf("the pool: %v", err)
	}
	for _, reserved := range []bool{false, true} {
		if err := c.t.do(t.Context(), call{method: http.MethodGet, path: "/", reserved: reserved}, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("a call: %v", err)
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
