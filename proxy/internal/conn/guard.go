package conn

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guard notices that the caller leaves during a call, when the connection is not being read. It has a goroutine only during a long call.
type guard struct {
	c *Conn

	mu      sync.Mutex
	call    *guarded      // the running call; nil between calls
	running chan struct{} // closed when the goroutine of the guard has ended; nil without one

	callerLeft atomic.Bool
}

// guarded is a call that is under way.
type guarded struct {
	cancel     context.CancelFunc
	cancelable bool // the close of the connection cancels it
	seen       bool // it was under way at a tick of guards; under the mutex of guard
}

// BeginCall returns the context of a call, with the values of another one, and guards the call from
// now on. A cancelable call ends when the connection closes; any other is carried out. The same goroutine
// must call [Conn.EndCall].
func (c *Conn) BeginCall(values context.Context, cancelable bool) context.Context {
	ctx, cancel := context.WithCancel(values)
	call := &guarded{cancel: cancel, cancelable: cancelable}
	c.guard.mu.Lock()
	c.guard.call = call
	c.guard.mu.Unlock()
	c.set.guards.callBegins()
	return ctx
}

// EndCall ends the call, if any, and reports whether the caller has left. After it, other goroutines no
// longer call the owner's Disconnected.
func (c *Conn) EndCall() (callerLeft bool) {
	g := &c.guard
	g.mu.Lock()
	call, running := g.call, g.running
	g.call, g.running = nil, nil
	g.mu.Unlock()
	if call != nil {
		call.cancel()
	}
	if running != nil {
		_ = c.setDeadlineNow(pastDeadline) // wakes the guard
		<-running
	}
	return c.CallerLeft()
}

// CallerLeft reports whether the connection has closed under a call. Any goroutine may call it.
func (c *Conn) CallerLeft() bool { return c.guard.callerLeft.Load() }

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
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	return c.guard.call != nil
}

// guards starts a guard for each call that takes longer than the interval. One timer serves all calls, and runs only while a call has no guard. A timer
// for each call would wake a thread: a request on a lone connection takes 10 µs, and took 15 µs with it
// (go test ./proxy -bench Request/acquire/1).
type guards struct {
	interval time.Duration
	conns    func() []*Conn
	timer    *time.Timer
	asleep   atomic.Bool
}

func newGuards(interval time.Duration, conns func() []*Conn) *guards {
	g := &guards{interval: interval, conns: conns}
	g.asleep.Store(true)
	g.timer = time.AfterFunc(time.Hour, g.tick)
	g.timer.Stop()
	return g
}

func (g *guards) callBegins() {
	if g.asleep.Load() && g.asleep.CompareAndSwap(true, false) {
		g.timer.Reset(g.interval)
	}
}

func (g *guards) tick() {
	if guardLongCalls(g.conns()) {
		g.timer.Reset(g.interval)
		return
	}
	g.asleep.Store(true)
	if guardLongCalls(g.conns()) { // a call began before asleep was set
		g.callBegins()
	}
}

// guardLongCalls starts the guards that are due, and reports whether a call is left without one.
func guardLongCalls(conns []*Conn) (left bool) {
	for _, c := range conns {
		left = c.guard.startIfLong() || left
	}
	return left
}

// startIfLong starts the goroutine of a guard whose call an earlier tick saw, and reports whether the call may get one later. A short call
// needs none: most calls end soon, and a guard costs two switches of goroutines.
func (g *guard) startIfLong() (later bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	call := g.call
	switch {
	case call == nil || g.running != nil || g.c.raw == nil:
		return false
	case !call.seen:
		call.seen = true
		return true
	}
	_ = g.c.Conn.SetReadDeadline(noDeadline) // the deadline of the request may still be set
	ended := make(chan struct{})
	g.running = ended
	go g.run(call, ended)
	return false
}

// run sleeps in the runtime's poller until the caller leaves or the call is over. It needs no processor time while it
// sleeps, so a sidecar whose apps all wait is idle.
func (g *guard) run(call *guarded, ended chan<- struct{}) {
	defer close(ended)
	if awaitClose(g.c.raw, g.c.Kind == Passed) {
		g.noticeClose(call)
	}
}

// noticeClose ends the call if it is cancelable, and notifies the owner. The cancellation comes first: a wait whose session ends
// because of it must know that its caller has left. The mutex is held meanwhile, because EndCall waits for the notice. The owner does not block:
// the end of a session only submits its releases.
func (g *guard) noticeClose(call *guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.call != call || g.callerLeft.Swap(true) {
		return
	}
	if call.cancelable {
		call.cancel()
	}
	g.c.notifyClose()
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
