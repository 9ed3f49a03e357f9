package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// HeldUnder reads which keys are held under leases of this instance. It uses the renewals' connection,
// because after a failover no lease is renewed before, and all sidecars call it at once. Several views use the main connections for it: on a single one,
// the reads of all would come before the next renewal.
func (s *Store) HeldUnder(ctx context.Context, keys []string) (found store.HeldGrants, err error) {
	begin := s.beginRenewal
	if s.listener.views() > 1 {
		begin = s.beginBatch
	}
	ctx, cancel, o, err := begin(ctx, "held under", len(keys))
	if err != nil {
		return found, err
	}
	defer cancel()
	type row struct {
		history uuid.UUID
		lease   zeronull.UUID
		key     zeronull.Text
		token   zeronull.Int8
	}
	id := s.id
	rows, err := query(ctx, o, sqlHeldUnder, []any{id.Namespace, id.Instance, keys}, func(rows pgx.Rows, r *row) error {
		return rows.Scan(&r.history, &r.lease, &r.key, &r.token)
	})
	for _, r := range rows {
		found.History = r.history
		if r.key != "" {
			found.Grants = append(found.Grants, store.HeldGrant{Key: string(r.key), Token: int64(r.token), Lease: store.LeaseID(r.lease)})
		}
	}
	return found, err
}

// Move moves locks and waiters from one lease of this instance to another.
func (s *Store) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	if len(moves) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "move", len(moves))
	if err != nil {
		return nil, err
	}
	defer cancel()
	id := s.id
	states := make([]store.ClaimStatus, len(moves))
	name := func(i int) keyName { return keyName{id.Namespace, moves[i].Key} }
	locked, err := o.aroundLocked(ctx, items(len(moves)), name, func(ctx context.Context, which []int) error {
		keys, tokens, attempts := make([]string, len(which)), make([]int64, len(which)), make([][16]byte, len(which))
		for n, i := range which {
			keys[n], tokens[n], attempts[n] = moves[i].Key, moves[i].Token, moves[i].ID
		}
		type moved struct {
			ord   int
			state string
		}
		found, err := query(ctx, o, sqlMove,
			[]any{id.Namespace, o.notAfter, id.Instance, [16]byte(from), [16]byte(to), keys, tokens, attempts},
			func(rows pgx.Rows, m *moved) error { return rows.Scan(&m.ord, &m.state) })
		for _, m := range found {
			states[which[m.ord-1]] = claimStatuses[m.state]
		}
		return err
	})
	for _, i := range locked {
		states[i] = store.ClaimRowLocked
	}
	return states, err
}
