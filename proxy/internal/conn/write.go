package conn

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// Write is called by fasthttp. Most answers fit into the socket's buffer, so they need neither timer nor goroutine.
func (c *Conn) Write(p []byte) (int, error) {
	if c.mute {
		return len(p), nil
	}
	if c.under != c.Conn { // TLS
		return c.writeOn(p)
	}
	n, err := c.directWrite.write(c.raw, p)
	if err == nil && n < len(p) {
		var more int
		more, err = c.writeOn(p[n:])
		n += more
	}
	return n, err
}

// writeOn waits for the reader, for a limited time. The write is guarded as a call is, because a
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
