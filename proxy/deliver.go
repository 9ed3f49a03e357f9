package proxy

import (
	"bufio"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

// unwrittenGrant is a grant that outlives the connection and whose answer is not yet
// written.
type unwrittenGrant struct {
	session     Session
	grant       lease.Grant
	traceparent string // of the call
}

// trackDelivery remembers a grant until its answer is written.
func (c *connection) trackDelivery(s Session, g lease.Grant, traceparent string) {
	c.unwritten = append(c.unwritten, unwrittenGrant{session: s, grant: g, traceparent: traceparent})
}

// delivery is the body of an answer with unwritten grants. It is written at once: fasthttp
// would keep it until the pipeline is empty, and a write of several answers does not tell
// which of them were written.
type delivery struct {
	c    *connection
	body []byte
}

// WriteTo is called by fasthttp, with its buffer.
func (d *delivery) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(d.body)
	if err == nil {
		err = w.(*bufio.Writer).Flush()
	}
	if err == nil {
		clear(d.c.unwritten)
		d.c.unwritten = d.c.unwritten[:0]
	}
	d.body = nil
	return int64(n), err
}

// Read is not called: there is WriteTo.
func (*delivery) Read([]byte) (int, error) { return 0, io.EOF }

// handBackUnwritten hands back the grants whose answers will not be written: nobody knows
// of them.
func (c *connection) handBackUnwritten() {
	for _, u := range c.unwritten {
		c.srv.logFor(u.traceparent).Info("grant handed back: its caller left before the answer was written",
			"key", u.grant.Key, "token", u.grant.Token)
		c.srv.locks.HandBack(u.session, u.grant)
	}
	c.unwritten = nil
}

// Write is called by fasthttp with answers. Most fit into the socket's buffer,
// and cost neither a timer nor a watch.
func (c *connection) Write(p []byte) (int, error) {
	if c.mute {
		return len(p), nil
	}
	n, err := c.directWrite.write(c.raw, p)
	if err == nil && n < len(p) {
		var more int
		more, err = c.writeOn(p[n:])
		n += more
	}
	return n, err
}

// writeOn waits for the reader, but not for long. It is polled like a call: a client that
// closes without reading does not keep its locks.
func (c *connection) writeOn(p []byte) (int, error) {
	c.watch.begin(false)
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
func (c *connection) reserveLongAnswer() bool {
	if c.srv.longAnswers.Add(1) > maxLong {
		c.srv.longAnswers.Add(-1)
		return false
	}
	c.longAnswer = true
	return true
}

// releaseLongAnswer is called when the last answer is written, or never will be.
func (c *connection) releaseLongAnswer() {
	if c.longAnswer {
		c.longAnswer = false
		c.srv.longAnswers.Add(-1)
	}
}
