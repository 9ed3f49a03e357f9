package postgres

import (
	"context"
	"errors"
	"slices"
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
	ctx, cancel, o, err := s.beginBatch(ctx, "open leases", len(leases))
	if err != nil {
		return err
	}
	defer cancel()
	ids, ttls := make([][16]byte, len(leases)), make([]time.Duration, len(leases))
	for i, l := range leases {
		ids[i], ttls[i] = l.ID, l.TTL
	}
	made, err := query(ctx, o, sqlLeaseOpen,
		[]any{ids, ttls, s.config.Identity.Instance, s.config.Identity.Pod, o.notAfter, string(s.config.Failover)}, scanOne[uuid.UUID])
	if err == nil && len(made) < len(leases) {
		o.doubt() // perhaps the estimate of the database's clock is wrong
		err = o.fail(errPast, false)
	}
	return err
}

// errPast: a lease with this id has expired, or the statement came too late.
var errPast = errors.New("a lease with this id has expired, or it was opened too late")

// Renew extends living leases by one statement on the renewals' connection, and then each locked one by itself.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if len(leases) == 0 {
		return store.Renewal{}, nil
	}
	ctx, cancel, o, err := s.beginRenewal(ctx, "renew", len(leases))
	if err != nil {
		return store.Renewal{}, err
	}
	defer cancel()
	r := renewal{operation: o, left: leases}
	err = r.run(ctx)
	if err == nil {
		s.watches.drop(r.left)
	}
	return r.Renewal, err
}

type renewal struct {
	*operation
	store.Renewal
	left []store.LeaseID // not extended yet
}

func (r *renewal) run(ctx context.Context) error {
	err := r.renew(ctx)
	if err != nil || len(r.left) == 0 {
		return err
	}
	// A server that was just promoted can miss the last renewal. No statement has compared its history yet,
	// because no lease seemed alive.
	began, err := r.beginHistory(ctx)
	if err != nil || !began {
		return err
	}
	return r.renew(ctx)
}

// renew extends the leases in left, first those whose rows are not locked. It never waits for a lease row
// while it locks another, because a hand-off locks leases in any order.
func (r *renewal) renew(ctx context.Context) error {
	if err := r.extend(ctx, sqlLeaseRenew, uuids(r.left)); err != nil || len(r.left) == 0 {
		return err
	}
	locked, err := query(ctx, r.operation, sqlLeaseLiving, []any{uuids(r.left)}, scanOne[uuid.UUID])
	if err != nil {
		return err
	}
	// A lease whose row stays locked is an error, because it is not known to be dead.
	var failed error
	for _, lease := range locked {
		err := r.extend(ctx, sqlLeaseRenewOne, [][16]byte{lease})
		failed = errors.Join(failed, err)
		if err != nil && !isRowLocked(err) {
			break
		}
	}
	if isRowLocked(failed) {
		r.warnLocked()
	}
	return failed
}

func (r *renewal) extend(ctx context.Context, sql statement, leases [][16]byte) error {
	type extended struct {
		lease     store.LeaseID
		now       time.Time
		signalled bool
		misfit    bool // the schema is too old for this package, or too new
		history   store.History
		reconcile bool
	}
	found, err := query(ctx, r.operation, sql, []any{leases, string(r.config.Failover)}, func(rows pgx.Rows, e *extended) error {
		return rows.Scan(&e.lease, &e.now, &e.signalled, &e.misfit, &e.history, &e.reconcile)
	})
	if err != nil || len(found) == 0 {
		return err
	}
	r.unflushed.flushed(r.sent)
	kept := make(map[store.LeaseID]bool, len(found))
	for _, e := range found {
		r.Renewed, r.Signals = append(r.Renewed, e.lease), r.Signals || e.signalled
		kept[e.lease] = true
		r.History = e.history
		if e.reconcile {
			r.Reconcile = append(r.Reconcile, e.lease)
		}
	}
	r.clock.heard(found[len(found)-1].now)
	if found[0].misfit || len(r.Reconcile) > 0 { // another schema, or another history
		r.doubt()
	}
	r.left = slices.DeleteFunc(slices.Clone(r.left), func(id store.LeaseID) bool { return kept[id] })
	return nil
}
