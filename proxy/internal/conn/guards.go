package conn

import (
	"sync/atomic"
	"time"
)

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
		left = c.watch.guardIfLong() || left
	}
	return left
}
