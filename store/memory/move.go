package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder returns the locks of these keys that are held under renewed leases of this instance.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (held store.HeldGrants, err error) {
	if err := s.usable(ctx, "HeldUnder"); err != nil {
		return held, err
	}
	o := s.operation()
	for _, k := range keys {
		sh, r := o.lock(k)
		held.Grants = append(held.Grants, r.HeldUnder(&s.self)...)
		sh.unlock(r)
	}
	return held, nil
}

// Move moves locks and waiters from one lease of this instance to another. Each row's shard is locked, so a
// reap of either lease comes either before this or sees the changed row.
func (s *Store) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	if err := s.usable(ctx, "Move"); err != nil {
		return nil, err
	}
	o := s.operation()
	statuses := make([]store.ClaimStatus, len(moves))
	for i, m := range moves {
		sh, r := o.lock(m.Key)
		statuses[i] = o.Move(&r.Row, m, from, s.ns.leases.get(to))
		sh.unlock(r)
	}
	return statuses, nil
}
