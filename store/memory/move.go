package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder returns the locks of these keys that are held under renewed leases of this instance.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (held store.HeldGrants, err error) {
	if err := s.usable(ctx, "HeldUnder"); err != nil {
		return held, err
	}
	for _, key := range keys {
		sh := s.ns.shard(key)
		sh.mu.Lock()
		if r := sh.rows[key]; r != nil {
			held.Grants = append(held.Grants, r.heldUnderRenewed(s)...)
		}
		sh.mu.Unlock()
	}
	return held, nil
}

// Move moves locks and waiters from one lease of this instance to another.
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

// move moves a lock or waiter of this row, which may be nil. The shard is locked, so a reap of either lease
// comes either before this or sees the changed row.
func (s *Store) move(r *row, from store.LeaseID, to *lease, m store.Move) store.ClaimStatus {
	at := s.ns.space.now()
	if to == nil || !to.alive(at) {
		return store.Expired
	}
	if r == nil {
		return store.UnknownToken
	}
	var under **lease
	var held *holder
	if w := r.queue.find(m.ID); w != nil {
		under = &w.lease
	} else if k := r.skipped[m.ID]; k != nil {
		under = &k.lease
	} else {
		c := store.Claim{Key: m.Key, Token: r.tokenOf(m), Lease: to.id}
		h, status := s.standing(r, &c, at)
		if status != store.Holds {
			return status
		}
		under, held = &h.lease, h
	}
	switch now := *under; {
	case !now.alive(at):
		return store.Expired
	case now == to:
	case now.id != from:
		return store.OtherSession
	default:
		*under = to
		if held != nil {
			now.moveSignals(r.key, held.token, to)
		}
	}
	return store.Holds
}

// tokenOf returns the token under which the row knows a lock.
func (r *row) tokenOf(m store.Move) int64 {
	if m.ID != (store.AttemptID{}) {
		if h := r.attempt(m.ID); h != nil {
			return h.token
		}
	}
	if len(r.shares) == 0 && store.OfGrant(r.token, m.Token) {
		return r.token
	}
	return m.Token
}

func (r *row) heldUnderRenewed(s *Store) (grants []store.HeldGrant) {
	for h := range r.holders() {
		if !h.released && h.lease.renewed && h.lease.by == s && !h.lease.dead() {
			grants = append(grants, store.HeldGrant{Key: r.key, Token: h.token, Lease: h.lease.id})
		}
	}
	return grants
}

func (l *lease) moveSignals(key string, token int64, to *lease) {
	var of []store.Signal
	l.mu.Lock()
	l.signals = slices.DeleteFunc(l.signals, func(g store.Signal) bool {
		its := g.Key == key && g.Token == token
		if its {
			of = append(of, g)
		}
		return its
	})
	l.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	to.signals = append(to.signals, of...)
}
