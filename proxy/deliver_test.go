package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

const ttlBody = `{"bind":"ttl"}`

func ttlRequest(key string) string { return requestText("PUT", "/v1/locks/"+key, ttlBody) }

// allClosed waits until the server has closed all connections.
func (f *fixture) allClosed() {
	f.t.Helper()
	await.Until(f.t, "the connections are gone", func() bool { return len(f.conns.Conns()) == 0 })
}

// An answer with a grant does not wait for the next call of the pipeline.
func TestPipelinedGrantsAreAnsweredAtOnce(t *testing.T) {
	f := start(t)
	f.locks.take(t, "taken")
	var pipeline strings.Builder
	const n = 40
	for i := range n {
		pipeline.WriteString(ttlRequest(fmt.Sprintf("k%d", i)))
	}
	pipeline.WriteString(requestText("PUT", "/v1/locks/taken", `{"wait_ms":-1}`))
	c := f.dial()
	c.send(pipeline.String())
	await.Receive(t, f.locks.waiting, "the wait")
	for range n {
		c.read().want(t, 200, "")
	}
	_ = c.Close()
	f.allClosed()
	await.Silent(t, f.locks.handedBack, "grant handed back")
}

// Clients send what is behind an answer that closes the connection again, because it has not been carried out.
func TestNothingBehindAnAnswerThatClosesIsCarriedOut(t *testing.T) {
	for name, headers := range map[string][]string{"the client's wish": {"Connection: close"}, "a stop": nil} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			stopped := make(chan struct{})
			f.locks.hook = func(op, key string) error {
				if op == "acquire" && key == "first" && headers == nil {
					go func() { f.Stop(); close(stopped) }()
					await.Until(t, "the stop has begun", f.conns.Stopping)
				}
				return nil
			}
			c := f.dial()
			c.send(requestText("PUT", "/v1/locks/first", ttlBody, headers...) + ttlRequest("behind") + ttlRequest("last"))
			a := c.read()
			a.want(t, 200, "")
			if !a.Close {
				t.Error("the answer does not say that it is the last")
			}
			if rest, err := io.ReadAll(c.r); err == nil && len(rest) > 0 {
				t.Errorf("behind it: %q", rest)
			}
			f.allClosed()
			if headers == nil {
				await.Receive(t, stopped, "the end of the stop")
			}
			if !f.locks.holds(t, "first") || f.locks.holds(t, "behind") || f.locks.holds(t, "last") {
				t.Error("a request behind the last answer was carried out, or the first was not")
			}
		})
	}
}

// A caller that has left is not told that it has a lock.
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
	await.Until(t, "a call waits", f.callWaits)
	_ = c.Conn.(*net.UnixConn).CloseWrite()
	await.Receive(t, f.locks.ended, "the session's end")
	close(granted)
	c.read().want(t, 410, "session_ended")
	c.wantEnd()
}

// longList asks for all locks of fill.
const longList = "/v1/locks?scope=all&limit=1000"

// fill makes the list longer than what a socket takes at once.
func (f *fixture) fill() {
	f.t.Helper()
	for i := range 300 {
		_, err := f.locks.Manager.Acquire(context.Background(), nil, lease.Request{
			Key: fmt.Sprintf("fill%d", i), Bind: lease.BindTTL, TTL: time.Hour, Data: []byte(`"` + strings.Repeat("x", 4000) + `"`),
		})
		if err != nil {
			f.t.Fatal(err)
		}
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
			c.request("GET", longList, "")
			await.Until(t, "a long answer is written", func() bool { return f.conns.LongAnswers() > 0 })
			await.Silent(t, f.locks.ended, "end of a session")
			leave(c)
			await.Receive(t, f.locks.ended, "the session's end")
		})
	}
}

