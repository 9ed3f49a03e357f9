package memory

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// dead is the expiry of a reaped lease. No clock is before it, so a dead lease is also expired.
const dead = math.MinInt64

// deadLease replaces the lease of a bind:ttl grant that ended, and of a grant that was released before its
// hold was over. In the second case the real lease may live.
var deadLease = func() *lease {
	var l lease
	l.expires.Store(dead)
	return &l
}()

type lease struct {
	id store.LeaseID
	// renewed leases belong to sidecars. The others belong to one bind:ttl lock each, on key.
	renewed bool
	key     string
	// by is the instance that opened a renewed lease.
	by  *Store
	ttl time.Duration

	// mu guards changes of the following fields, so that renewals and reaps are ordered. No other mutex is
	// locked under it.
	mu sync.Mutex
	// expires is in nanoseconds on the space's clock, or dead. Readers do not lock mu.
	expires atomic.Int64
	// signals are those that holders under this lease have not acknowledged.
	signals []store.Signal
}

func (l *lease) alive(now moment) bool { return l.expires.Load() > now.at }

func (l *lease) dead() bool { return l.expires.Load() == dead }

// remaining is how long the lease still lasts. It is zero or less after the expiry.
func (l *lease) remaining(now moment) time.Duration {
	e := l.expires.Load()
	if e == dead {
		return 0
	}
	return time.Duration(e - now.at)
}

// extend sets the expiry of a living lease. It never revives an expired one. It also reports whether there
// are signals.
func (l *lease) extend(now moment, until int64) (extended, signals bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.alive(now) {
		return false, false
	}
	l.expires.Store(until)
	return true, len(l.signals) > 0
}

// kill marks the lease dead. It returns true for only one caller.
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

// reap marks the lease dead if it has expired, or with anyway in any case. It returns true for only one caller.
func (l *lease) reap(now moment, anyway bool) (died bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return (anyway || !l.alive(now)) && l.killLocked()
}

// leaseIndex finds leases by id. Dead leases are removed from it.
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

// open adds a renewed lease, or extends a living one with this id.
func (x *leaseIndex) open(id store.LeaseID, by *Store, ttl time.Duration, now moment) {
	p := x.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.byID[id]; l != nil {
		l.extend(now, now.at+int64(ttl))
		return
	}
	l := &lease{id: id, renewed: true, by: by, ttl: ttl}
	l.expires.Store(now.at + int64(ttl))
	p.byID[id] = l
}

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

func (x *leaseIndex) expired(now moment) []*lease {
	return x.all(func(l *lease) bool { return !l.alive(now) })
}

func (x *leaseIndex) renewedBy(instance string) []*lease {
	return x.all(func(l *lease) bool { return l.renewed && l.by.id.Instance == instance })
}

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
