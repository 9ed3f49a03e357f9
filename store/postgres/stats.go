package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

// Stats counts the contents of the database, by one statement that reads every lock. All callers together
// use one main connection, because acquires need the others.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	ctx, cancel, o, err := s.begin(ctx, "stats")
	if err != nil {
		return store.Stats{}, err
	}
	defer cancel()
	select {
	case s.counting <- struct{}{}:
		defer func() { <-s.counting }()
	case <-ctx.Done():
		return store.Stats{}, o.fail(ctx.Err(), false)
	}
	type line struct {
		store.Stat
		byPod bool
	}
	lines, err := query(ctx, o, sqlStats, []any{store.StatLines, store.Others}, func(rows pgx.Rows, l *line) error {
		return rows.Scan(&l.byPod, &l.Namespace, &l.Name, &l.Held, &l.Shared, &l.Expired, &l.Waiting, &l.Average, &l.Longest)
	})
	if err != nil {
		return store.Stats{}, err
	}
	var found store.Stats
	for _, l := range lines {
		if l.byPod {
			found.Pods = append(found.Pods, l.Stat)
		} else {
			found.Types = append(found.Types, l.Stat)
		}
	}
	return found, nil
}

// Elect makes this instance the one that reads Stats for all, unless another one is elected.
func (s *Store) Elect(ctx context.Context, term time.Duration) (store.Election, error) {
	ctx, cancel, o, err := s.begin(ctx, "elect")
	if err != nil {
		return store.Election{}, err
	}
	defer cancel()
	found, err := query(ctx, o, sqlElect, []any{s.id.Instance, max(0, term)},
		func(rows pgx.Rows, e *store.Election) error { return rows.Scan(&e.Elected, &e.Left) })
	switch {
	case isRowLocked(err):
		o.warnLocked()
		return store.Election{}, o.fail(errRowLocked, false)
	case err != nil:
		return store.Election{}, err
	case len(found) != 1:
		return store.Election{}, o.fail(errShort, true)
	}
	return found[0], nil
}
