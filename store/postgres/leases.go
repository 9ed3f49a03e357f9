package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/gather"
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
		[]any{ids, ttls, s.id.Instance, s.id.Pod, o.notAfter, string(s.config.Failover)}, scanOne[uuid.UUID])
	if err == nil && len(made) < len(leases) {
		o.doubt() // perhaps the estimate of the database's clock is wrong
		err = o.fail(errPast, false)
	}
	return err
}

// errPast: a lease with this id has expired, or the statement came too late.
var errPast = errors.New("a lease with this id has expired, or it was opened too late")

// Renew extends living leases by one statement on the renewals' connection, which it shares with other views, and then each locked one by
// itself.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if len(leases) == 0 {
		return store.Renewal{}, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "renew")
	if err != nil {
		return store.Renewal{}, err
	}
	defer cancel()
	r := renewal{operation: o, main: o.pool, left: leases}
	o.pool = o.renewalPool
	err = r.run(ctx)
	if err == nil {
		s.watches.drop(r.left)
	}
	return r.Renewal, err
}

// renewal is one Renew of a view.
type renewal struct {
	*operation
	store.Renewal
	main *pgxpool.Pool
	left []store.LeaseID // not extended yet
}

func (r *renewal) run(ctx context.Context) error {
	err := r.extendLeft(ctx)
	if err != nil || len(r.left) == 0 {
		return err
	}
	// A server that was just promoted can miss the last renewal. No statement has compared its history yet,
	// because no lease seemed alive. A new history extends all leases, and another session may have begun it since the renewal.
	if err := r.beginHistory(ctx); err != nil {
		return err
	}
	return r.extendLeft(ctx)
}

// extendLeft extends the leases in left, first those whose rows are not locked. It never waits for a lease row
// while it locks another, because a hand-off locks leases in any order. Nor does it wait for one in the statement that it shares with other
// views.
func (r *renewal) extendLeft(ctx context.Context) error {
	found, err := r.together.lane.Ask(ctx, uuids(r.left))
	if err != nil {
		return r.notRenewed(err)
	}
	if r.note(found); len(r.left) == 0 {
		return nil
	}
	locked, err := query(ctx, r.operation, sqlLeaseLiving, []any{uuids(r.left)}, scanOne[uuid.UUID])
	if err != nil {
		return err
	}
	// A lease whose row stays locked is an error, because it is not known to be dead.
	apart := r.apart()
	var failed error
	for _, lease := range locked {
		found, err := apart.extend(ctx, sqlLeaseRenewOne, [][16]byte{lease})
		failed = errors.Join(failed, err)
		if err != nil && !isRowLocked(err) {
			break
		}
		r.note(found)
	}
	if isRowLocked(failed) {
		r.warnLocked()
	}
	return failed
}

// apart is the operation that waits for locked rows. If there are other views, it does not have the connection for renewals, where theirs would wait, too. It
// takes turns with the calls of all views, also with those of its own one.
func (r *renewal) apart() *operation {
	if r.listener.views() < 2 {
		return r.operation
	}
	return &operation{Store: r.Store, name: r.name, pool: r.main, renewalPool: r.operation.renewalPool, forLocked: true, notAfter: r.notAfter}
}

// notRenewed is the error of a shared statement, or of a view that has not waited for its end.
func (r *renewal) notRenewed(err error) error {
	left, ok := errors.AsType[*gather.LeftError](err)
	if !ok {
		return err
	}
	if left.Begun && !errors.Is(left, context.Canceled) {
		r.doubt()
	}
	return r.fail(left, left.Begun)
}

// note notes which of this view's leases were extended.
func (r *renewal) note(found map[store.LeaseID]extended) {
	r.left = slices.DeleteFunc(slices.Clone(r.left), func(id store.LeaseID) bool {
		e, ok := found[id]
		if !ok {
			return false
		}
		r.Renewed, r.Signals, r.History = append(r.Renewed, id), r.Signals || e.signalled, e.history
		if e.reconcile {
			r.Reconcile = append(r.Reconcile, id)
		}
		return true
	})
}

// renewalsTogether are the renewals of all views of a space, which share a statement.
type renewalsTogether struct {
	s    *Space
	lane *gather.Lane[[16]byte, map[store.LeaseID]extended]
	// pause: see renewTogether.
	pause time.Duration
}

// renewTogether is for how long the renewal of one of several views waits for those of the others, which are due at the same time. A lone view's
// does not wait.
const renewTogether = 2 * time.Millisecond

func newRenewalsTogether(s *Space) *renewalsTogether {
	r := &renewalsTogether{s: s, pause: renewTogether}
	r.lane = gather.New(func() time.Duration {
		if s.listener.views() < 2 {
			return 0
		}
		return r.pause
	}, r.extendAll)
	return r
}

// extendAll extends leases of several views.
func (r *renewalsTogether) extendAll(ctx context.Context, leases [][16]byte) (map[store.LeaseID]extended, error) {
	ctx, cancel, o, err := r.s.own.beginRenewal(ctx, "renew", len(leases))
	if err != nil {
		return nil, err
	}
	defer cancel()
	return o.extend(ctx, sqlLeaseRenew, leases)
}

// extended is a lease that was extended.
type extended struct {
	lease     store.LeaseID
	now       time.Time
	signalled bool
	misfit    bool // the schema is too old for this package, or too new
	history   store.History
	reconcile bool
}

// extend runs the statement.
func (o *operation) extend(ctx context.Context, sql statement, leases [][16]byte) (map[store.LeaseID]extended, error) {
	rows, err := query(ctx, o, sql, []any{leases, string(o.config.Failover)}, func(rows pgx.Rows, e *extended) error {
		return rows.Scan(&e.lease, &e.now, &e.signalled, &e.misfit, &e.history, &e.reconcile)
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	o.unflushed.flushed(o.sent)
	o.clock.heard(rows[len(rows)-1].now)
	found, old := make(map[store.LeaseID]extended, len(rows)), rows[0].misfit // another schema, or another history
	for _, e := range rows {
		found[e.lease] = e
		old = old || e.reconcile
	}
	if old {
		o.doubt()
	}
	return found, nil
}
