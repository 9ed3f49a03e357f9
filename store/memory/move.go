package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder returns which of these keys' locks are held under renewed leases of this instance.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (held store.HeldGrants, err error) {
	if err := s.usable(ctx, "HeldUnder"); err != nil {
		return held, err
	}
	for _, key := range keys {
		sh := s.ns.shard(key)
		sh.mu.Lock()
		if r := sh.rows[key]; r != nil && !r.released && r.lease != nil && r.lease.renewed && r.lease.by == s && !r.lease.dead() {
			held.Grants = append(held.Grants, store.HeldGrant{Key: key, Token: r.token, Lease: r.lease.id})
		}
		sh.mu.Unlock()
	}
	return held, nil
}

// Move puts locks and waiters under a lease of this instance under another one.
func (s *Store) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	if err := s.usable(ctx, "Move"); err != nil {
		return nil, err
	}
	states := make([]store.ClaimStatus, len(moves))
	for i, m := range moves {
		sh := s.ns.shard(m.Key)
		sh.mu.Lock()
		states[i] = s.move(sh.rows[m.Key], from, s.ns.leases.get(to), m)
		sh.mu.Unlock()
	}
	return states, nil
}

// move moves what is of this row, which may be nil. Its shard is locked, so a reap of either
// lease comes before, or sees the row as it is then.
func (s *Store) move(r *row, from store.LeaseID, to *lease, m store.Move) store.ClaimStatus {
	at := s.ns.space.now()
	if to == nil || !to.alive(at) {
		return store.Expired
	}
	if r == nil {
		return store.UnknownToken
	}
	under := &r.lease
	if w := r.queue.find(m.ID); w != nil {
		under = &w.lease
	} else if k := r.skipped[m.ID]; k != nil {
		under = &k.lease
	} else {
		c := store.Claim{Key: m.Key, Token: m.Token, Lease: to.id}
		if r.grant == m.ID || store.OfGrant(r.token, m.Token) {
			c.Token = r.token
		}
		if status := s.standing(r, &c, at); status != store.Holds {
			return status
		}
	}
	switch now := *under; {
	case !now.alive(at):
		return store.Expired
	case now == to:
	case now.id != from:
		return store.OtherSession
	default:
		*under = to
		if under == &r.lease {
			now.moveSignals(r.key, to)
		}
	}
	return store.Holds
}

func (l *lease) moveSignals(key string, to *lease) {
	var of []store.Signal
	l.mu.Lock()
	l.signals = slices.DeleteFunc(l.signals, func(g store.Signal) bool {
		if g.Key == key {
			of = append(of, g)
		}
		return g.Key == key
	})
	l.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	to.signals = append(to.signals, of...)
}
