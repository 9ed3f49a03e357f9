package proxy

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lease"
)

// undelivered is a grant that outlives the connection and whose answer the
// client has not confirmed.
type undelivered struct {
	session Session
	grant   lease.Grant
	// traceparent is that of the call.
	traceparent string

	written bool // the whole answer is on its way
	last    bool // no other answer comes after it
}

// trackDelivery remembers a grant until its answer is delivered.
func (c *conn) trackDelivery(s Session, g lease.Grant, traceparent string) {
	c.undelivered = append(c.undelivered, undelivered{session: s, grant: g, traceparent: traceparent, last: true})
}

// answerFollows notes that another answer comes after those that are owed.
func (c *conn) answerFollows() {
	for i := range c.undelivered {
		c.undelivered[i].last = false
	}
}

// noteWritten notes which answers are on their way, after p was written. fasthttp
// writes when its buffer is full, so that p may end within the last answer.
func (c *conn) noteWritten(p []byte) {
	for i := range c.undelivered {
		u := &c.undelivered[i]
		u.written = u.written || !u.last || overlap(p, c.call.sent)
	}
}

// forgetAnswer lets go of the last answer, which may be long, when it is not
// needed any more to tell whether it is written.
func (c *conn) forgetAnswer() {
	if !slices.ContainsFunc(c.undelivered, func(u undelivered) bool { return !u.written }) {
		c.call.sent = nil
	}
}

// overlap tells whether p, of which the end of an answer is the last part or the
// whole, comes to the end of that answer.
func overlap(p, answer []byte) bool {
	return bytes.HasSuffix(p, answer) || bytes.HasSuffix(answer, p)
}

// acknowledge forgets the grants whose answers were written: the client goes on.
func (c *conn) acknowledge() {
	c.undelivered = slices.DeleteFunc(c.undelivered, func(u undelivered) bool { return u.written })
}

// handBackUnwritten hands back the grants whose answers were not written.
func (c *conn) handBackUnwritten() {
	c.handBack(func(u undelivered) bool { return !u.written })
}

// noteReset hears of an error of reading: the peer may have closed with bytes
// unread. They are those of the last answer, or of more: the others are kept. On
// TCP a reset proves nothing, as any peer may send one after it has read all.
func (c *conn) noteReset(err error) {
	if c.kind == kindUnix && errors.Is(err, unix.ECONNRESET) {
		c.handBack(func(u undelivered) bool { return u.last })
	}
}

func (c *conn) handBack(which func(undelivered) bool) {
	c.undelivered = slices.DeleteFunc(c.undelivered, func(u undelivered) bool {
		if !which(u) {
			return false
		}
		c.srv.logFor(u.traceparent).Info("grant handed back: its answer could not be delivered",
			"key", u.grant.Key, "token", u.grant.Token)
		c.srv.locks.Discard(u.session, u.grant)
		return true
	})
}

// settlePause is the time between two looks of settle.
const settlePause = time.Millisecond

// settle waits for a while to learn whether the peer reads the last answer, when
// a grant depends on it. That no reset was seen says nothing: a half-close before
// the close hides it, and so do we when we close first.
func (c *conn) settle() {
	if c.kind != kindUnix || c.raw == nil ||
		!slices.ContainsFunc(c.undelivered, func(u undelivered) bool { return u.last }) {
		return
	}
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // who reads to the end goes on
	}
	for end := time.Now().Add(c.srv.cfg.Timeouts.Linger); time.Now().Before(end); time.Sleep(settlePause) {
		unread, err := stillUnread(c.raw)
		if unread {
			continue
		}
		c.noteReset(err)
		return
	}
}

// Write is called by fasthttp with answers. Most fit into the socket's buffer,
// and cost neither a timer nor a watch.
func (c *conn) Write(p []byte) (int, error) {
	if c.mute {
		return len(p), nil
	}
	n, err := c.directWrite.write(c.raw, p)
	if err == nil && n < len(p) {
		var more int
		more, err = c.writeOn(p[n:])
		n += more
	}
	if n > 0 {
		c.noteWritten(p[:n])
	}
	if err != nil {
		c.handBackUnwritten()
	}
	return n, err
}

// writeOn waits for the reader, but not for long. The watch looks meanwhile, so
// that a client that closes without reading does not keep its locks.
func (c *conn) writeOn(p []byte) (int, error) {
	c.watch.begin(false).Done()
	defer c.watch.end()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.srv.cfg.Timeouts.StreamWrite))
	defer func() { _ = c.Conn.SetWriteDeadline(noDeadline) }()
	return c.Conn.Write(p)
}

// directWrite is a write that does not wait. There is one for each connection: a
// closure for each answer would have to be allocated.
type directWrite struct {
	p   []byte
	n   int
	err error
	fn  func(fd uintptr) bool // run
}

// write writes what the socket takes at once.
func (a *directWrite) write(raw syscall.RawConn, p []byte) (int, error) {
	if raw == nil {
		return 0, nil
	}
	a.p, a.n, a.err = p, 0, nil
	err := raw.Write(a.fn)
	a.p = nil
	if err == nil {
		err = a.err
	}
	return a.n, err
}

// run is called by the runtime, and returns true: it never waits.
func (a *directWrite) run(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), a.p)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return true
		case err != nil:
			a.err = os.NewSyscallError("write", err)
			return true
		}
		a.n = n
		return true
	}
}

// reserveLongAnswer takes one of the places for long answers, which stand in memory until
// they are read. releaseLongAnswer frees it.
func (c *conn) reserveLongAnswer() bool {
	if c.srv.longAnswers.Add(1) > maxLong {
		c.srv.longAnswers.Add(-1)
		return false
	}
	c.longAnswer = true
	return true
}

// releaseLongAnswer is called when the last answer is written, or never will be.
func (c *conn) releaseLongAnswer() {
	if c.longAnswer {
		c.longAnswer = false
		c.srv.longAnswers.Add(-1)
	}
}
