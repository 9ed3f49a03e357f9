package proxy

import (
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// A close is one way in which a client goes.
var closes = map[string]func(*client){
	"close":      func(c *client) { _ = c.Close() },
	"half-close": func(c *client) { _ = c.Conn.(*net.UnixConn).CloseWrite() },
}

// each state of a connection, and how to get there with a lock held.
var states = map[string]func(f *fixture, c *client){
	"idle": func(*fixture, *client) {},
	"half a head": func(_ *fixture, c *client) {
		c.send("GET /v1 HTTP/1.1\r\nHos")
	},
	"half a body": func(_ *fixture, c *client) {
		c.send("PUT /v1/locks/b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
	},
	"waiting": func(f *fixture, c *client) {
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`)
		await.Receive(c.t, f.locks.waiting, "the wait")
	},
	"waiting, bytes sent ahead": func(f *fixture, c *client) {
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`)
		await.Receive(c.t, f.locks.waiting, "the wait")
		c.request("GET", "/v1", "") // stands before the close in the socket
	},
	"waiting for another session": func(f *fixture, c *client) {
		_, id := f.explicit()
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, "Lock-Session: "+id)
		await.Receive(c.t, f.locks.waiting, "the wait")
	},
	"event stream": func(_ *fixture, c *client) {
		c.request("POST", "/v1/sessions", "")
		if name, _ := c.events().next(); name != "session" {
			c.t.Fatal(name)
		}
	},
	"event stream, bytes sent ahead": func(_ *fixture, c *client) {
		c.request("POST", "/v1/sessions", "")
		if name, _ := c.events().next(); name != "session" {
			c.t.Fatal(name)
		}
		c.send("never read")
	},
}

// A connection that closes releases its locks, whatever it was doing.
// Proves: promise 7, trap unseen disconnect
func TestDisconnect(t *testing.T) {
	for state, enter := range states {
		for how, leave := range closes {
			t.Run(state+"/"+how, func(t *testing.T) {
				t.Parallel()
				f := start(t)
				f.locks.take(t, "taken")
				c := f.dial()
				c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
				enter(f, c)
				await.Silent(t, f.locks.ended, "end of a session")
				leave(c)
				if reason := await.Receive(t, f.locks.ended, "the session's end"); reason != lease.EndDropped {
					t.Error(reason)
				}
				if strings.HasPrefix(state, "waiting") {
					awaitEndOfCall(t, f)
				}
				await.Until(t, "the lock is free", func() bool { return f.dial().do("GET", "/v1/locks/mine", "").json["state"] == "free" })
				const warning = "connection closed while it held locks"
				await.Until(t, "the warning is logged", func() bool { return strings.Contains(f.log.text(), warning) })
				if got := f.log.text(); strings.Count(got, warning) != 1 || !strings.Contains(got, "age=") {
					t.Error(got)
				}
			})
		}
	}
}

// awaitEndOfCall waits until no call is under way: the last one was abandoned or, and this may
// come first, its session ended.
func awaitEndOfCall(t *testing.T, f *fixture) {
	t.Helper()
	await.Until(t, "the wait is over", func() bool { return !f.callWaits() })
}

// A connection that waits for another session takes only its own call with it.
func TestDisconnectOfAJoinedCall(t *testing.T) {
	f := start(t)
	f.locks.take(t, "taken")
	_, id := f.explicit()
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
	c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, "Lock-Session: "+id)
	await.Receive(t, f.locks.waiting, "the wait")
	_ = c.Close()
	await.Receive(t, f.locks.abandoned, "the end of the wait")
	await.Silent(t, f.locks.ended, "end of a session")
	if a := f.dial().do("GET", "/v1/locks/a", "", "Lock-Session: "+id); a.json["mine"] != true {
		t.Error(a.text)
	}
}

// A wait notices that its own session ends elsewhere, and the connection lives on.
func TestSessionEndsUnderAWait(t *testing.T) {
	f := start(t)
	f.locks.take(t, "taken")
	_, id := f.explicit()
	c := f.dial()
	c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, "Lock-Session: "+id)
	await.Receive(t, f.locks.waiting, "the wait")
	f.dial().do("DELETE", "/v1/sessions/"+id, "").want(t, 200, "")
	c.read().want(t, 410, "session_ended")
	c.do("GET", "/v1", "").want(t, 200, "")
}

