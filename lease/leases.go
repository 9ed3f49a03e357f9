package lease

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// minMargin and marginShare: a lease is trusted until its TTL less 5%, at
	// least 50 ms, after the last confirmed renewal was sent. The margin is for
	// clocks that run at different speeds, and for telling the app in time.
	minMargin   = clock.SuspensionLimit // a lease survives what the margin covers
	marginShare = 20
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

// lease is a lease of this sidecar, which the renewer renews while anything
// is held under it. It lives until its deadline, which every confirmed renewal moves;
// once lost it is never revived.
type lease struct {
	id  store.LeaseID
	ttl time.Duration

	// opened is closed when the store has answered; openErr is set before.
	opened  chan struct{}
	openErr error

	// life is replaced by each confirmed renewal. nil until opened.
	life atomic.Pointer[life]
	lost atomic.Bool
	// users counts the locks and the attempts on it. It rises only under the
	// lease set's mutex, so that the renewer can close a lease that has none.
	users atomic.Int64
	// used: something was held under it since the renewer last looked.
	used atomic.Bool

	// For the renewer, under the lease set's mutex.
	renewAt  time.Time
	renewing bool
	// failing: the last renewal was not confirmed by the store, or not yet.
	failing atomic.Bool
	// next is the lease to which what is held under this one is being moved: see rotate.go.
	next atomic.Pointer[lease]
	// verified is in which history the locks were last verified, unread are those that were
	// not yet. They belong to the renewal that is under way.
	verified store.History
	unread   []*heldLock
}

// life is what is known since the last confirmed renewal was sent.
type life struct {
	deadline  time.Time
	suspended time.Duration
}

// confirm notes that a renewal (or the opening) that was sent at that time was
// confirmed. It reports false when the lease had passed its deadline before.
func (l *lease) confirm(clk clock.Clock, sent time.Time, suspendedThen time.Duration) bool {
	if l.life.Load() != nil && !l.alive(clock.Read(clk)) {
		return false
	}
	l.life.Store(&life{deadline: sent.Add(l.ttl - margin(l.ttl)), suspended: suspendedThen})
	return l.alive(clock.Read(clk))
}

// alive reports whether the lease can be trusted now. Every read asks: a timer
// may come late, to a process that was stopped.
func (l *lease) alive(t clock.Tick) bool {
	if l.lost.Load() {
		return false
	}
	life := l.life.Load()
	if life == nil || !t.Now.Before(life.deadline) || t.Suspended()-life.suspended >= clock.SuspensionLimit {
		return false
	}
	next := l.next.Load() // the store may have the lock under that one already
	return next == nil || next.alive(t)
}

// remaining is how long the lease can be trusted if it is not renewed any more.
func (l *lease) remaining(t clock.Tick) time.Duration {
	if !l.alive(t) {
		return 0
	}
	left := max(l.life.Load().deadline.Sub(t.Now), 0)
	if next := l.next.Load(); next != nil {
		left = min(left, next.remaining(t))
	}
	return left
}

// unpin ends what pin began.
func (l *lease) unpin() { l.users.Add(-1) }

// interval is how often a lease of that TTL is renewed.
func interval(ttl, configured time.Duration) time.Duration { return min(configured, ttl/3) }

// leaseSet has the renewed leases in use: one for each step of the TTLs. Those of another
// history are retired: nothing new is held under them.
type leaseSet struct {
	usual time.Duration // the configured TTL
	// listen tells the store whether there is a lease. Whatever the store tells of (hand-offs,
	// signals, events) concerns waits, locks and watches, and each of these needs a lease.
	listen    func(on bool)
	listening bool
	emptied   time.Time // when the last lease went
	mu        sync.RWMutex
	byTTL     map[time.Duration]*lease
	retired   map[*lease]struct{}
	// toRevoke are leases whose revocation the store has not confirmed.
	toRevoke map[*lease]struct{}
	// nextAt is when the renewer looks next.
	nextAt time.Time
	// wake tells the renewer that the lease set has changed.
	wake chan struct{}
}

func newLeaseSet(usual time.Duration, listen func(on bool)) *leaseSet {
	return &leaseSet{
		usual: usual, listen: listen,
		byTTL: make(map[time.Duration]*lease), retired: make(map[*lease]struct{}),
		toRevoke: make(map[*lease]struct{}), wake: make(chan struct{}, 1),
	}
}

