package lease

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// minMargin and marginShare: a lease is trusted until its TTL less 5%, at
	// least 50 ms, after the last confirmed renewal was sent. The margin is for
	// clocks that run at different speeds, and for telling the app in time.
	minMargin   = 50 * time.Millisecond
	marginShare = 20
	// suspendJump is how much of a suspension a lease survives: what the margin
	// covers anyway.
	suspendJump = minMargin
)

// ttlSteps are the TTLs that shared leases have, beside the configured one. Each lease in
// use is renewed, so locks with any TTL between two steps are held under one lease. Each
// step is at most twice the one before.
var ttlSteps = [...]time.Duration{
	500 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute,
	10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour,
}

// margin is how long before the store's expiry a lease is no longer trusted.
func margin(ttl time.Duration) time.Duration { return max(ttl/marginShare, minMargin) }

// reliable is how long an app may rely on a lock that the store keeps for so long. The
// app of a bind:ttl lock counts by itself, and nobody tells it when that is over.
func reliable(left time.Duration) time.Duration { return left - margin(left) }

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

	// unused is called when nothing rides on it any more; nil for a lease that others
	// may ride on next. only is the bid for which such a lease was opened.
	unused func(*renewed)
	only   atomic.Pointer[bid]

	// For the keeper, under the book's mutex.
	renewAt  time.Time
	renewing bool
	// failing: the last renewal was not confirmed by the store, or not yet.
	failing atomic.Bool
	// recounting belongs to the renewal that is under way; nil: there was no failover.
	recounting *recounting
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
func (l *renewed) alive(clk Clock) bool { return l.aliveAt(clk, clk.Now()) }

// aliveAt is alive for who has just read the clock.
func (l *renewed) aliveAt(clk Clock, now time.Time) bool {
	if l.lost.Load() {
		return false
	}
	life := l.life.Load()
	return life != nil && now.Before(life.deadline) && clk.Suspended(now)-life.suspended < suspendJump
}

// remaining is how long the lease can be trusted if it is not renewed any more.
func (l *renewed) remaining(clk Clock) time.Duration { return l.remainingAt(clk, clk.Now()) }

func (l *renewed) remainingAt(clk Clock, now time.Time) time.Duration {
	if !l.aliveAt(clk, now) {
		return 0
	}
	return max(l.life.Load().deadline.Sub(now), 0)
}

// own reports whether the lease exists for one bid, and the lock that it may get.
func (l *renewed) own() bool { return l.unused != nil }

// unpin ends what pin began.
func (l *renewed) unpin() {
	if l.riders.Add(-1) == 0 && l.own() {
		l.unused(l)
	}
}

// interval is how often a lease of that TTL is renewed.
func interval(ttl, configured time.Duration) time.Duration { return min(configured, ttl/3) }

// book has the renewed leases in use: one for each step of the TTLs, and those that
// exist for one bid whose lock has a MinHold, for which they may have to stand.
type book struct {
	usual time.Duration // the configured TTL
	mu    sync.RWMutex
	byTTL map[time.Duration]*renewed
	own   map[*renewed]struct{}
	// dying are those to be buried, of which the store has not confirmed it.
	dying map[*renewed]struct{}
	// nextAt is when the keeper looks next.
	nextAt time.Time
	// wake tells the keeper that the book has changed.
	wake chan struct{}
}

func newBook(usual time.Duration) *book {
	return &book{
		usual: usual,
		byTTL: make(map[time.Duration]*renewed), own: make(map[*renewed]struct{}), dying: make(map[*renewed]struct{}),
		wake: make(chan struct{}, 1),
	}
}

// step is the TTL of the lease for locks with this TTL: the next step, or the configured
// TTL if that comes first.
func (b *book) step(ttl time.Duration) time.Duration {
	if ttl == b.usual {
		return ttl
	}
	i, _ := slices.BinarySearch(ttlSteps[:], ttl)
	switch {
	case i == len(ttlSteps):
		return ttl
	case ttl < b.usual:
		return min(ttlSteps[i], b.usual)
	default:
		return ttlSteps[i]
	}
}

// pin returns the lease for a TTL, with one rider more, and whether the caller
// must open it.
func (b *book) pin(ttl time.Duration) (l *renewed, open bool) {
	ttl = b.step(ttl)
	b.mu.RLock()
	if l = b.byTTL[ttl]; l != nil {
		l.riders.Add(1)
	}
	b.mu.RUnlock()
	if l == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if l = b.byTTL[ttl]; l == nil {
			l = newRenewed(ttl)
			b.byTTL[ttl] = l
			open = true
		}
		l.riders.Add(1)
	}
	if !l.used.Load() {
		l.used.Store(true)
	}
	return l, open
}

func newRenewed(ttl time.Duration) *renewed {
	return &renewed{id: uuid.New(), ttl: ttl, opened: make(chan struct{})}
}

// pinOwn returns a lease that nobody else will ride on, with one rider. unused is
// called, once, when it has none any more. The caller must open it.
func (b *book) pinOwn(ttl time.Duration, unused func(*renewed)) *renewed {
	l := newRenewed(ttl)
	l.unused = unused
	l.riders.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[l] = struct{}{}
	return l
}

// get returns the lease for a TTL, or nil.
func (b *book) get(ttl time.Duration) *renewed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.byTTL[b.step(ttl)]
}

// remove takes a lease out, so that the next pin makes a fresh one. It reports
// false when somebody did so before.
func (b *book) remove(l *renewed) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removeLocked(l)
}

func (b *book) removeLocked(l *renewed) bool {
	if _, ok := b.own[l]; ok {
		delete(b.own, l)
		return true
	}
	if b.byTTL[l.ttl] == l {
		delete(b.byTTL, l.ttl)
		return true
	}
	return false
}

// all returns the leases.
func (b *book) all() []*renewed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.allLocked()
}

func (b *book) allLocked() []*renewed {
	out := make([]*renewed, 0, len(b.byTTL)+len(b.own))
	for _, l := range b.byTTL {
		out = append(out, l)
	}
	for l := range b.own {
		out = append(out, l)
	}
	return out
}

// dies notes that a lease is to be buried, buried that the store has confirmed it.
func (b *book) dies(l *renewed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dying[l] = struct{}{}
}

func (b *book) buried(leases ...*renewed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range leases {
		delete(b.dying, l)
	}
}

// graves returns the leases to be buried, of which the store has not confirmed it.
func (b *book) graves() []*renewed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Keys(b.dying))
}

// opened tells the keeper of a lease, if it is due before the keeper looks anyway.
func (b *book) opened(l *renewed) {
	b.mu.RLock()
	sooner := l.renewAt.Before(b.nextAt)
	b.mu.RUnlock()
	if sooner {
		b.changed()
	}
}

func (b *book) changed() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
