package conn

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

const (
	// MaxScratch limits the memory that is kept for answers. A longer answer stays in memory until it is read.
	MaxScratch = 64 << 10
	// MaxLongAnswers limits the long answers that wait for their readers.
	MaxLongAnswers = 32
)

// Write is called by fasthttp. Most answers fit into the socket's buffer, so they need neither timer nor watch.
func (c *Conn) Write(p []byte) (int, error) {
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

// writeOn waits for the reader, for a limited time. The connection is polled as during a call, because a
// client that closes without reading must not keep its locks.
func (c *Conn) writeOn(p []byte) (int, error) {
	c.BeginCall(context.Background(), false)
	defer c.EndCall()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.set.cfg.Timeouts.StreamWrite))
	defer func() { _ = c.Conn.SetWriteDeadline(noDeadline) }()
	return c.Conn.Write(p)
}

// directWrite is a write that does not wait. Each connection has one, because a closure per answer would allocate.
type directWrite struct {
	p   []byte
	n   int
	err error
	fn  func(fd uintptr) bool // run
}

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

// run is called by the runtime. It always returns true, so it never waits.
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

// ReserveLongAnswer takes a permit for a long answer, if one is free. releaseLongAnswer returns it.
func (c *Conn) ReserveLongAnswer() bool {
	if c.set.longAnswers.Add(1) > MaxLongAnswers {
		c.set.longAnswers.Add(-1)
		return false
	}
	c.longAnswer = true
	return true
}

// releaseLongAnswer is called when the last answer is written, or never will be.
func (c *Conn) releaseLongAnswer() {
	if c.longAnswer {
		c.longAnswer = false
		c.set.longAnswers.Add(-1)
	}
}