// step is the TTL of the lease for locks with this TTL: the next step, or the configured
// TTL if that comes first.
func (b *leaseSet) step(ttl time.Duration) time.Duration {
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

// pin returns the lease for a TTL, with one user more, and whether the caller
// must open it.
func (b *leaseSet) pin(ttl time.Duration) (l *lease, open bool) {
	ttl = b.step(ttl)
	b.mu.RLock()
	if l = b.byTTL[ttl]; l != nil {
		l.users.Add(1)
	}
	b.mu.RUnlock()
	if l == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if l = b.byTTL[ttl]; l == nil {
			l = newLease(ttl)
			b.listenLocked()
			b.byTTL[ttl] = l
			open = true
		}
		l.users.Add(1)
	}
	if !l.used.Load() {
		l.used.Store(true)
	}
	return l, open
}

func newLease(ttl time.Duration) *lease {
	return &lease{id: uuid.New(), ttl: ttl, opened: make(chan struct{})}
}

// get returns the lease for a TTL, or nil.
func (b *leaseSet) get(ttl time.Duration) *lease {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.byTTL[b.step(ttl)]
}

// remove takes a lease out, if it is there, so that the next pin makes a fresh one.
func (b *leaseSet) remove(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(l)
}

func (b *leaseSet) removeLocked(l *lease) {
	if _, ok := b.retired[l]; ok {
		delete(b.retired, l)
	} else if b.byTTL[l.ttl] == l {
		delete(b.byTTL, l.ttl)
	} else {
		return
	}
	if b.emptyLocked() {
		b.emptied = time.Time{} // the renewer notes when
		b.changed()
	}
}

// lingerTime is how long the store goes on to listen when there is no lease. To begin again
// costs a connection, and leases of short locks come and go.
const lingerTime = 30 * time.Second

// listenLocked is called before a lease is added. b.mu is held.
func (b *leaseSet) listenLocked() {
	if !b.listening {
		b.listening = true
		b.listen(true)
	}
}

// lingerLocked ends the listening if there has been no lease for long. It returns how long
// until it has to look again. b.mu is held.
func (b *leaseSet) lingerLocked(now time.Time) time.Duration {
	if !b.listening || !b.emptyLocked() {
		return time.Hour
	}
	if b.emptied.IsZero() {
		b.emptied = now
	}
	left := lingerTime - now.Sub(b.emptied)
	if left <= 0 {
		b.listening = false
		b.listen(false)
		return time.Hour
	}
	return left
}

func (b *leaseSet) emptyLocked() bool { return len(b.byTTL)+len(b.retired) == 0 }

// retire makes the next pin find a fresh lease. It reports false when the lease is retired,
// or was never for others to pin.
func (b *leaseSet) retire(l *lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byTTL[l.ttl] != l {
		return false
	}
	delete(b.byTTL, l.ttl)
	b.retired[l] = struct{}{}
	return true
}

// isRetired reports whether a lease is retired, and neither closed nor lost.
func (b *leaseSet) isRetired(l *lease) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.isRetiredLocked(l)
}

func (b *leaseSet) isRetiredLocked(l *lease) bool {
	_, ok := b.retired[l]
	return ok
}

// all returns the leases.
func (b *leaseSet) all() []*lease {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.allLocked()
}

func (b *leaseSet) allLocked() []*lease {
	return slices.AppendSeq(slices.Collect(maps.Values(b.byTTL)), maps.Keys(b.retired))
}

// mustRevoke notes that a lease is to be revoked, revoked that the store has confirmed it.
func (b *leaseSet) mustRevoke(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.toRevoke[l] = struct{}{}
}

func (b *leaseSet) revoked(leases ...*lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range leases {
		delete(b.toRevoke, l)
	}
}

// unrevoked returns the leases to be revoked, of which the store has not confirmed it.
func (b *leaseSet) unrevoked() []*lease {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Keys(b.toRevoke))
}

// opened tells the renewer of a lease, if it is due before the renewer looks anyway.
func (b *leaseSet) opened(l *lease) {
	b.mu.RLock()
	sooner := l.renewAt.Before(b.nextAt)
	b.mu.RUnlock()
	if sooner {
		b.changed()
	}
}

func (b *leaseSet) changed() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// left counts the living leases. It tells for how long the one that ends first is still
// trusted, and the smallest share of its TTL for which one is.
func (b *leaseSet) left(t clock.Tick) (living int, expiry time.Duration, share float64) {
	for _, l := range b.all() {
		if !l.alive(t) {
			continue
		}
		left := l.remaining(t)
		part := float64(left) / float64(l.ttl)
		if living == 0 || left < expiry {
			expiry = left
		}
		if living == 0 || part < share {
			share = part
		}
		living++
	}
	return living, expiry, share
}
