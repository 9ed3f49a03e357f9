package memory

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// forgetAfter is how long a free key's last token is kept.
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
		if extended, signals := l.extend(now, now.at+int64(l.ttl)); extended {
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

// Sweep reaps expired leases, and deletes the rows of keys that were free for long, unless another Sweep runs.
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
	for i := range s.ns.shards {
		o.forget(&s.ns.shards[i])
	}
	o.finish()
	return nil
}

// forget deletes rows of keys that have been free for long, and settles rows of dead holders.
func (o *operation) forget(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	for key, r := range sh.rows {
		switch {
		case len(r.shares) > 0:
			o.settle(r, now)
		case r.lease != nil && !r.lease.dead() || r.kept(now):
		case r.lease != nil && r.freed == 0:
			o.settle(r, now)
		case now.at-r.freed >= int64(forgetAfter) && !r.wanted():
			delete(sh.rows, key)
		}
	}
}

// reap declares a lease dead if it has expired, or with anyway in any case. finish visits its rows.
func (o *operation) reap(l *lease, now moment, anyway bool) {
	if l.reap(now, anyway) {
		o.ns.leases.remove(l.id)
		o.reaped = append(o.reaped, l)
	}
}

// settle updates a row: it reaps an expired holder, and hands the key of a dead one to the first living
// waiter. It reports whether the key has neither holder nor waiters.
func (o *operation) settle(r *row, now moment) (free bool) {
	if len(r.shares) > 0 {
		return o.settleShares(r, now)
	}
	if r.lease == nil {
		return true
	}
	if !o.ended(&r.holder, now) {
		return false
	}
	if r.freed != 0 {
		return true // it was settled before
	}
	o.expired(r, &r.holder)
	if o.pass(r, now) {
		return false
	}
	r.vacate(now)
	return true
}

// pass hands a key on, and removes waiters that died just now. A removed waiter may have blocked others
// from a share, so pass hands on again. The later visit of that death would no longer find the waiter.
func (o *operation) pass(r *row, now moment) (granted bool) {
	granted = o.handOff(r, now, "")
	for (granted || len(o.reaped) > 0) && r.dropGone() && len(r.shares) > 0 {
		granted = o.handOff(r, now, "") || granted
	}
	return granted && r.taken()
}

// taken reports whether a key that was handed on still has a holder. A new share's lease may have died at once.
func (r *row) taken() bool { return len(r.shares) > 0 || r.lease != deadLease }

// expired reports the end of a grant to watchers, unless its release was reported before.
func (o *operation) expired(r *row, h *holder) {
	if !h.released {
		o.event(r, h.token, store.Event{Kind: store.EventExpired})
	}
}

// ended reports whether a grant no longer keeps the key. It reaps an expired lease.
func (o *operation) ended(h *holder, now moment) bool {
	if h.held(now) {
		return false
	}
	if !h.lease.dead() {
		o.reap(h.lease, now, false)
	}
	return h.lease.dead() // not dead if a renewal came first
}

// grant gives the key, or a share of it, to an asker.
func (o *operation) grant(r *row, a *asker, now moment) *holder {
	h := &r.holder
	if a.shared {
		h = r.addShare(a.limit)
	}
	h.take(a, r.key, o.ns, now)
	r.token, r.freed = h.token, 0
	o.event(r, h.token, store.Event{Kind: store.EventAcquired})
	return h
}

// handOff gives a key without an exclusive holder to the first living waiters that fit. It reports whether
// it granted any. For a waiter whose lease has expired, the reap decides. by is the trace context of the
// release that caused the hand-off, or empty.
func (o *operation) handOff(r *row, now moment, by string) (granted bool) {
	if r.queue.len() > 0 {
		o.dropDead(r, now)
	}
	for w := r.queue.first(); w != nil; w = r.queue.first() {
		if !w.lease.alive(now) {
			o.reap(w.lease, now, false)
		}
		if w.lease.dead() {
			r.dequeue(w)
			o.dropDead(r, now)
			continue
		}
		if !r.fits(&w.asker) {
			break
		}
		r.dequeue(w)
		h := o.grant(r, &w.asker, now)
		h.handedBy = by
		var answer store.Answer
		h.granted(&answer, now)
		if granted = true; !w.shared {
			answer.Cohort = r.cohort(o.ns)
		}
		o.tell(r, w, answer)
		if !w.shared {
			break
		}
	}
	return granted && r.taken()
}

// visitReaped hands off the keys of dead leases, and removes waiters and watchers under them. This may reap
// more leases, if the next waiters have expired too.
func (o *operation) visitReaped() {
	for len(o.reaped) > 0 {
		reaped := o.reaped
		o.reaped = nil
		var everywhere []*lease
		for _, l := range reaped {
			if l.renewed {
				everywhere = append(everywhere, l)
			} else {
				o.visitKey(l.key)
			}
		}
		if len(everywhere) > 0 {
			o.visitEverywhere(everywhere)
		}
	}
}

func (o *operation) visitKey(key string) {
	sh := o.ns.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if r := sh.rows[key]; r != nil {
		o.settleReaped(r, o.ns.space.now())
	}
}

// visitEverywhere settles keys that a dead lease held, and shared keys for which it waited, because other waiters
// may fit now. If a hold keeps a key, its waiters are notified to check again, because they may expect a later end.
func (o *operation) visitEverywhere(reaped []*lease) {
	for i := range o.ns.shards {
		sh := &o.ns.shards[i]
		sh.mu.Lock()
		for r := range sh.visited {
			if left := r.dropGone() && len(r.shares) > 0; !left && !r.under(reaped) {
				continue
			}
			now := o.ns.space.now()
			if o.settleReaped(r, now); r.keptUnder(reaped, now) {
				o.tellAll(r, now)
			}
		}
		sh.mu.Unlock()
	}
}

// settleReaped settles a row that a dead lease held or waited for.
func (o *operation) settleReaped(r *row, now moment) {
	if len(r.shares) > 0 {
		o.settleDead(r, now)
		return
	}
	o.settle(r, now)
}
