package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const ttlBody = `{"bind":"ttl"}`

func ttlRequest(key string) string { return requestText("PUT", "/v1/locks/"+key, ttlBody) }

// gone waits until the server has closed all connections.
func (f *fixture) allClosed() {
	f.t.Helper()
	eventually(f.t, "the connections are gone", func() bool { return len(f.openConns()) == 0 })
}

// fasthttp writes when its buffer is full, in the middle of an answer: that one
// was not delivered.
func TestPartialAnswerIsUndelivered(t *testing.T) {
	f := start(t)
	f.locks.held["taken"] = &fakeLock{token: 1000}
	var pipeline strings.Builder
	const n = 40
	for i := range n {
		pipeline.WriteString(ttlRequest(fmt.Sprintf("k%d", i)))
	}
	pipeline.WriteString(requestText("PUT", "/v1/locks/taken", `{"wait_ms":-1}`))
	c := f.dial()
	c.send(pipeline.String())
	receive(t, f.locks.waiting, "the wait") // what fasthttp will write is written
	r := bufio.NewReader(bytes.NewReader(drain(t, c)))
	complete := 0
	for {
		if _, err := readAnswer(r); err != nil {
			break
		}
		complete++
	}
	if complete == 0 || complete == n {
		t.Fatalf("%d answers have come: not what is to be tested", complete)
	}
	_ = c.Close()
	f.allClosed()
	for i := complete; i < n; i++ {
		if g := receive(t, f.locks.handedBack, "the grant handed back"); g.Key != fmt.Sprintf("k%d", i) {
			t.Errorf("%s is handed back after %d complete answers", g.Key, complete)
		}
	}
	silent(t, f.locks.handedBack, "grant handed back")
}

// drain reads what stands in a client's socket.
func drain(t *testing.T, c *client) (all []byte) {
	t.Helper()
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64<<10)
	if err := raw.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if err != nil || n == 0 {
				return true
			}
			all = append(all, b[:n]...)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Who has gone is not told that it has a lock.
func TestGrantIsHandedBackWhenCallerLeft(t *testing.T) {
	f := start(t)
	granted := make(chan struct{})
	f.locks.hook = func(op, _ string) error {
		if op == "acquire" { // is granted all the same, after the close
			<-granted
		}
		return nil
	}
	c := f.dial()
	c.request("PUT", "/v1/locks/a", "")
	eventually(t, "a call waits", f.callWaits)
	_ = c.Conn.(*net.UnixConn).CloseWrite()
	receive(t, f.locks.ended, "the session's end")
	close(granted)
	c.read().want(t, 410, "session_ended")
	c.wantEnd()
}

// fill makes the list longer than what a socket takes at once.
func (f *fixture) fill() {
	for i := range 300 {
		f.locks.held[fmt.Sprintf("fill%d", i)] = &fakeLock{data: []byte(`"` + strings.Repeat("x", 4000) + `"`)}
	}
}

// A connection that closes while its answer waits for a reader releases its locks.
func TestDisconnectDuringAWrite(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.fill()
			c := f.dial()
			c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
			c.request("GET", "/v1/locks", "")
			eventually(t, "a call waits", f.callWaits)
			silent(t, f.locks.ended, "end of a session")
			leave(c)
			receive(t, f.locks.ended, "the session's end")
		})
	}
}

// Nobody waits for ever for a reader that does not read.
func TestUnreadAnswersTimeOut(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = 20 * time.Millisecond })
	f.fill()
	c := f.dial()
	c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
	c.request("GET", "/v1/locks", "")
	receive(t, f.locks.ended, "the session's end")
	f.allClosed()
	if n := f.longAnswers.Load(); n != 0 {
		t.Errorf("%d places for long answers are taken", n)
	}
}

// noneLong waits until all places for long answers are free: who has read one may be ahead of
// the server, which gives its place back when it has seen that.
func (f *fixture) longAnswersDone() {
	f.t.Helper()
	eventually(f.t, "the places for long answers are free", func() bool { return f.longAnswers.Load() == 0 })
}

// After an answer that had to wait, the connection is as good as before.
func TestConnectionAfterASlowAnswer(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = unhurried })
	f.fill()
	c := f.dial()
	for range 2 {
		c.request("GET", "/v1/locks", "")
		eventually(t, "a call waits", f.callWaits)
		c.request("GET", "/v1", "") // sent ahead
		c.read().want(t, 200, "")
		c.read().want(t, 200, "")
		eventually(t, "the watch has ended", func() bool { return !f.callWaits() })
	}
	time.Sleep(f.cfg.Timeouts.StreamWrite)
	c.do("GET", "/v1", "").want(t, 200, "")
}

// Long answers that nobody reads do not fill the memory.
func TestTooManyLongAnswers(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = time.Hour })
	f.fill()
	var unread []*client
	for range maxLong {
		c := f.dial()
		c.request("GET", "/v1/locks", "")
		unread = append(unread, c)
	}
	eventually(t, "all places are taken", func() bool { return f.longAnswers.Load() == maxLong })
	c := f.dial()
	c.do("GET", "/v1/locks", "").want(t, 429, "limit")
	c.do("GET", "/v1/locks/fill1", "").want(t, 200, "")
	unread[0].read().want(t, 200, "")
	_ = unread[1].Close()
	eventually(t, "two places are free", func() bool { return f.longAnswers.Load() == maxLong-2 })
	c.do("GET", "/v1/locks", "").want(t, 200, "")
}
