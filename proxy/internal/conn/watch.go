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

	mu    sync.Mutex
	call  *call         // the running call; nil between calls
	guard chan struct{} // closed when the guard of the call has ended; nil without one

	callerLeft atomic.Bool
}

// call is a running call. polls counts its polls; watch.mu guards it.
type call struct {
	cancel     context.CancelFunc
	cancelable bool // the close of the connection cancels it
	polls      int
}

// BeginCall returns the context of a call, with the values of another one, and watches the connection from
// now on. A cancelable call ends when the connection closes; any other is carried out. The same goroutine
// must call [Conn.EndCall].
func (c *Conn) BeginCall(values context.Context, cancelable bool) context.Context {
	ctx, cancel := context.WithCancel(values)
	call := &call{cancel: cancel, cancelable: cancelable}
	c.watch.mu.Lock()
	c.watch.call = call
	c.watch.mu.Unlock()
	c.set.disconnects.callBegins()
	return ctx
}

// EndCall ends the call, if any, and reports whether the caller has left. After it, other goroutines no
// longer call the owner's Disconnected.
func (c *Conn) EndCall() (callerLeft bool) {
	w := &c.watch
	w.mu.Lock()
	call, guard := w.call, w.guard
	w.call, w.guard = nil, nil
	w.mu.Unlock()
	if call != nil {
		call.cancel()
	}
	if guard != nil {
		_ = c.setDeadlineNow(pastDeadline) // wakes the guard
		<-guard
	}
	return c.CallerLeft()
}

// CallerLeft reports whether the connection has closed under a call. Any goroutine may call it.
func (c *Conn) CallerLeft() bool { return c.watch.callerLeft.Load() }

// InCall reports whether a call is under way. Any goroutine may call it.
func (c *Conn) InCall() bool {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	return c.watch.call != nil
}

// poll returns the call if it must be polled now. A new call will most likely end soon, so it is only
// counted. A long one gets a guard instead.
func (w *watch) poll() (now *call, isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := w.call
	if call == nil || w.guard != nil || w.c.raw == nil {
		return nil, false
	}
	call.polls++
	switch {
	case call.polls == 1:
		return nil, true
	case call.polls > guardAfter:
		w.startGuard(call)
		return nil, false
	}
	return call, false
}

func (w *watch) leaveIfClosed(call *call) {
	closed := false
	err := w.c.raw.Control(func(fd uintptr) { closed = hasClosed(int(fd)) })
	if closed || err != nil { // the error means that cut has closed it
		w.leave(call)
	}
}

// startGuard starts a goroutine that sleeps in the poller until the caller leaves. The caller holds w.mu.
func (w *watch) startGuard(call *call) {
	_ = w.c.Conn.SetReadDeadline(noDeadline) // the deadline of the request may still be set
	guard := make(chan struct{})
	w.guard = guard
	go func() {
		defer close(guard)
		if awaitClose(w.c.raw) {
			w.leave(call)
		}
	}()
}

// leave notifies the owner during a call, and ends the call if it is cancelable.
func (w *watch) leave(call *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.call != call || w.callerLeft.Swap(true) {
		return
	}
	w.c.disconnected()
	if call.cancelable {
		call.cancel()
	}
}

// awaitClose sleeps until the connection closes, or its read deadline passes (false). It does not take
// bytes from the socket.
func awaitClose(raw syscall.RawConn) bool {
	closed := false
	err := raw.Read(func(fd uintptr) bool {
		closed = hasClosed(int(fd))
		return closed // if false, sleep until the poller reports a change
	})
	return closed || !errors.Is(err, os.ErrDeadlineExceeded)
}

// hasClosed reports whether the peer has closed or half-closed the socket.
func hasClosed(fd int) bool {
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
		return closedBehind(fd)
	}
}