// After a watched call the connection is as good as before: the watch must leave
// neither a deadline behind nor take a byte.
func TestConnectionAfterAWatchedCall(t *testing.T) {
	f := start(t)
	c := f.dial()
	for _, parts := range []int{1, 2, 1} {
		taken := f.locks.take(t, "k")
		f.wait(c, parts)
		c.request("GET", "/healthz", "") // sent ahead
		await.Until(t, "a call waits", func() bool { return f.callWaits() })
		f.locks.free(t, taken)
		a := c.read()
		a.want(t, 200, "")
		c.read().want(t, 200, "")
		c.do("DELETE", "/v1/locks/k?token="+tokenOf(a), "").want(t, 200, "")
	}
	await.Silent(t, f.locks.handedBack, "grant handed back")
}

// wait lets a client wait for the key k. If the request comes in two parts, the
// server reads the second under the request's deadline.
func (f *fixture) wait(c *client, parts int) {
	f.t.Helper()
	text := requestText("PUT", "/v1/locks/k", `{"wait_ms":-1,"bind":"ttl"}`)
	if parts == 2 {
		c.send(text[:len(text)-5])
		await.Taken(f.t, c.Conn)
		text = text[len(text)-5:]
	}
	c.send(text)
	await.Receive(f.t, f.locks.waiting, "the wait")
}

// The time in which a request must arrive does not end the watch of its call.
func TestWatchOutlivesTheRequestsDeadline(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.Request = unhurried })
	f.locks.take(t, "k")
	c := f.dial()
	f.wait(c, 2)
	time.Sleep(f.cfg.Timeouts.Request * 5 / 4)
	_ = c.Close()
	await.Receive(t, f.locks.abandoned, "the end of the wait")
}

func tokenOf(a answer) string {
	_, rest, _ := strings.Cut(a.text, `"token":`)
	token, _, _ := strings.Cut(rest, ",")
	return token
}

// callWaits reports whether a call is under way.
func (f *fixture) callWaits() bool { return f.callsUnderWay() > 0 }

func (f *fixture) callsUnderWay() (n int) {
	for _, c := range f.conns.Conns() {
		if c.InCall() {
			n++
		}
	}
	return n
}

// callerLeft reports whether the server has seen a connection close under a call.
func (f *fixture) callerLeft() bool {
	return slices.ContainsFunc(f.conns.Conns(), (*conn.Conn).CallerLeft)
}

// Idle connections that own locks live on, however long.
// Proves: trap IdleTimeout
func TestIdleConnectionsStayOpen(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.Request = unhurried })
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	time.Sleep(f.cfg.Timeouts.Request * 5 / 4)
	await.Silent(t, f.locks.ended, "end of a session")
	c.do("DELETE", "/v1/locks/a?token=1", "").want(t, 200, "")
}

