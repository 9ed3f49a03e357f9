package conn

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// guardAfter is after how many polls, at least a second, a call gets a guard. A guard costs two goroutine
	// switches and no processor time while it sleeps. So a sidecar whose apps all wait is idle.
	guardAfter = 40
	// pollEach is the least pause between two rounds, for each open connection. It is a hundred times the
	// cost of a connection in a round, so polling takes at most about 1% of a processor.
	pollEach = 10 * time.Microsecond
)

// disconnects polls the connections with a running call, so that the call ends when its caller leaves. The
// timer runs only while a call has no guard.
type disconnects struct {
	interval time.Duration
	conns    func() []*Conn
	timer    *time.Timer
	asleep   atomic.Bool
}

func newDisconnects(interval time.Duration, conns func() []*Conn) *disconnects {
	d := &disconnects{interval: interval, conns: conns}
	d.asleep.Store(true)
	d.timer = time.AfterFunc(time.Hour, d.tick)
	d.timer.Stop()
	return d
}

func (d *disconnects) callBegins() {
	if d.asleep.Load() && d.asleep.CompareAndSwap(true, false) {
		d.timer.Reset(d.interval)
	}
}

func (d *disconnects) tick() {
	conns := d.conns()
	if poll(conns) {
		d.timer.Reset(max(d.interval, time.Duration(len(conns))*pollEach))
		return
	}
	d.asleep.Store(true)
	if poll(d.conns()) { // a call began before asleep was set
		d.callBegins()
	}
}

// poll polls the connections, and reports whether a call must be polled again. One poll(2) for all costs a
// tenth of a peek at each. A descriptor may belong to another file by now, and bytes that were sent ahead
// also make a connection readable. So leaveIfClosed decides.
func poll(conns []*Conn) (again bool) {
	var fds []unix.PollFd
	var polled []polledCall
	for _, c := range conns {
		call, once := c.watch.poll()
		again = again || once || call != nil
		if call != nil {
			fds = append(fds, unix.PollFd{Fd: c.fd, Events: pollEvents})
			polled = append(polled, polledCall{&c.watch, call})
		}
	}
	_, err := unix.Poll(fds, 0)
	for i, p := range polled {
		if err != nil || fds[i].Revents != 0 {
			p.watch.leaveIfClosed(p.call)
		}
	}
	return again
}

type polledCall struct {
	watch *watch
	call  *call
}
