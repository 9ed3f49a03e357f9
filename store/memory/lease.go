package memory

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// leaseIndex finds leases by id. Dead leases are removed from it.
type leaseIndex struct {
	parts [16]leasePart
}

type leasePart struct {
	mu   sync.RWMutex
	byID map[store.LeaseID]*key.Lease

	_ [32]byte // neighbours do not share a cache line
}

func (x *leaseIndex) init() {
	for i := range x.parts {
		x.parts[i].byID = map[store.LeaseID]*key.Lease{}
	}
}

func (x *leaseIndex) part(id store.LeaseID) *leasePart {
	return &x.parts[int(id[0]^id[15])%len(x.parts)]
}

func (x *leaseIndex) get(id store.LeaseID) *key.Lease {
	p := x.part(id)
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[id]
}

// open adds a renewed lease, or extends a living one with this id.
func (x *leaseIndex) open(id store.LeaseID, by *key.Instance, ttl time.Duration, now key.Moment) {
	p := x.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.byID[id]; l != nil {
		l.Extend(now, ttl)
		return
	}
	p.byID[id] = key.NewLease(id, by, "", ttl).LiveFor(ttl, now)
}

func (x *leaseIndex) add(l *key.Lease) {
	p := x.part(l.ID())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID[l.ID()] = l
}

func (x *leaseIndex) remove(id store.LeaseID) {
	p := x.part(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, id)
}

func (x *leaseIndex) expired(now key.Moment) []*key.Lease {
	return x.all(func(l *key.Lease) bool { return !l.Alive(now) })
}

func (x *leaseIndex) renewedBy(instance string) []*key.Lease {
	return x.all(func(l *key.Lease) bool { return l.Renewed() && l.By().Name == instance })
}

func (x *leaseIndex) all(wanted func(*key.Lease) bool) []*key.Lease {
	var found []*key.Lease
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

// The namespace is the machine's engine.
var _ key.Engine = (*namespace)(nil)

// Token returns the space's next token.
func (ns *namespace) Token() int64 { return ns.space.tokens.Add(1) }

// Reserve keeps tokens. They need not be free for other keys, because only the tokens of one key must grow.
func (ns *namespace) Reserve(upTo int64) bool {
	for tokens := &ns.space.tokens; ; {
		last := tokens.Load()
		if last >= upTo || tokens.CompareAndSwap(last, upTo) {
			return true
		}
	}
}

// Open makes the lease of a bind:ttl lock.
func (ns *namespace) Open(k string, ttl time.Duration, now key.Moment) *key.Lease {
	l := key.NewLease(uuid.New(), nil, k, ttl).LiveFor(ttl, now)
	ns.leases.add(l)
	return l
}

// Hold makes a lease that only its row knows.
func (ns *namespace) Hold(k string, ttl time.Duration, now key.Moment) *key.Lease {
	return key.NewLease(store.LeaseID{}, nil, k, ttl).LiveFor(ttl, now)
}

// Extend extends a lease.
func (ns *namespace) Extend(l *key.Lease, ttl time.Duration, now key.Moment) *key.Lease {
	if extended, _ := l.Extend(now, ttl); !extended {
		return nil
	}
	return l
}

// Close forgets a lease.
func (ns *namespace) Close(l *key.Lease) { ns.leases.remove(l.ID()) }

// NextSignal returns the namespace's next id.
func (ns *namespace) NextSignal() store.SignalID { return store.SignalID(ns.lastSignal.Add(1)) }
