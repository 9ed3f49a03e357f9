package conn

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// guardAfter is how many polls, a second at least, a call has before a guard. A guard costs two
	// goroutine switches and then nothing, so a sidecar whose apps all wait is idle.
	guardAfter = 40
	// pollEach is the least pause between two rounds, for each open connection: a hundred times its
	// cost in a round, so polling takes at most about 1% of a processor.
	pollEach = 10 * time.Microsecond
)

// disconnects polls the connections with a call under way, so it ends when its caller leaves. The timer
// runs only while a call has no guard.
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
	if poll(d.conns()) { // a call has begun before asleep was set
		d.callBegins()
	}
}

// poll polls the connections, and reports whether a call is to be polled again. One poll(2)
// for all costs a tenth of a peek at each. A descriptor in it may be another file's by now,
// and bytes that were sent ahead make a connection readable, too: leaveIfClosed decides.
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
