package cas

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder returns the locks of these keys that are held under living renewed leases of this instance.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (held store.HeldGrants, err error) {
	const op = "HeldUnder"
	if err := s.usable(ctx, op); err != nil {
		return held, err
	}
	unread := make([]*job, 0, len(keys))
	for _, name := range keys {
		unread = append(unread, &job{key: s.full(name), name: name})
	}
	for reads := 0; len(unread) > 0; reads++ {
		if reads == maxReads {
			return held, known(op, errUnread)
		}
		if err := s.load(ctx, unread); err != nil {
			return held, known(op, err)
		}
		loaded := unread
		unread = nil
		for _, j := range loaded {
			if !j.proved() {
				unread = append(unread, j)
				continue
			}
			t, err := s.begin(j)
			if err != nil {
				return held, known(op, err)
			}
			held.History = j.rec.History
			for _, g := range t.row.HeldUnder(s.me) {
				if t.lease(g.Lease).Alive(t.op.Now) {
					held.Grants = append(held.Grants, g)
				}
			}
		}
	}
	return held, nil
}

// Move moves locks and waits from one lease of this instance to another.
func (s *Store) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	statuses := make([]store.ClaimStatus, len(moves))
	jobs := s.jobs(len(moves), func(i int) string { return moves[i].Key }, func(i int, j *job) {
		m, status := moves[i], &statuses[i]
		j.leases = []store.LeaseID{from, to}
		j.add(item{do: func(t *turn) bool {
			_, known := t.own(from) // it must still live when the lock leaves it
			next, both := t.own(to)
			if known && both {
				*status = t.op.Move(t.row, m, from, next)
			}
			return known && both
		}})
	})
	return statuses, s.run(ctx, "Move", jobs)
}