// Nobody waits for ever for a reader that does not read.
// Proves: threat slow client
func TestUnreadAnswersTimeOut(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = 20 * time.Millisecond })
	f.fill()
	c := f.dial()
	c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
	c.request("GET", longList, "")
	await.Receive(t, f.locks.ended, "the session's end")
	f.allClosed()
	if n := f.conns.LongAnswers(); n != 0 {
		t.Errorf("%d bytes for long answers are taken", n)
	}
}

// longAnswersDone waits until all places for long answers are free. The server frees one a
// moment after its reader has the answer.
func (f *fixture) longAnswersDone() {
	f.t.Helper()
	await.Until(f.t, "the places for long answers are free", func() bool { return f.conns.LongAnswers() == 0 })
}

// After an answer that had to wait, the connection is as good as before.
func TestConnectionAfterASlowAnswer(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = unhurried })
	f.fill()
	c := f.dial()
	for range 2 {
		c.request("GET", longList, "")
		await.Until(t, "a long answer is written", func() bool { return f.conns.LongAnswers() > 0 })
		c.request("GET", "/v1", "") // sent ahead
		c.read().want(t, 200, "")
		c.read().want(t, 200, "")
		await.Until(t, "the watch has ended", func() bool { return !f.callWaits() })
	}
	time.Sleep(f.cfg.Timeouts.StreamWrite)
	c.do("GET", "/v1", "").want(t, 200, "")
}

// Long answers that nobody reads do not fill the memory.
// Proves: threat flood
func TestTooManyLongAnswers(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = time.Hour })
	f.fill()
	unread := f.takeLongAnswers(longList)
	c := f.dial()
	c.do("GET", longList, "").want(t, 429, "limit")
	c.do("GET", "/v1/locks/fill1", "").want(t, 200, "")
	unread[0].read().want(t, 200, "")
	_ = unread[1].Close()
	await.Until(t, "two answers are gone", func() bool { return f.conns.LongAnswers() < conn.MaxAnswers-conn.MaxAnswers/20 })
	c.do("GET", longList, "").want(t, 200, "")
}

// takeLongAnswers takes all places for long answers, which nobody reads.
func (f *fixture) takeLongAnswers(target string) (unread []*client) {
	f.t.Helper()
	f.longAnswersDone()
	for taken, one := int64(0), int64(0); taken+one <= conn.MaxAnswers; {
		c := f.dial()
		c.request("GET", target, "")
		unread = append(unread, c)
		await.Until(f.t, "the answer waits", func() bool { return f.conns.LongAnswers() > taken })
		one, taken = f.conns.LongAnswers()-taken, f.conns.LongAnswers()
	}
	return unread
}

// readSome serves a connection that sends two acquires at once, reads some answers and some
// bytes of the next one, and closes.
func (f *fixture) readSome(t *testing.T, answers, more int) {
	t.Helper()
	ours, theirs := net.Pipe() // a write returns how much of it was read
	f.conns.Add(ours, conn.TCP)
	if _, err := io.WriteString(theirs, ttlRequest("a")+ttlRequest("b")); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(iotest.OneByteReader(theirs)) // it reads nothing ahead
	for range answers {
		if _, err := readAnswer(r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.CopyN(io.Discard, r, int64(more)); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	f.allClosed()
}

// A grant is handed back if its caller read only a part of its answer, also if another
// request follows.
func TestPartOfPipelinedAnswerIsUndelivered(t *testing.T) {
	for name, read := range map[string]struct {
		answers, more int
		handedBack    string // keys
	}{
		"half of the first":            {0, 150, "a"}, // b is not asked for any more
		"the first":                    {1, 0, "b"},
		"the first and half of second": {1, 150, "b"},
		"both":                         {2, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			f.readSome(t, read.answers, read.more)
			for _, key := range read.handedBack {
				if g := await.Receive(t, f.locks.handedBack, "the grant handed back"); g.Key != string(key) {
					t.Errorf("%s is handed back instead of %c", g.Key, key)
				}
			}
			await.Silent(t, f.locks.handedBack, "grant handed back")
		})
	}
}
