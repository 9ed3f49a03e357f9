package memory

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// each carries out an operation on the rows of several items, one after the other.
func each[T, R any](ctx context.Context, s *Store, op string, items []T, name func(*T) string, do func(*operation, *key.Row, *T) R) ([]R, error) {
	if err := s.usable(ctx, op); err != nil {
		return nil, err
	}
	o := s.operation()
	results := make([]R, len(items))
	for i := range items {
		sh, r := o.lock(name(&items[i]))
		results[i] = do(&o, &r.Row, &items[i])
		sh.unlock(r)
	}
	o.finish()
	return results, nil
}

func keyOfAttempt(a *store.Attempt) string { return a.Key }

// Acquire takes each available key. Acquire, Enqueue and Release do not use each, which would make an object for each call.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return s.ask(ctx, "Acquire", asks, false)
}

// Enqueue takes each available key, and queues the other asks.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return s.ask(ctx, "Enqueue", asks, true)
}

func (s *Store) ask(ctx context.Context, op string, asks []store.Ask, wait bool) ([]store.Answer, error) {
	if err := s.usable(ctx, op); err != nil {
		return nil, err
	}
	o := s.operation()
	answers := make([]store.Answer, len(asks))
	for i := range asks {
		o.ask(&asks[i], wait, &answers[i])
	}
	o.finish()
	return answers, nil
}

// AcquireOne is Acquire for one key.
func (s *Store) AcquireOne(ctx context.Context, ask store.Ask) (answer store.Answer, err error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return store.Answer{}, err
	}
	o := s.operation()
	o.ask(&ask, false, &answer)
	o.finish()
	return answer, nil
}

func (o *operation) ask(ask *store.Ask, wait bool, answer *store.Answer) {
	var own *key.Lease
	if wait || key.AcquireNeedsLease(ask) {
		own = o.ns.leases.get(ask.Lease)
	}
	sh, r := o.lock(ask.Key)
	defer sh.unlock(r)
	if wait {
		o.Enqueue(&r.Row, ask, own, answer)
	} else {
		o.Acquire(&r.Row, ask, own, answer)
	}
}

// Check returns what became of waiters.
func (s *Store) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return each(ctx, s, "Check", waits, keyOfAttempt, func(o *operation, r *key.Row, a *store.Attempt) store.Answer { return o.Check(r, *a) })
}

// Cancel takes waiters out of their queues.
func (s *Store) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return each(ctx, s, "Cancel", waits, keyOfAttempt, func(o *operation, r *key.Row, a *store.Attempt) store.Answer { return o.Cancel(r, *a) })
}

// Withdraw frees what attempts hold or wait for. In memory, the outcome of an attempt is always known.
func (s *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	return each(ctx, s, "Withdraw", attempts, keyOfAttempt, func(o *operation, r *key.Row, a *store.Attempt) store.Outcome {
		return o.Withdraw(r, *a).Outcome
	})
}

// Release frees locks, or hands them to the first living waiter.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return nil, err
	}
	o := s.operation()
	verdicts := make([]store.Verdict, len(claims))
	for i := range claims {
		o.release(&claims[i], &verdicts[i])
	}
	o.finish()
	return verdicts, nil
}

// ReleaseOne is Release for one lock.
func (s *Store) ReleaseOne(ctx context.Context, c store.Claim) (verdict store.Verdict, err error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return store.Verdict{}, err
	}
	o := s.operation()
	o.release(&c, &verdict)
	o.finish()
	return verdict, nil
}

func (o *operation) release(c *store.Claim, v *store.Verdict) {
	sh, r := o.lock(c.Key)
	defer sh.unlock(r)
	*v = o.Release(&r.Row, c)
}

func keyOfChange(c *store.Change) string { return c.Key }

// Amend checks locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return each(ctx, s, "Amend", changes, keyOfChange,
		func(o *operation, r *key.Row, c *store.Change) store.Amended { return o.Amend(r, c) })
}

