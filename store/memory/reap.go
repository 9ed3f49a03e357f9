package memory

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
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
		s.ns.leases.open(l.ID, &s.self, l.TTL, now)
	}
	return nil
}

// Renew extends the leases that are alive and returns them.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if err := s.usable(ctx, "Renew"); err != nil {
		return store.Renewal{}, err
	}
	now := s.ns.space.now()
	found := store.Renewal{Renewed: make([]store.LeaseID, 0, len(leases))}
	for _, id := range leases {
		l := s.ns.leases.get(id)
		if l == nil || !l.Renewed() {
			continue
		}
		if extended, signals := l.Extend(now, l.TTL()); extended {
			found.Renewed = append(found.Renewed, id)
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
	o := s.operation()
	o.Now = s.ns.space.now()
	for _, id := range leases {
		if l := s.ns.leases.get(id); l != nil {
			o.Reap(l, true)
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
	o := s.operation()
	o.Now = s.ns.space.now()
	for _, l := range s.ns.leases.renewedBy(instance) {
		o.Reap(l, true)
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
	o := s.operation()
	o.Now = s.ns.space.now()
	for _, l := range s.ns.leases.expired(o.Now) {
		o.Reap(l, false)
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
	o.Now = o.ns.space.now()
	for k, r := range sh.rows {
		if r.Forgettable(o.Now, forgetAfter) {
			delete(sh.rows, k)
			continue
		}
		o.Settle(&r.Row)
		sh.note(r)
	}
}

// visitReaped removes dead leases from the index, hands off their keys, and removes waiters and watchers under
// them. This may reap more leases, if the next waiters have expired too.
func (o *operation) visitReaped() {
	for len(o.Died) > 0 {
		died := o.Died
		o.Died = nil
		var everywhere []*key.Lease
		for _, l := range died {
			o.ns.leases.remove(l.ID())
			if l.Renewed() {
				everywhere = append(everywhere, l)
				continue
			}
			sh, r := o.lock(l.Key())
			o.Visit(&r.Row, []*key.Lease{l})
			sh.unlock(r)
		}
		if len(everywhere) > 0 {
			o.visitEverywhere(everywhere)
		}
	}
}

// visitEverywhere visits all rows in which somebody may wait under these leases, or for their keys.
func (o *operation) visitEverywhere(died []*key.Lease) {
	for i := range o.ns.shards {
		sh := &o.ns.shards[i]
		sh.mu.Lock()
		o.Now = o.ns.space.now()
		for r := range sh.visited {
			o.Visit(&r.Row, died)
			sh.note(r)
		}
		sh.mu.Unlock()
	}
}
