package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// watch notices that the caller leaves while a call is under way. Nobody reads from the
// connection then.
type watch struct {
	c *connection

	mu    sync.Mutex
	call  *callContext  // under way; nil between calls
	guard chan struct{} // closed when the guard of the call has ended; nil without one

	callerLeft atomic.Bool
}

var (
	noDeadline   time.Time
	pastDeadline = time.Unix(1, 0)
)

// begin returns the context of a call that begins. A cancelable one ends when the
// connection closes; any other call is carried out all the same. end must follow, by the
// same goroutine.
func (w *watch) begin(cancelable bool) *callContext {
	call := &callContext{cancelable: cancelable}
	if span := w.c.call.span; span != nil {
		call.values = span.ctx
	}
	w.mu.Lock()
	w.call = call
	w.mu.Unlock()
	w.c.srv.disconnects.callBegins()
	return call
}

// end ends the call, if there is one, and reports whether the caller has left. After it
// nobody else ends the connection's session.
func (w *watch) end() (callerLeft bool) {
	w.mu.Lock()
	call, guard := w.call, w.guard
	w.call, w.guard = nil, nil
	w.mu.Unlock()
	if call != nil {
		call.cancel()
	}
	if guard != nil {
		_ = w.c.setDeadlineNow(pastDeadline) // wakes the guard
		<-guard
	}
	return w.callerLeft.Load()
}

// poll returns the call if its connection is to be polled now. A call that is new, so most
// likely over soon, is only counted, and one that lasts gets a guard instead.
func (w *watch) poll() (now *callContext, isNew bool) {
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

// leaveIfClosed ends the call if its connection has closed.
func (w *watch) leaveIfClosed(call *callContext) {
	closed := false
	err := w.c.raw.Control(func(fd uintptr) { closed = conn.HasClosed(int(fd)) })
	if closed || err != nil { // the error: cut has closed it
		w.leave(call)
	}
}

// startGuard starts a goroutine that sleeps in the runtime's poller until the caller
// leaves. w.mu is held.
func (w *watch) startGuard(call *callContext) {
	_ = w.c.Conn.SetReadDeadline(noDeadline) // the request's may be set
	guard := make(chan struct{})
	w.guard = guard
	go func() {
		defer close(guard)
		if conn.AwaitClose(w.c.raw) {
			w.leave(call)
		}
	}()
}

// leave ends the connection's sessions while its call is under way, and the call if it is
// cancelable.
func (w *watch) leave(call *callContext) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.call != call || w.callerLeft.Swap(true) {
		return
	}
	w.c.drop()
	if call.cancelable {
		call.cancel()
	}
}

// callContext is the context of a call. Few calls ask for its channel, so that is made
// when it is asked for.
type callContext struct {
	cancelable bool
	polls      int // how often it was polled; watch.mu guards it
	// values has what the call carries, its span above all; nil for nothing.
	values context.Context

	mu   sync.Mutex
	done chan struct{}
	err  error
}

func (x *callContext) Done() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done == nil {
		x.done = make(chan struct{})
		if x.err != nil {
			close(x.done)
		}
	}
	return x.done
}

func (x *callContext) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

func (*callContext) Deadline() (deadline time.Time, ok bool) { return deadline, false }

func (x *callContext) Value(key any) any {
	if x.values == nil {
		return nil
	}
	return x.values.Value(key)
}

// cancel ends the context.
func (x *callContext) cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return
	}
	x.err = context.Canceled
	if x.done != nil {
		close(x.done)
	}
}
