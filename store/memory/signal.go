package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Signal sends requests to the present holders of keys.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	if err := s.usable(ctx, "Signal"); err != nil {
		return nil, err
	}
	o := s.operation()
	statuses := make([]store.ClaimStatus, len(signals))
	for i, g := range signals {
		sh, r := o.lock(g.Key)
		statuses[i] = o.Signal(&r.Row, g)
		sh.unlock(r)
	}
	o.finish()
	return statuses, nil
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
