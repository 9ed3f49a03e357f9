package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder returns what is held under leases of this instance under these keys. Nothing is ever
// forgotten here, so nobody needs to ask.
func (s *Store) HeldUnder(ctx context.Context, leases []store.LeaseID, keys []string) (store.Count, error) {
	part, err := s.HeldUnderAfter(ctx, leases, "")
	asked := make(map[string]bool, len(keys))
	for _, key := range keys {
		asked[key] = true
	}
	return store.Count{Grants: slices.DeleteFunc(part.Grants, func(r store.HeldGrant) bool { return !asked[r.Key] })}, err
}

// HeldUnderAfter returns all that is held under leases of this instance: the first part is the last.
func (s *Store) HeldUnderAfter(ctx context.Context, leases []store.LeaseID, after string) (store.Part, error) {
	if err := s.usable(ctx, "HeldUnderAfter"); err != nil {
		return store.Part{}, err
	}
	part := store.Part{Next: after, Last: true}
	for i := range s.ns.shards {
		part.Grants = append(part.Grants, s.ns.shards[i].heldUnder(s, leases)...)
	}
	return part, nil
}

func (sh *shard) heldUnder(by *Store, leases []store.LeaseID) (found []store.HeldGrant) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	rides := func(l *lease) bool { return l != nil && l.by == by && slices.Contains(leases, l.id) }
	for _, r := range sh.rows {
		if rides(r.lease) && !r.released && r.grant != (store.AttemptID{}) {
			found = append(found, store.HeldGrant{
				Attempt: store.Attempt{Key: r.key, ID: r.grant}, Lease: r.lease.id, Token: r.token,
			})
		}
		for _, w := range r.queue.line {
			if rides(w.lease) {
				found = append(found, store.HeldGrant{Attempt: store.Attempt{Key: r.key, ID: w.grant}, Lease: w.lease.id, Waiting: true})
			}
		}
	}
	return found
}

// Reconciled has nothing to note.
func (s *Store) Reconciled(ctx context.Context, _ []store.LeaseID, _ store.History) error {
	return s.usable(ctx, "Reconciled")
}
