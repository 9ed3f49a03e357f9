//go:build !linux

package proxy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// ends hears which peers have closed their connections, by looking at those on which a
// call waits, again and again. On Linux the kernel tells.
type ends struct {
	stop context.CancelFunc
	over chan struct{}

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// lookEach is the time between two looks.
const lookEach = 10 * time.Millisecond

// newEnds begins to look; close must follow.
func newEnds() (*ends, error) {
	ctx, stop := context.WithCancel(context.Background())
	e := &ends{stop: stop, over: make(chan struct{}), conns: make(map[*conn]struct{})}
	go e.run(ctx)
	return e, nil
}

// add begins to look at a connection; its watch is told. remove must follow.
func (e *ends) add(c *conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.raw != nil {
		e.conns[c] = struct{}{}
	}
	return nil
}

// remove forgets a connection.
func (e *ends) remove(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c)
}

func (e *ends) run(ctx context.Context) {
	defer close(e.over)
	tick := time.NewTicker(lookEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.mu.Lock()
		all := slices.Collect(maps.Keys(e.conns))
		e.mu.Unlock()
		for _, c := range all {
			closed := false
			if c.watch.isWaiting() {
				_ = c.raw.Control(func(fd uintptr) { closed = hasClosed(int(fd)) })
			}
			if closed {
				c.watch.hangUp()
			}
		}
	}
}

// close ends run. A nil one does nothing.
func (e *ends) close() {
	if e != nil {
		e.stop()
		<-e.over
	}
}

// isWaiting tells whether a call waits: then nobody reads from the connection.
func (w *watch) isWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}
