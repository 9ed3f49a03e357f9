package proxy

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// watch notices that a connection closes while nobody reads from it, because a
// call is pending. It hears of it from the server's disconnects, once, at whatever time, and
// acts on it while a call waits (see callContext): after Timeouts.Watch, for most calls
// are over by then, and who half-closes behind a request may have its answer.
type watch struct {
	c    *conn
	call *callContext // the call under way, nil between calls

	mu            sync.Mutex
	waiting       bool // a call waits
	peerHasClosed bool // the peer has closed
	// leaving acts on that, and left hears when it has. nil: there is nothing to act on.
	dropTimer *time.Timer
	dropped   chan struct{}
	// gone: the connection has closed under a call.
	callerLeft atomic.Bool
}

var (
	noDeadline   time.Time
	pastDeadline = time.Unix(1, 0)
)

// begin returns the context of a call that begins. With leaves, the context ends
// when the connection closes; without, the call is carried out all the same.
// end must follow, by the same goroutine.
func (w *watch) begin(leaves bool) *callContext {
	w.call = &callContext{w: w, cancelable: leaves}
	if span := w.c.call.span; span != nil {
		w.call.values = span.ctx
	}
	return w.call
}

// end ends the call, if there is one, and reports whether the connection has closed
// under it. After it nobody else ends the connection's session.
func (w *watch) end() (gone bool) {
	if w.call == nil {
		return w.callerLeft.Load()
	}
	if w.call.end() {
		w.disarm()
	}
	w.call = nil
	return w.callerLeft.Load()
}

// disarm notes that no call waits any more.
func (w *watch) disarm() {
	w.mu.Lock()
	w.waiting = false
	underWay := w.dropTimer != nil && !w.dropTimer.Stop()
	w.dropTimer = nil
	w.mu.Unlock()
	if underWay {
		<-w.dropped
	}
}

// arm notes that the call waits.
func (w *watch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = true
	w.scheduleDrop()
}

// peerClosed hears that the peer has closed.
func (w *watch) peerClosed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peerHasClosed = true
	w.scheduleDrop()
}

// scheduleDrop acts if a call waits and the peer has closed. w.mu is held.
func (w *watch) scheduleDrop() {
	if !w.waiting || !w.peerHasClosed || w.dropTimer != nil {
		return
	}
	call, left := w.call, make(chan struct{})
	w.dropped = left
	w.dropTimer = time.AfterFunc(w.c.srv.cfg.Timeouts.Watch, func() {
		defer close(left)
		w.callerLeft.Store(true)
		w.c.drop()
		if call.cancelable {
			call.cancel()
		}
	})
}

// awaitClose sleeps until the connection closes, and reports true; or until its
// read deadline passes, and reports false. It does not take bytes from it.
func awaitClose(raw syscall.RawConn) bool {
	closed := false
	err := raw.Read(func(fd uintptr) bool {
		closed = hasClosed(int(fd))
		return closed // false: sleep until the poller has news
	})
	return closed || !errors.Is(err, os.ErrDeadlineExceeded)
}

// callContext is the context of a call. Whoever asks for its Done is about to
// wait, and that arms the watch: a call that is answered at once never asks.
type callContext struct {
	w *watch
	// values has what the call carries, its span above all; nil for nothing.
	values context.Context

	mu   sync.Mutex
	done chan struct{}
	err  error

	cancelable, armed, over bool // leaves stays as it is
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
	if !x.armed && !x.over {
		x.armed = true
		x.w.arm()
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

// leave ends the context.
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

// end ends the context, as its call is over, and tells whether it has armed the watch,
// which it will not do any more.
func (x *callContext) end() (armed bool) {
	x.cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	return x.armed
}
