package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// reconcileLock lets one sidecar at a time page through the locks: any number that nobody else
// uses.
const reconcileLock = 5_120_947_233_806_114_109

// heldUnderRow is a row of the statement held_under, with what held_under_after has besides.
type heldUnderRow struct {
	history      uuid.UUID
	lease, grant zeronull.UUID
	key          zeronull.Text
	token        zeronull.Int8
	waits        *bool

	turn bool
	next *string
}

func (r *heldUnderRow) scan(rows pgx.Rows, more ...any) error {
	return rows.Scan(append([]any{&r.history, &r.lease, &r.key, &r.token, &r.grant, &r.waits}, more...)...)
}

// countOf is what rows say. If nothing is held, one row says in which history.
func countOf(rows []heldUnderRow) (count store.Count) {
	for i := range rows {
		r := &rows[i]
		count.History = r.history
		if r.lease == (zeronull.UUID{}) {
			continue
		}
		count.Grants = append(count.Grants, store.HeldGrant{
			Lease: store.LeaseID(r.lease), Attempt: store.Attempt{Key: string(r.key), ID: store.AttemptID(r.grant)},
			Token: int64(r.token), Waiting: r.waits != nil && *r.waits,
		})
	}
	return count
}

// HeldUnder reads which of some keys are held under leases. It has the renewals' connection: after a
// failover no lease is renewed without it, and all sidecars come at once.
func (s *Store) HeldUnder(ctx context.Context, leases []store.LeaseID, keys []string) (store.Count, error) {
	if len(leases) == 0 || len(keys) == 0 {
		return store.Count{}, nil
	}
	ctx, cancel, o, err := s.beginRenewal(ctx, "reconcile keys", len(keys))
	if err != nil {
		return store.Count{}, err
	}
	defer cancel()
	rows, err := query(ctx, o, sqlHeldUnder, []any{s.config.Identity.Namespace, keys, uuids(leases)},
		func(rows pgx.Rows, r *heldUnderRow) error { return r.scan(rows) })
	return countOf(rows), err
}

// HeldUnderAfter reads a page of the locks. Nobody waits for it.
func (s *Store) HeldUnderAfter(ctx context.Context, leases []store.LeaseID, after string) (store.Part, error) {
	part := store.Part{Next: after}
	if len(leases) == 0 {
		part.Last = true
		return part, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "reconcile page", len(leases))
	if err != nil {
		return part, err
	}
	defer cancel()
	rows, err := query(ctx, o, sqlHeldUnderAfter, []any{s.config.Identity.Namespace, after, uuids(leases), int64(reconcileLock)},
		func(rows pgx.Rows, r *heldUnderRow) error { return r.scan(rows, &r.turn, &r.next) })
	if err != nil || len(rows) == 0 {
		return part, err
	}
	part.Count = countOf(rows)
	switch first := rows[0]; {
	case !first.turn:
	case first.next == nil:
		part.Last = true
	default:
		part.Next = *first.next
	}
	return part, nil
}

// Reconciled notes that the locks under leases are reconciled.
func (s *Store) Reconciled(ctx context.Context, leases []store.LeaseID, history store.History) error {
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.beginRenewal(ctx, "reconcile end", len(leases))
	if err != nil {
		return err
	}
	defer cancel()
	return execute(ctx, o, sqlReconciled, uuids(leases), [16]byte(history))
}
