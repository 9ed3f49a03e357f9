package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// Amend checks locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.amend(ctx, sqlAmend, changes, nil, nil)
}

// Downgrade amends locks, and makes exclusive ones shares. Then it hands shares to waiters, and reads the locks again.
func (s *Store) Downgrade(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.amend(ctx, sqlDowngrade, changes, nil, func(ctx context.Context, o *operation, amended []store.Amended) error {
		var which []int
		var keys []string
		checks := make([]store.Change, len(changes))
		for i, c := range changes {
			if amended[i].Status == store.Holds {
				which, keys = append(which, i), append(keys, c.Key)
				checks[i] = store.Change{Key: c.Key, Token: c.Token, Lease: c.Lease}
			}
		}
		if len(which) == 0 {
			return nil
		}
		o.partly = true
		if err := o.letIn(ctx, keys); err != nil {
			return err
		}
		return o.amend(ctx, sqlAmend, checks, which, nil, amended)
	})
}

// Adopt makes the last served waiters of cohorts the holders that the rows know, and amends their locks.
func (s *Store) Adopt(ctx context.Context, adoptions []store.Adoption) ([]store.Amended, error) {
	changes := make([]store.Change, len(adoptions))
	for i := range adoptions {
		changes[i] = adoptions[i].Change
	}
	return s.amend(ctx, sqlAdopt, changes, func(which []int) []any {
		served, sessions, owners := make([]string, len(which)), make([]string, len(which)), make([]string, len(which))
		acquired, traceparents := make([]time.Time, len(which)), make([]string, len(which))
		for n, i := range which {
			a := &adoptions[i]
			served[n], sessions[n], owners[n] = textOfServed(a.Served), a.Session, a.Owner
			acquired[n], traceparents[n] = a.AcquiredAt, a.Traceparent
		}
		return []any{served, sessions, owners, acquired, traceparents}
	}, nil)
}

// amend runs a statement of queries/amend.sql for all changes, and then, if set, with the same operation. more returns the further
// arguments of the statement for some changes.
func (s *Store) amend(
	ctx context.Context, sql statement, changes []store.Change, more func(which []int) []any,
	then func(context.Context, *operation, []store.Amended) error,
) ([]store.Amended, error) {
	if len(changes) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, sql.name, len(changes))
	if err != nil {
		return nil, err
	}
	defer cancel()
	amended := make([]store.Amended, len(changes))
	name := func(i int) keyName { return keyName{s.id.Namespace, changes[i].Key} }
	locked, err := o.aroundLocked(ctx, items(len(changes)), name, func(ctx context.Context, which []int) error {
		return o.amend(ctx, sql, changes, which, more, amended)
	})
	for _, i := range locked {
		amended[i].Status = store.ClaimRowLocked
	}
	if err == nil && then != nil {
		err = then(ctx, o, amended)
	}
	if err != nil {
		return nil, err
	}
	return amended, nil
}

// amendedRow is a row of the functions amend, downgrade and adopt.
type amendedRow struct {
	lockColumns
	ord   int
	state string
	hints hints         // the first waiter for a lock whose remaining time was set
	ended zeronull.Int8 // the token of the holder before an adopted one, if the key has watchers
}

func (o *operation) amend(
	ctx context.Context, sql statement, changes []store.Change, which []int, more func(which []int) []any, amended []store.Amended,
) error {
	namespace := o.id.Namespace
	keys, tokens, leases := make([]string, len(which)), make([]int64, len(which)), make([][16]byte, len(which))
	ttls, sets, datas := make([]time.Duration, len(which)), make([]bool, len(which)), make([]*string, len(which))
	for n, i := range which {
		c := &changes[i]
		keys[n], tokens[n], leases[n] = c.Key, c.Token, c.Lease
		ttls[n], sets[n], datas[n] = c.TTL, c.SetData, textOf(c.Data)
	}
	args := []any{namespace, o.notAfter, o.id.Instance, keys, tokens, leases, ttls, sets, datas}
	if more != nil {
		args = append(args, more(which)...)
	}
	found, err := query(ctx, o, sql, args, func(rows pgx.Rows, a *amendedRow) error {
		return rows.Scan(a.with(&a.ord, &a.state, &a.hints.attempts, &a.hints.instances, &a.ended)...)
	})
	if err != nil {
		return err
	}
	if len(found) != len(which) {
		return o.fail(errShort, true)
	}
	for n := range found {
		a := &found[n]
		i := which[a.ord-1]
		amended[i].Status = claimStatuses[a.state]
		if amended[i].Status == store.Holds {
			amended[i].Lock = a.asHeld(changes[i].Key)
		}
		o.hintAll(namespace, a.hints) // the lock may end earlier than they expect
		if a.ended != 0 {
			k := keyName{namespace, changes[i].Key}
			o.tellEnded(k, a.ended, &store.Event{Kind: store.EventReleased})
			o.tellAcquired(k, a.token)
		}
	}
	return nil
}