// Downgrade amends locks, and turns exclusive ones into shares.
func (s *Store) Downgrade(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return each(ctx, s, "Downgrade", changes, keyOfChange,
		func(o *operation, r *key.Row, c *store.Change) store.Amended { return o.Downgrade(r, c) })
}

// Adopt makes the last served waiters of cohorts the holders that the store knows.
func (s *Store) Adopt(ctx context.Context, adoptions []store.Adoption) ([]store.Amended, error) {
	return each(ctx, s, "Adopt", adoptions, func(a *store.Adoption) string { return a.Key },
		func(o *operation, r *key.Row, a *store.Adoption) store.Amended { return o.Adopt(r, a) })
}

// Get reads locks.
func (s *Store) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	return each(ctx, s, "Get", keys, func(k *string) string { return *k },
		func(o *operation, r *key.Row, _ *string) store.Lock { return o.Get(r) })
}

// HeldUnder returns the locks of these keys that are held under renewed leases of this instance.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (held store.HeldGrants, err error) {
	_, err = each(ctx, s, "HeldUnder", keys, func(k *string) string { return *k }, func(_ *operation, r *key.Row, _ *string) struct{} {
		held.Grants = append(held.Grants, r.HeldUnder(&s.self)...)
		return struct{}{}
	})
	return held, err
}

// Move moves locks and waiters from one lease of this instance to another. Each row's shard is locked, so a
// reap of either lease comes either before this or sees the changed row.
func (s *Store) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	return each(ctx, s, "Move", moves, func(m *store.Move) string { return m.Key },
		func(o *operation, r *key.Row, m *store.Move) store.ClaimStatus {
			return o.Move(r, *m, from, o.ns.leases.get(to))
		})
}

// Signal sends requests to the present holders of keys.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	return each(ctx, s, "Signal", signals, func(g *store.Signal) string { return g.Key },
		func(o *operation, r *key.Row, g *store.Signal) store.ClaimStatus { return o.Signal(r, *g) })
}

// Signals returns the requests to holders under these leases of this instance.
func (s *Store) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	if err := s.usable(ctx, "Signals"); err != nil {
		return nil, err
	}
	var found []store.Signal
	for _, id := range leases {
		if l := s.ns.leases.get(id); l != nil && l.By() == &s.self {
			found = append(found, l.Signals()...)
		}
	}
	return found, nil
}

// Acknowledge forgets signals to holders of this instance.
func (s *Store) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	if err := s.usable(ctx, "Acknowledge"); err != nil {
		return err
	}
	if len(signals) == 0 {
		return nil
	}
	for _, l := range s.ns.leases.renewedBy(s.id.Instance) {
		l.Acknowledge(signals)
	}
	return nil
}

var errLeaseLost = errors.New("the lease has ended")

// Watch sends events of keys to this instance. It fails if the lease has ended.
func (s *Store) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	if err := s.usable(ctx, "Watch"); err != nil {
		return err
	}
	l := s.ns.leases.get(lease)
	if l == nil || !l.Alive(s.ns.space.now()) {
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	o := s.operation()
	for _, k := range keys {
		sh, r := o.lock(k)
		o.Watch(&r.Row, l)
		sh.unlock(r)
	}
	o.finish()
	if l.Dead() { // a reap may have passed before the watch was added
		s.unwatch(keys, l)
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	return nil
}

// Unwatch ends the watch of keys.
func (s *Store) Unwatch(ctx context.Context, keys []string) error {
	if err := s.usable(ctx, "Unwatch"); err != nil {
		return err
	}
	s.unwatch(keys, nil)
	return nil
}

// unwatch ends the watches of this instance, or with a lease only those under it.
func (s *Store) unwatch(keys []string, under *key.Lease) {
	o := s.operation()
	for _, k := range keys {
		sh, r := o.lock(k)
		o.Unwatch(&r.Row, under)
		sh.unlock(r)
	}
}
