package lease

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// maxLeases caps the number of different TTLs in use at a time: each is a
	// lease that is renewed.
	maxLeases = 64
	// minMargin and marginShare: a lease is trusted until its TTL less 5%, at
	// least 50 ms, after the last confirmed renewal was sent. The margin is for
	// clocks that run at different speeds, and for telling the app in time.
	minMargin   = 50 * time.Millisecond
	marginShare = 20
	// suspendJump is how much of a suspension a lease survives: what the margin
	// covers anyway.
	suspendJump = minMargin
)

// margin is how long before the store's expiry a lease is no longer trusted.
func margin(ttl time.Duration) time.Duration { return max(ttl/marginShare, minMargin) }

// renewed is a lease of this sidecar, which the keeper renews while anything
// rides on it. It lives until its deadline, which every confirmed renewal moves;
// once lost it is never revived.
type renewed struct {
	id  store.LeaseID
	ttl time.Duration

	// opened is closed when the store has answered; openErr is set before.
	opened  chan struct{}
	openErr error

	// life is replaced by each confirmed renewal. nil until opened.
	life atomic.Pointer[life]
	lost atomic.Bool
	// riders counts the locks and the attempts on it. It rises only under the
	// book's mutex, so that the keeper can close a lease that has none.
	riders atomic.Int64
	// used: something rode on it since the keeper last looked.
	used atomic.Bool

	// For the keeper, under the book's mutex.
	renewAt  time.Time
	renewing bool
	// failing: the last renewal was not confirmed by the store, or not yet.
	failing atomic.Bool
}

// life is what is known since the last confirmed renewal was sent.
type life struct {
	deadline  time.Time
	suspended time.Duration
}

// confirm notes that a renewal (or the opening) that was sent at that time was
// confirmed. It reports false when the lease had passed its deadline before.
func (l *renewed) confirm(clk Clock, sent time.Time, suspendedThen time.Duration) bool {
	if l.life.Load() != nil && !l.alive(clk) {
		return false
	}
	l.life.Store(&life{deadline: sent.Add(l.ttl - margin(l.ttl)), suspended: suspendedThen})
	return l.alive(clk)
}

// alive reports whether the lease can be trusted now. Every read asks: a timer
// may come late, to a process that was stopped.
func (l *renewed) alive(clk Clock) bool {
	if l.lost.Load() {
		return false
	}
	life := l.life.Load()
	return life != nil && clk.Now().Before(life.deadline) && clk.Suspended()-life.suspended < suspendJump
}

// remaining is how long the lease can be trusted if it is not renewed any more.
func (l *renewed) remaining(clk Clock) time.Duration {
	if !l.alive(clk) {
		return 0
	}
	return max(l.life.Load().deadline.Sub(clk.Now()), 0)
}

// unpin ends what pin began.
func (l *renewed) unpin() { l.riders.Add(-1) }

// interval is how often a lease of that TTL is renewed.
func interval(ttl, configured time.Duration) time.Duration { return min(configured, ttl/3) }

// book has the renewed leases in use, one for each TTL.
type book struct {
	mu    sync.RWMutex
	byTTL map[time.Duration]*renewed
	// wake tells the keeper that the book has changed.
	wake chan struct{}
}

func newBook() *book {
	return &book{byTTL: make(map[time.Duration]*renewed), wake: make(chan struct{}, 1)}
}

// pin returns the lease for a TTL, with one rider more, and whether the caller
// must open it.
func (b *book) pin(ttl time.Duration) (l *renewed, open bool, err error) {
	b.mu.RLock()
	if l = b.byTTL[ttl]; l != nil {
		l.riders.Add(1)
	}
	b.mu.RUnlock()
	if l == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if l = b.byTTL[ttl]; l == nil {
			if len(b.byTTL) >= maxLeases {
				return nil, false, &LimitError{What: "different values of ttl_ms in use at a time", Limit: maxLeases}
			}
			l = &renewed{id: uuid.New(), ttl: ttl, opened: make(chan struct{})}
			b.byTTL[ttl] = l
			open = true
		}
		l.riders.Add(1)
	}
	if !l.used.Load() {
		l.used.Store(true)
	}
	return l, open, nil
}

// get returns the lease for a TTL, or nil.
func (b *book) get(ttl time.Duration) *renewed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.byTTL[ttl]
}

// remove takes a lease out, so that the next pin makes a fresh one.
func (b *book) remove(l *renewed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byTTL[l.ttl] == l {
		delete(b.byTTL, l.ttl)
	}
}

// all returns the leases.
func (b *book) all() []*renewed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make([]*renewed, 0, len(b.byTTL))
	for _, l := range b.byTTL {
		out = append(out, l)
	}
	return out
}

func (b *book) changed() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
