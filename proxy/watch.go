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
// call is pending. It costs nothing until the call begins to wait (see
// callContext), and looks only after Timeouts.Watch: most calls are over by then.
type watch struct {
	c     *conn
	call  *callContext // the call under way, nil between calls
	timer *time.Timer
	done  chan struct{} // hears of the end of each look

	mu      sync.Mutex
	over    bool // the call is over: do not begin to look
	looking bool
	// gone: the connection has closed.
	gone atomic.Bool
}

var (
	noDeadline   time.Time
	pastDeadline = time.Unix(1, 0)
)

// begin returns the context of a call that begins. With leaves, the context ends
// when the connection closes; without, the call is carried out all the same.
// end must follow, by the same goroutine.
func (w *watch) begin(leaves bool) *callContext {
	w.call = &callContext{w: w, leaves: leaves}
	if span := w.c.call.span; span != nil {
		w.call.values = span.ctx
	}
	return w.call
}

// end ends the call, if there is one, and reports whether the connection has
// closed. After it nobody else reads from the connection.
func (w *watch) end() (gone bool) {
	if w.call == nil {
		return w.gone.Load()
	}
	if !w.call.end() || w.timer.Stop() {
		w.call = nil
		return w.gone.Load() // it did not look
	}
	w.endLook()
	w.call = nil
	return w.gone.Load()
}

// endLook ends the look that has begun, or is about to.
func (w *watch) endLook() {
	w.mu.Lock()
	w.over = true
	looking := w.looking
	if looking {
		_ = w.c.Conn.SetReadDeadline(pastDeadline)
	}
	w.mu.Unlock()
	<-w.done
	if looking {
		_ = w.c.setDeadlineNow(noDeadline)
	}
	w.mu.Lock()
	w.over, w.looking = false, false
	w.mu.Unlock()
}

// arm lets the watch look at the connection after a while.
func (w *watch) arm() {
	if w.timer == nil {
		w.done = make(chan struct{}, 1)
		w.timer = time.AfterFunc(w.c.srv.cfg.Timeouts.Watch, w.look)
		return
	}
	w.timer.Reset(w.c.srv.cfg.Timeouts.Watch)
}

// look runs in the timer's goroutine.
func (w *watch) look() {
	defer func() { w.done <- struct{}{} }()
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.looking = true
	call := w.call
	_ = w.c.Conn.SetReadDeadline(noDeadline) // the request's own may be set
	w.mu.Unlock()

	if awaitClose(w.c.raw) {
		w.gone.Store(true)
		w.c.drop()
		if call.leaves {
			call.leave()
		}
	}
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

	leaves, armed, over bool // leaves stays as it is
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
	if !x.armed && !x.over && x.w.c.raw != nil {
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
func (x *callContext) leave() {
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

// end ends the context, as its call is over, and tells whether it has armed the
// watch. It will not do so any more.
func (x *callContext) end() (armed bool) {
	x.leave()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	return x.armed
}
