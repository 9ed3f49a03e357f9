package memory

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// forgetAfter is how long a free key's last token is remembered.
const forgetAfter = 5 * time.Minute

// OpenLeases makes renewed leases.
func (s *Store) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	if err := s.usable(ctx, "OpenLeases"); err != nil {
		return err
	}
	now := s.ns.space.now()
	for _, l := range leases {
		s.ns.leases.open(l.ID, s, l.TTL, now)
	}
	return nil
}

// Renew extends the leases that are alive and returns them.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if err := s.usable(ctx, "Renew"); err != nil {
		return store.Renewal{}, err
	}
	now := s.ns.space.now()
	found := store.Renewal{Kept: make([]store.LeaseID, 0, len(leases))}
	for _, id := range leases {
		l := s.ns.leases.get(id)
		if l == nil || !l.renewed {
			continue
		}
		if extended, signals := l.extend(now, l.ttl); extended {
			found.Kept = append(found.Kept, id)
			found.Signals = found.Signals || signals
		}
	}
	return found, nil
}

// Revoke declares leases dead and hands off what they held.
func (s *Store) Revoke(ctx context.Context, leases []store.LeaseID) error {
	if err := s.usable(ctx, "Revoke"); err != nil {
		return err
	}
	o := operation{ns: s.ns}
	now := s.ns.space.now()
	for _, id := range leases {
		if l := s.ns.leases.get(id); l != nil {
			o.reap(l, now, true)
		}
	}
	o.finish()
	return nil
}

// ReapInstance declares the renewed leases of an instance dead.
func (s *Store) ReapInstance(ctx context.Context, instance string) error {
	if err := s.usable(ctx, "ReapInstance"); err != nil {
		return err
	}
	o := operation{ns: s.ns}
	now := s.ns.space.now()
	for _, l := range s.ns.leases.renewedBy(instance) {
		o.reap(l, now, true)
	}
	o.finish()
	return nil
}

// Sweep buries every lease that has expired, and forgets keys that have been
// free for a while. It does nothing when another one is at it.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.usable(ctx, "Sweep"); err != nil {
		return err
	}
	if !s.ns.sweeping.TryLock() {
		return nil
	}
	defer s.ns.sweeping.Unlock()
	o := operation{ns: s.ns}
	now := s.ns.space.now()
	for _, l := range s.ns.leases.expired(now) {
		o.reap(l, now, false)
	}
	o.finish()
	for i := range s.ns.shards {
		s.ns.shards[i].forget(s.ns.space)
	}
	return nil
}

// forget drops the rows of keys that have been free for long.
func (sh *shard) forget(space *Space) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := space.now()
	for key, r := range sh.rows {
		switch {
		case r.lease != nil && !r.lease.dead() || r.wanted():
		case r.freed == 0: // its lease was buried, and nobody looked since
			r.vacate(now)
		case now.at-r.freed >= int64(forgetAfter):
			delete(sh.rows, key)
		}
	}
}

// bury declares a lease dead, if it has expired or in any case. One whose hold is not
// over stands instead. What it held is visited when the operation holds no shard.
func (o *operation) reap(l *lease, now moment, anyway bool) {
	died, stands := l.reap(now, anyway)
	if died {
		o.ns.leases.remove(l.id)
	}
	if died || stands {
		o.buried = append(o.buried, l)
	}
}

// settle makes a row say the truth about its holder. An expired holder is
// buried; the key of a dead one goes to the first living waiter. It reports
// whether the key is free: nobody has it, and nobody waits for it.
func (o *operation) settle(r *row, now moment) (free bool) {
	if r.lease == nil {
		return true
	}
	if r.lease.alive(now) {
		return false
	}
	if !r.lease.dead() {
		o.reap(r.lease, now, false)
		if !r.lease.dead() {
			return false // a renewal came first
		}
	}
	if r.freed != 0 {
		return true // it was settled before
	}
	if !r.released { // else its end was told when it was released
		o.event(r, store.Event{Kind: store.EventExpired})
	}
	if o.handOff(r, now, "") {
		r.dropGone() // who died just now is no longer counted
		return false
	}
	r.vacate(now)
	return true
}

// grant gives the key to an asker. It reports whether that could be.
func (o *operation) grant(r *row, a *asker, now moment) bool {
	if !r.grantTo(a, o.ns, now) {
		return false
	}
	o.event(r, store.Event{Kind: store.EventAcquired})
	return true
}

// handOff gives the key to the first living waiter. A waiter whose lease has
// expired is not dead yet: burying the lease decides. It reports whether
// somebody got the key; if not, nobody waits. by is the trace context of the release
// that is the reason, or empty.
func (o *operation) handOff(r *row, now moment, by string) bool {
	for w := r.queue.first(); w != nil; w = r.queue.first() {
		if !w.lease.alive(now) {
			o.reap(w.lease, now, false)
		}
		r.dequeue(w)
		if w.lease.gone() || !o.grant(r, &w.asker, now) {
			continue
		}
		r.handedBy = by
		o.tell(r, w, r.granted(now))
		return true
	}
	return false
}

// visitBuried hands off what dead leases held, and drops who waited or watched under
// them. That may bury more leases: those of waiters whose turn it was. At last those
// are told who wait for what leases keep that stand now.
func (o *operation) visitReaped() {
	var standing []*lease
	for len(o.buried) > 0 {
		buried := o.buried
		o.buried = nil
		everywhere := false
		for _, l := range buried {
			if l.renewed {
				everywhere = true
			} else {
				o.visitKey(l.key)
			}
			if !l.dead() {
				standing = append(standing, l)
			}
		}
		if everywhere {
			o.visitEverywhere()
		}
	}
	for _, l := range standing {
		o.visitHoldPending(l)
	}
}

func (o *operation) visitKey(key string) {
	sh := o.ns.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if r := sh.rows[key]; r != nil {
		o.settle(r, o.ns.space.now())
	}
}

// visitStanding tells those who wait for a lease that it ends earlier than they were
// told.
func (o *operation) visitHoldPending(l *lease) {
	sh := o.ns.shard(l.heldKey) // written no more, as the lease stands
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if r := sh.rows[l.heldKey]; r != nil && r.lease == l {
		o.tellAll(r, o.ns.space.now())
	}
}

func (o *operation) visitEverywhere() {
	for i := range o.ns.shards {
		sh := &o.ns.shards[i]
		sh.mu.Lock()
		for r := range sh.visited {
			r.dropGone()
			if r.lease != nil && r.lease.dead() {
				o.settle(r, o.ns.space.now())
			}
		}
		sh.mu.Unlock()
	}
}
