package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// sweepAfter is how long a lease that nobody asked for has been expired before
	// it is buried: long enough not to meddle with who needs its keys now.
	sweepAfter = 10 * time.Second
	// forgetAfter is how long a free key keeps its row: far longer than any
	// statement can take that has drawn a token for it (invariant 2).
	forgetAfter = 24 * time.Hour
	// sweepRows is how many rows one statement touches, sweepRounds how many
	// statements of a kind one sweep sends. The next sweep goes on.
	sweepRows   = 1000
	sweepRounds = 20
	// sweepLock lets one sweeper in at a time: any number that nobody else uses.
	sweepLock = 5_120_947_233_806_114_108
)

// Sweep buries leases that expired a while ago, frees what dead leases left, and
// forgets keys that have been free for a day.
func (s *Store) Sweep(ctx context.Context) error {
	var errs []error
	for _, step := range []func(context.Context, *operation) (int, error){
		sweepLeases, sweepDangling, sweepWaiters, sweepSignals, sweepWatched, sweepFree,
	} {
		for range sweepRounds {
			rows, err := s.sweepStep(ctx, step)
			errs = append(errs, err) // one step's trouble is not the others'
			if err != nil || rows < sweepRows {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// sweepStep is an operation of its own, with a Timeout of its own.
func (s *Store) sweepStep(ctx context.Context, step func(context.Context, *operation) (int, error)) (int, error) {
	ctx, cancel, o, err := s.begin(ctx, "sweep")
	if err != nil {
		return 0, err
	}
	defer cancel()
	return step(ctx, o)
}

func sweepLeases(ctx context.Context, o *operation) (int, error) {
	dead, err := query(ctx, o, sqlSweepLeases, []any{int64(sweepLock), o.sweepAfter, sweepRows}, scanOne[uuid.UUID])
	if err != nil || len(dead) == 0 {
		return 0, err
	}
	return len(dead), o.bury(ctx, dead, false)
}

func sweepDangling(ctx context.Context, o *operation) (int, error) {
	keys, err := query(ctx, o, sqlSweepDangling, []any{int64(sweepLock), sweepRows}, scanHeld)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	again, expired, err := o.handOff(ctx, keys)
	if err != nil {
		return 0, err
	}
	return len(keys), o.finish(ctx, again, expired)
}

func sweepWaiters(ctx context.Context, o *operation) (int, error) {
	gone, err := query(ctx, o, sqlSweepWaiters, []any{int64(sweepLock), sweepRows}, nothing)
	return len(gone), err
}

func sweepSignals(ctx context.Context, o *operation) (int, error) {
	gone, err := query(ctx, o, sqlSweepSignals, []any{int64(sweepLock), sweepRows}, scanOne[int])
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	return gone[0], nil
}

func sweepWatched(ctx context.Context, o *operation) (int, error) {
	keys, err := query(ctx, o, sqlSweepWatched, []any{int64(sweepLock), sweepRows},
		func(rows pgx.Rows, k *keyName) error { return rows.Scan(&k.namespace, &k.key) })
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	return len(keys), o.unmark(ctx, keys)
}

func sweepFree(ctx context.Context, o *operation) (int, error) {
	gone, err := query(ctx, o, sqlSweepFree, []any{int64(sweepLock), o.forgetAfter, sweepRows}, nothing)
	return len(gone), err
}
