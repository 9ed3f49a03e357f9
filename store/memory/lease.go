package memory

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// dead is the expiry of a buried lease. No clock is before it, so a dead lease
// is also an expired one.
const dead = math.MinInt64

// deadLease stands for the lease of a grant that ended with it. That one need not be dead:
// a claim, or an undo, ends a grant when its lease has expired.
var deadLease = func() *lease {
	var l lease
	l.expires.Store(dead)
	return &l
}()

// lease says "alive until expires".
type lease struct {
	id store.LeaseID
	// renewed leases belong to sidecars. The others are those of bind:ttl locks:
	// key is the only one that such a lease ever holds.
	renewed bool
	key     string
	// by is the instance that opened a renewed lease.
	by  *Store
	ttl time.Duration

	// mu is held by whoever changes the rest, so that renewals and burials meet.
	// Nothing else is locked under it.
	mu sync.Mutex
	// expires is in nanoseconds on the space's clock, or dead. It is read without mu.
	expires atomic.Int64
	// hold is until when a MinHold keeps heldKey, in nanoseconds on the space's clock;
	// zero: there is none. expires is never before it.
	hold    int64
	heldKey string
	// stands: the hold is all that the lease is still good for.
	stands atomic.Bool
	// signals are on their way to holders under this lease.
	signals []store.Signal
}

func (l *lease) alive(now moment) bool { return l.expires.Load() > now.at }

func (l *lease) dead() bool { return l.expires.Load() == dead }

// owned reports whether the lease is somebody's: alive, and does not stand.
func (l *lease) owned(now moment) bool { return l.alive(now) && !l.stands.Load() }

// gone reports whether the lease has no owner any more, for ever. Who waited or
// watched under it is dropped.
func (l *lease) gone() bool { return l.dead() || l.stands.Load() }

// remaining is how long the lease lasts; zero or less when it has expired.
func (l *lease) remaining(now moment) time.Duration {
	e := l.expires.Load()
	if e == dead {
		return 0
	}
	return time.Duration(e - now.at)
}

// extend lets a living lease end ttl from now, or with its hold if that is later. It
// refuses an expired one: what is past its end is never revived; and one that stands.
// It reports whether there are signals, too.
func (l *lease) extend(now moment, ttl time.Duration) (extended, signals bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.owned(now) {
		return false, false
	}
	l.expires.Store(max(now.at+int64(ttl), l.hold))
	return true, len(l.signals) > 0
}

// keep makes the lease last for a hold at least. It refuses a dead one.
func (l *lease) keep(key string, now moment, hold time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone() {
		return false
	}
	l.hold, l.heldKey = now.at+int64(hold), key
	l.expires.Store(max(l.expires.Load(), l.hold))
	return true
}

// stand ends a lease for its owner, but not its hold. It reports whether there is
// anything left of the hold, and the lease stands; if not, it changes nothing.
func (l *lease) stand(now moment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standLocked(now)
}

func (l *lease) standLocked(now moment) bool {
	if !l.alive(now) || l.hold <= now.at {
		return false
	}
	l.expires.Store(l.hold)
	l.stands.Store(true)
	l.signals = nil
	return true
}

// endHold lets nothing be kept any more: the lease ends as any other does. It reports
// whether there was anything left of the hold.
func (l *lease) endHold(space *Space) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone() {
		return false
	}
	now := space.now() // not before a renewal that came first
	left := l.hold > now.at
	l.hold = 0
	l.expires.Store(min(l.expires.Load(), now.at+int64(l.ttl)))
	return left
}

// kill marks the lease dead, also if its hold is not over. Exactly one caller is told
// that it did.
func (l *lease) kill() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.killLocked()
}

func (l *lease) killLocked() bool {
	if l.dead() {
		return false
	}
	l.expires.Store(dead)
	l.signals = nil
	return true
}

// bury marks the lease dead, if it has expired by now or in any case. If its hold is
// not over, it stands from now on instead. Exactly one caller is told of either.
func (l *lease) reap(now moment, anyway bool) (died, stands bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.alive(now):
		return l.killLocked(), false
	case !anyway || l.stands.Load():
		return false, false
	case l.standLocked(now):
		return false, true
	default:
		return l.killLocked(), false
	}
}

// leaseIndex finds leases by id. Dead leases are not in it.
type leaseIndex struct {
	parts [16]leasePart
}

type leasePart struct {
	mu   sync.RWMutex
	byID map[store.LeaseID]*lease

	_ [32]byte // neighbours do not share a cache line
}

func (x *leaseIndex) init() {
	for i := range x.parts {
		x.parts[i].byID = map[store.LeaseID]*lease{}
	}
}

func (x *leaseIndex) part(id store.LeaseID) *leasePart {
	return &x.parts[int(id[0]^id[15])%len(x.parts)]
}

func (x *leaseIndex) get(id store.LeaseID) *lease {
	p := x.part(id)
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[id]
}

// open adds a renewed lease. Repeated, it extends the one that is there, if that
// is still alive.
func (x *leaseIndex) open(id store.LeaseID, by *Store, ttl time.Duration, now moment) {
	p := x.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.byID[id]; l != nil {
		l.extend(now, ttl)
		return
	}
	l := &lease{id: id, renewed: true, by: by, ttl: ttl}
	l.expires.Store(now.at + int64(ttl))
	p.byID[id] = l
}

// openFor adds the unrenewed lease of a bind:ttl lock.
func (x *leaseIndex) openFor(key string, ttl time.Duration, now moment) *lease {
	l := &lease{id: uuid.New(), key: key, ttl: ttl}
	l.expires.Store(now.at + int64(ttl))
	p := x.part(l.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID[l.id] = l
	return l
}

func (x *leaseIndex) remove(id store.LeaseID) {
	p := x.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, id)
}

// expired returns the leases that are past their end.
func (x *leaseIndex) expired(now moment) []*lease {
	return x.all(func(l *lease) bool { return !l.alive(now) })
}

// renewedBy returns the renewed leases of an instance.
func (x *leaseIndex) renewedBy(instance string) []*lease {
	return x.all(func(l *lease) bool { return l.renewed && l.by.id.Instance == instance })
}

// all returns the leases that are wanted.
func (x *leaseIndex) all(wanted func(*lease) bool) []*lease {
	var found []*lease
	for i := range x.parts {
		p := &x.parts[i]
		p.mu.RLock()
		for _, l := range p.byID {
			if wanted(l) {
				found = append(found, l)
			}
		}
		p.mu.RUnlock()
	}
	return found
}
