package lease

import (
	"sync"
	"sync/atomic"
	"time"
)

// silence is how long there has been nothing to hear when the store need not
// listen for news any more.
const lingerTime = 30 * time.Second

// subscriber decides whether the store listens for news: while calls of this sidecar wait
// in line (hand-offs), while its sessions hold locks (signals), while something
// else needs it (watches), and for a while after. Signals come with the renewals,
// too, so a grant does not wait until the store listens; whoever is queued or
// watches does.
type subscriber struct {
	m     *Manager
	began time.Time
	needs atomic.Int64
	// quietAt is when the last of the reasons to listen went away, in nanoseconds
	// after began.
	idleSince atomic.Int64
	// listening is changed under mu, and set when the store has been told.
	isOpen atomic.Bool
	mu     sync.Mutex // the one of the queue may be taken under it
}

func newSubscriber(m *Manager) *subscriber { return &subscriber{m: m, began: m.clk.Now()} }

// retain makes the store listen until unneed is called as often. When it returns, the
// store has been told: what it is asked next takes effect when it hears.
func (e *subscriber) retain() {
	e.needs.Add(1)
	e.open()
}

// release takes back a need.
func (e *subscriber) release() {
	if e.needs.Add(-1) == 0 {
		e.lostReason()
	}
}

// open tells the store that there is something to hear. What is to be heard is
// counted before: whoever finds the ear open, then, knows that it stays so. It
// costs next to nothing when it is open.
func (e *subscriber) open() {
	if e.isOpen.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isOpen.Load() {
		return
	}
	e.m.st.Listen(true)
	e.isOpen.Store(true)
	e.m.queue.changed(time.Time{}) // it sees to the hush
}

// lostReason notes that one of the reasons to listen has gone, perhaps the last.
func (e *subscriber) lostReason() { e.idleSince.Store(int64(e.m.clk.Now().Sub(e.began))) }

// wanted reports whether there is something to hear.
func (e *subscriber) wanted() bool {
	return e.needs.Load() > 0 || e.m.sessionLocks.Load() > 0 || !e.m.queue.empty()
}

// closeIfIdle tells the store that there is nothing to hear when that has been so for a
// while. It returns how long until it has to look again.
func (e *subscriber) closeIfIdle() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.isOpen.Load() {
		return time.Hour
	}
	if e.wanted() {
		return lingerTime
	}
	if left := time.Duration(e.idleSince.Load()) + lingerTime - e.m.clk.Now().Sub(e.began); left > 0 {
		return left
	}
	e.isOpen.Store(false)
	if e.wanted() { // since a moment, by somebody who found the ear open
		e.isOpen.Store(true)
		return lingerTime
	}
	e.m.st.Listen(false)
	return time.Hour
}