// A grant for others than the connection is handed back when nobody hears of it.
// Proves: promise 7, trap give-up at the grant
func TestUndeliveredGrants(t *testing.T) {
	t.Run("closed while waiting", func(t *testing.T) {
		f := start(t)
		granted := make(chan struct{})
		f.locks.hook = func(op, _ string) error {
			if op == "acquire" { // is granted all the same, after the close
				<-granted
			}
			return nil
		}
		c := f.dial()
		c.request("PUT", "/v1/locks/a", `{"bind":"ttl"}`)
		await.Until(t, "a call waits", f.callWaits)
		_ = c.Close()
		await.Until(t, "the close is seen", f.callerLeft)
		close(granted)
		if g := await.Receive(t, f.locks.handedBack, "the grant handed back"); g.Key != "a" {
			t.Error(g)
		}
	})
	t.Run("closed before the answer", func(t *testing.T) {
		f := start(t, unwatched)
		f.leaveBeforeTheAnswer()
		await.Receive(t, f.locks.handedBack, "the grant handed back")
	})
	// A caller that gives up closes its connection, and withdraws its call over another one, which may be read first.
	for name, encrypts := range map[string]bool{"TCP": false, "TLS": true} {
		t.Run("closed before the answer over "+name, func(t *testing.T) {
			ca := certtest.New(t)
			settings := []func(*Config){unwatched, withToken(t)}
			if encrypts {
				settings = append(settings, withTLS(t, ca))
			}
			f := start(t, settings...)
			c := dialTo(t, "tcp", f.TCPAddr().String())
			if encrypts {
				c.encrypted(ca)
			}
			f.leaveBeforeTheAnswerOn(c, authorized)
			await.Receive(t, f.locks.handedBack, "the grant handed back")
		})
	}
	t.Run("not when the answer was written", func(t *testing.T) {
		f := start(t)
		_, id := f.explicit()
		c := f.dial()
		c.request("PUT", "/v1/locks/a", "", "Lock-Session: "+id)
		waitReadable(t, c)
		_ = c.Close() // unread: nobody can know that
		await.Until(t, "the connection is gone", func() bool { return len(f.conns.Conns()) == 1 })
		await.Silent(t, f.locks.handedBack, "grant handed back")
		if a := f.dial().do("GET", "/v1/locks/a", "", "Lock-Session: "+id); a.json["mine"] != true {
			t.Error(a.text)
		}
	})
}

// unwatched makes a server that does not see a close while a call is under way.
func unwatched(c *Config) { c.Timeouts.Guard = time.Hour }

// leaveBeforeTheAnswer acquires a, bound to a TTL, and closes before the grant. So the answer
// cannot be written.
func (f *fixture) leaveBeforeTheAnswer(headers ...string) {
	f.t.Helper()
	f.leaveBeforeTheAnswerOn(f.dial(), headers...)
}

func (f *fixture) leaveBeforeTheAnswerOn(c *client, headers ...string) {
	f.t.Helper()
	granted, asked := make(chan struct{}), make(chan struct{})
	f.locks.hook = func(op, _ string) error {
		if op == "acquire" {
			close(asked)
			<-granted
		}
		return nil
	}
	c.request("PUT", "/v1/locks/a", ttlBody, headers...)
	await.Receive(f.t, asked, "the call")
	_ = c.Close()
	close(granted)
}

// waitReadable waits until an answer stands in the client's socket.
func waitReadable(t *testing.T, c *client) {
	t.Helper()
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil && n == 1
	}); err != nil {
		t.Fatal(err)
	}
}

// Proves: trap Shutdown
func TestStop(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Stop = time.Hour }) // nothing is cut, however slow the test is
	idle, waiting := f.dial(), f.dial()
	idle.do("PUT", "/v1/locks/idle", "").want(t, 200, "")
	stream, _ := f.explicit()
	taken := f.locks.take(t, "taken")
	waiting.request("PUT", "/v1/locks/taken", `{"wait_ms":-1,"bind":"ttl"}`)
	await.Receive(t, f.locks.waiting, "the wait")

	stopped := make(chan struct{})
	go func() { f.Stop(); close(stopped) }()
	if name, _ := stream.next(); name != "" {
		t.Error(name)
	}
	idle.wantEnd()
	for range 2 {
		if reason := await.Receive(t, f.locks.ended, "a session's end"); reason != lease.EndShutdown {
			t.Error(reason)
		}
	}
	await.Silent(t, stopped, "end of Stop while a call is pending")
	f.locks.free(t, taken)
	a := waiting.read()
	a.want(t, 200, "")
	if !a.Close {
		t.Error("the last answer does not say that the connection closes")
	}
	waiting.wantEnd()
	await.Receive(t, stopped, "the end of Stop")
	f.Stop()
	if _, err := net.Dial("unix", f.cfg.Socket); err == nil {
		t.Error("still listening")
	}
}

// Stop does not wait for ever.
func TestStopCutsLateCalls(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Stop = 20 * time.Millisecond })
	f.locks.take(t, "taken")
	c := f.dial()
	c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`)
	await.Receive(t, f.locks.waiting, "the wait")
	f.Stop()
	if _, err := io.ReadAll(c.r); err != nil {
		t.Error(err)
	}
	New(Config{}).Stop() // before Start
}
