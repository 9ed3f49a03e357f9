package conn

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// watch notices that the caller leaves during a call, when the connection is not being read.
type watch struct {
	c *Conn

	mu      sync.Mutex
	call    *running      // the running call; nil between calls
	guarded chan struct{} // closed when the guard of the call has ended; nil without one

	callerLeft atomic.Bool
}

// running is a call that is under way.
type running struct {
	cancel     context.CancelFunc
	cancelable bool // the close of the connection cancels it
	seen       bool // it was under way at a tick of guards; watch.mu guards it
}

// BeginCall returns the context of a call, with the values of another one, and watches the connection from
// now on. A cancelable call ends when the connection closes; any other is carried out. The same goroutine
// must call [Conn.EndCall].
func (c *Conn) BeginCall(values context.Context, cancelable bool) context.Context {
	ctx, cancel := context.WithCancel(values)
	call := &running{cancel: cancel, cancelable: cancelable}
	c.watch.mu.Lock()
	c.watch.call = call
	c.watch.mu.Unlock()
	c.set.guards.callBegins()
	return ctx
}

// EndCall ends the call, if any, and reports whether the caller has left. After it, other goroutines no
// longer call the owner's Disconnected.
func (c *Conn) EndCall() (callerLeft bool) {
	w := &c.watch
	w.mu.Lock()
	call, guarded := w.call, w.guarded
	w.call, w.guarded = nil, nil
	w.mu.Unlock()
	if call != nil {
		call.cancel()
	}
	if guarded != nil {
		_ = c.setDeadlineNow(pastDeadline) // wakes the guard
		<-guarded
	}
	return c.CallerLeft()
}

// CallerLeft reports whether the connection has closed under a call. Any goroutine may call it.
func (c *Conn) CallerLeft() bool { return c.watch.callerLeft.Load() }

// HasLeft reports whether the peer has closed the connection. A write to such a Unix socket fails, but over TCP it succeeds.
func (c *Conn) HasLeft() bool {
	left := c.CallerLeft()
	if !left && c.Kind == TCP && c.raw != nil {
		_ = c.raw.Control(func(fd uintptr) { left = hasClosed(int(fd), false) })
	}
	return left
}

// InCall reports whether a call is under way. Any goroutine may call it.
func (c *Conn) InCall() bool {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	return c.watch.call != nil
}

// guardIfLong starts the guard of a call that an earlier tick saw, and reports whether the call may get one later. A short call
// needs none: most calls end soon, and a guard costs two switches of goroutines.
func (w *watch) guardIfLong() (later bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := w.call
	switch {
	case call == nil || w.guarded != nil || w.c.raw == nil:
		return false
	case !call.seen:
		call.seen = true
		return true
	}
	_ = w.c.Conn.SetReadDeadline(noDeadline) // the deadline of the request may still be set
	ended := make(chan struct{})
	w.guarded = ended
	go w.guard(call, ended)
	return false
}

// guard sleeps in the runtime's poller until the caller leaves or the call is over. It needs no processor time while it
// sleeps, so a sidecar whose apps all wait is idle.
func (w *watch) guard(call *running, ended chan<- struct{}) {
	defer close(ended)
	if awaitClose(w.c.raw, w.c.Kind == Passed) {
		w.noticeClose(call)
	}
}

// noticeClose ends the call if it is cancelable, and notifies the owner. The cancellation comes first: a wait whose session ends
// because of it must know that its caller has left. The mutex is held meanwhile, because EndCall waits for the notice. The owner does not block:
// the end of a session only submits its releases.
func (w *watch) noticeClose(call *running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.call != call || w.callerLeft.Swap(true) {
		return
	}
	if call.cancelable {
		call.cancel()
	}
	w.c.notifyClose()
}

// awaitClose sleeps until the connection closes, or its read deadline passes (false). It does not take
// bytes from the socket. anyByte: a byte says the same, because nothing else is sent ahead.
func awaitClose(raw syscall.RawConn, anyByte bool) bool {
	closed := false
	err := raw.Read(func(fd uintptr) bool {
		closed = hasClosed(int(fd), anyByte)
		return closed // if false, sleep until the poller reports a change
	})
	return closed || !errors.Is(err, os.ErrDeadlineExceeded)
}

// hasClosed reports whether the peer has closed or half-closed the socket, or, with anyByte, has sent something.
func hasClosed(fd int, anyByte bool) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil || n == 0:
			return true
		}
		return anyByte || closedBehind(fd)
	}
}
