// Package hearing decides while the store must push its news to this sidecar.
//
// Hearing news can cost a connection, and some of the server's time for each news of any sidecar: see [store.Listener]. So the
// sidecar hears only while somebody here would be told something:
//
//   - [News]: a call waits, a key is watched, or keys are kept often enough (attempt/keeper.go). The store begins to hear at once.
//   - [Stops]: a session that is told of requests to stop holds a lock. The store begins to hear if one is held a while
//     later. Most locks end before that, and nobody asks their holders to stop.
//
// Everything else that the store tells a sidecar comes with renewals. What was told before the store heard is not lost: when
// the store begins to hear, and when it ends, it reports that news may have been missed. Then all is looked at once.
package hearing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// Kind says how soon news must be heard.
type Kind uint8

// The kinds: see the package. Nothing is no need.
const (
	Nothing Kind = iota
	News
	Stops
	kinds
)

const (
	// Patience is for how long a session holds a lock before the store must hear requests to stop.
	Patience = time.Second
	// Linger is for how long the store goes on hearing, at least, and at most twice, after the last need. Beginning again costs
	// PostgreSQL a connection: 6 to 14 ms of its time, also for the notification to oneself. A listener costs as much in 12 to 28 s with 100
	// notifications a second.
	Linger = 10 * time.Second
)

// Needs counts those who need news.
type Needs struct {
	st store.Listener // nil: the store hears all the time
	// needed is how many need news now, by kind. used: a need has ended since the last look. Begin writes needed and then reads on,
	// turnOffUnused writes on and then reads these, so one of the two sees the other.
	needed [kinds]atomic.Int64
	used   atomic.Bool
	on     atomic.Bool
	// noticed: Run was woken because a lock is held, and has not looked since.
	noticed atomic.Bool
	wake    chan struct{}

	turning sync.Mutex // with changes of on, so that the store is told of them in their order
}

// New makes the needs of a sidecar, which has none yet. st may be a [store.Listener].
func New(st any) *Needs {
	n := &Needs{wake: make(chan struct{}, 1)}
	n.st, _ = st.(store.Listener)
	return n
}

// Begin says that somebody needs news, until End. After Begin(News) has returned, the store knows it. It does not block.
func (n *Needs) Begin(k Kind) {
	if n.st == nil || k == Nothing {
		return
	}
	n.needed[k].Add(1)
	switch {
	case n.on.Load():
	case k == News:
		n.turnOn()
	case !n.noticed.Swap(true):
		clock.Wake(n.wake)
	}
}

// End ends one Begin.
func (n *Needs) End(k Kind) {
	if n.st == nil || k == Nothing {
		return
	}
	if !n.used.Load() {
		n.used.Store(true)
	}
	n.needed[k].Add(-1)
}

// Run makes the store hear requests to stop, and ends the hearing, until ctx ends.
func (n *Needs) Run(ctx context.Context) {
	for n.st != nil {
		// Nobody needs news, until something begins.
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
		// If that is a lock, the store begins to hear if one is held a while later. The next lock wakes this again.
		if !n.on.Load() && clock.Rest(ctx, Patience) != nil {
			return
		}
		n.noticed.Store(false)
		if n.needed[Stops].Load() > 0 {
			n.turnOn()
		}
		// The store hears until nobody needs it for a while.
		for n.on.Load() {
			n.used.Store(false)
			if clock.Rest(ctx, clock.Jittered(Linger)) != nil {
				return
			}
			n.turnOffUnused()
		}
	}
}

func (n *Needs) turnOn() {
	n.turning.Lock()
	defer n.turning.Unlock()
	if !n.on.Load() {
		n.st.Listen(true)
		n.on.Store(true) // after that, because others then return from Begin
		clock.Wake(n.wake)
	}
}

func (n *Needs) turnOffUnused() {
	n.turning.Lock()
	defer n.turning.Unlock()
	n.on.Store(false)
	if n.used.Load() || n.needed[News].Load() > 0 || n.needed[Stops].Load() > 0 {
		n.on.Store(true)
		return
	}
	n.st.Listen(false)
}
