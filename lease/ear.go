package lease

import (
	"sync"
	"sync/atomic"
	"time"
)

// silence is how long there has been nothing to hear when the store need not
// listen for news any more.
const silence = 30 * time.Second

// ear decides whether the store listens for news: while calls of this sidecar wait
// in line (hand-offs), while its sessions hold locks (signals), while something
// else needs it (watches), and for a while after. Signals come with the renewals,
// too, so a grant does not wait until the store listens; whoever stands in line or
// watches does.
type ear struct {
	m     *Manager
	began time.Time
	needs atomic.Int64
	// quietAt is when the last of the reasons to listen went away, in nanoseconds
	// after began.
	quietAt atomic.Int64
	// listening is changed under mu, and set when the store has been told.
	listening atomic.Bool
	mu        sync.Mutex // the one of the queue may be taken under it
}

func newEar(m *Manager) *ear { return &ear{m: m, began: m.clk.Now()} }

// need makes the store listen until unneed is called as often. When it returns, the
// store has been told: what it is asked next takes effect when it hears.
func (e *ear) need() {
	e.needs.Add(1)
	e.listen()
}

// unneed takes back a need.
func (e *ear) unneed() {
	if e.needs.Add(-1) == 0 {
		e.quiet()
	}
}

// listen tells the store that there is something to hear. What is to be heard is
// counted before: whoever finds the ear open, then, knows that it stays so. It
// costs next to nothing when it is open.
func (e *ear) listen() {
	if e.listening.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listening.Load() {
		return
	}
	e.m.st.Listen(true)
	e.listening.Store(true)
	e.m.queue.changed(time.Time{}) // it sees to the hush
}

// quiet notes that one of the reasons to listen has gone, perhaps the last.
func (e *ear) quiet() { e.quietAt.Store(int64(e.m.clk.Now().Sub(e.began))) }

// wanted reports whether there is something to hear.
func (e *ear) wanted() bool {
	return e.needs.Load() > 0 || e.m.sessionLocks.Load() > 0 || !e.m.queue.empty()
}

// hush tells the store that there is nothing to hear when that has been so for a
// while. It returns how long until it has to look again.
func (e *ear) hush() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.listening.Load() {
		return time.Hour
	}
	if e.wanted() {
		return silence
	}
	if left := time.Duration(e.quietAt.Load()) + silence - e.m.clk.Now().Sub(e.began); left > 0 {
		return left
	}
	e.listening.Store(false)
	if e.wanted() { // since a moment, by somebody who found the ear open
		e.listening.Store(true)
		return silence
	}
	e.m.st.Listen(false)
	return time.Hour
}
