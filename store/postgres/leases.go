package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// OpenLeases makes renewed leases.
func (s *Store) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.begin(ctx, "open leases")
	if err != nil {
		return err
	}
	defer cancel()
	ids, ttls := make([][16]byte, len(leases)), make([]time.Duration, len(leases))
	for i, l := range leases {
		ids[i], ttls[i] = l.ID, l.TTL
	}
	made, err := query(ctx, o, sqlLeaseOpen,
		[]any{ids, ttls, s.config.Identity.Instance, s.config.Identity.Pod}, scanOne[uuid.UUID])
	if err == nil && len(made) < len(leases) {
		err = o.fail(errPast, false)
	}
	return err
}

// errPast: a lease that was to be opened exists, and is past its expiry.
var errPast = errors.New("a lease with this id has expired")

// Renew extends leases that are alive, by one statement on a connection of its own.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginRenewal(ctx, "renew")
	if err != nil {
		return nil, err
	}
	defer cancel()
	return query(ctx, o, sqlLeaseRenew, []any{uuids(leases)}, scanOne[store.LeaseID])
}
