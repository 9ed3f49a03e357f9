package conn

import (
	"context"
	"sync"
	"sync/atomic"
)

// watch notices that the caller leaves during a call, when nobody reads from the connection.
type watch struct {
	c *Conn

	mu    sync.Mutex
	call  *call         // under way; nil between calls
	guard chan struct{} // closed when the guard of the call has ended; nil without one

	callerLeft atomic.Bool
}

// call is a call under way. watch.mu guards polls, how often it was polled.
type call struct {
	cancel     context.CancelFunc
	cancelable bool // the close of the connection cancels it
	polls      int
}

// BeginCall returns the context of a call, with the values of another one, and watches the connection
// from now on. A cancelable call ends when the connection closes; any other is carried out.
// [Conn.EndCall] must follow, by the same goroutine.
func (c *Conn) BeginCall(values context.Context, cancelable bool) context.Context {
	ctx, cancel := context.WithCancel(values)
	call := &call{cancel: cancel, cancelable: cancelable}
	c.watch.mu.Lock()
	c.watch.call = call
	c.watch.mu.Unlock()
	c.set.disconnects.callBegins()
	return ctx
}

// EndCall ends the call, if there is one, and reports whether the caller has left. After it
// no other goroutine calls the owner's Disconnected.
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

// poll returns the call if it is to be polled now. A new call, most likely over soon, is only counted.
// One that lasts gets a guard instead.
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
	if closed || err != nil { // the error: cut has closed it
		w.leave(call)
	}
}

// startGuard starts a goroutine that sleeps in the poller until the caller leaves. w.mu is held.
func (w *watch) startGuard(call *call) {
	_ = w.c.Conn.SetReadDeadline(noDeadline) // the request's may be set
	guard := make(chan struct{})
	w.guard = guard
	go func() {
		defer close(guard)
		if awaitClose(w.c.raw) {
			w.leave(call)
		}
	}()
}

// leave tells the owner while its call is under way, and ends the call if it is cancelable.
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
