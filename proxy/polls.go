package proxy

import (
	"maps"
	"slices"
	"time"
)

const (
	// lookEach is the time between two looks at all connections on which a call waits.
	pollInterval = 10 * time.Millisecond
	// lookRest is how many times as long as a look took the pause behind it is at least:
	// however many calls wait, polling takes a tenth of a processor.
	pollRest = 9
)

// poll tells the watches which of the connections on which a call waits have closed, by
// polling them.
func (e *disconnects) poll() {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		e.mu.Lock()
		all := slices.Collect(maps.Values(e.conns))
		e.mu.Unlock()
		for _, c := range all {
			closed := false
			if c.watch.isWaiting() {
				_ = c.raw.Control(func(fd uintptr) { closed = hasClosed(int(fd)) })
			}
			if closed {
				c.watch.peerClosed()
			}
		}
		timer.Reset(max(pollInterval, pollRest*time.Since(began)))
	}
}

// isWaiting tells whether a call waits: then nobody reads from the connection.
func (w *watch) isWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}
