package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
		[]any{ids, ttls, s.config.Identity.Instance, s.config.Identity.Pod, o.notAfter}, scanOne[uuid.UUID])
	if err == nil && len(made) < len(leases) {
		o.doubt() // too late by a clock that may be known wrongly
		err = o.fail(errPast, false)
	}
	return err
}

// errPast: a lease that was to be opened exists, and is past its expiry; or the
// statement came too late.
var errPast = errors.New("a lease with this id has expired, or it was opened too late")

// Renew extends leases that are alive, by one statement on a connection of its own.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	kept, err := s.renewAll(ctx, leases)
	return store.Renewal{Kept: kept}, err
}

func (s *Store) renewAll(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginRenewal(ctx, "renew")
	if err != nil {
		return nil, err
	}
	defer cancel()
	kept, err := o.renew(ctx, leases)
	if isStuck(err) && len(leases) > 1 {
		return o.renewEach(ctx, leases)
	}
	if err != nil || len(kept) == len(leases) {
		return kept, err
	}
	// A server that was just promoted may not know of the last renewal.
	began, err := o.beginEpoch(ctx)
	if err != nil || !began {
		return kept, err
	}
	return o.renew(ctx, leases)
}

// renewEach renews one lease after the other, around those that somebody keeps
// locked: they are the error.
func (o *operation) renewEach(ctx context.Context, leases []store.LeaseID) (kept []store.LeaseID, err error) {
	o.noteStuck()
	for _, lease := range leases {
		one, failed := o.renew(ctx, []store.LeaseID{lease})
		kept, err = append(kept, one...), errors.Join(err, failed)
		if failed != nil && !isStuck(failed) {
			break
		}
	}
	return kept, err
}

func (o *operation) renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, error) {
	var now time.Time
	kept, err := query(ctx, o, sqlLeaseRenew, []any{uuids(leases)}, func(rows pgx.Rows, id *store.LeaseID) error {
		return rows.Scan(id, &now)
	})
	if err == nil && len(kept) > 0 {
		o.clock.heard(now)
	}
	return kept, err
}
