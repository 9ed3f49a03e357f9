package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// sweepAfter is for how long a lease must be expired before the sweep reaps it. Acquires do not wait so long.
	sweepAfter = 10 * time.Second
	// forgetAfter is how long a free key keeps its row: at least forgetTimeouts timeouts, because a statement
	// that has read the clock for the key's token must have ended (promise 3).
	forgetAfter    = time.Hour
	forgetTimeouts = 10
	// sweepLap is the least time from the start of one lap to the next. It is a little shorter than the 9
	// minutes after which a sidecar sweeps again. sweepBudget limits how long a step searches with rows
	// locked. It is far shorter than the time that others wait for a row.
	sweepLap    = 8 * time.Minute
	sweepBudget = 10 * time.Millisecond
	// sweepRows limits the rows of a table that sweep_left deletes in one statement.
	sweepRows = 1000
)

// Sweep continues the sweep that all sidecars share, in short steps to the end of the lap. It reaps leases that
// expired a while ago, frees locks of dead leases, and deletes rows of keys that have been free for ForgetAfter. If
// no step is due, it returns at once. First it checks the server's settings, which can change. Of several views, one sweeps in a lap's time.
func (s *Store) Sweep(ctx context.Context) error {
	if s.listener.views() > 1 && !s.swept.due(s.sweepLap) {
		return nil
	}
	failed := s.sweepPart(ctx, func(ctx context.Context, o *operation) error { return s.inspect(ctx, o.pool) })
	if failed != nil {
		s.doubt()
	}
	for {
		step, err := s.sweepStep(ctx)
		if err != nil {
			return err
		}
		if !step.due {
			return failed
		}
		if err := s.sweepFound(ctx, step); err != nil {
			failed = err // the next lap finds the rows again
		}
		if step.ends {
			return failed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step.pause):
		}
	}
}

// sweepStep is the row of the statement sweep_step.
type sweepStep struct {
	due, begins, ends bool
	pause             time.Duration
	dead              []uuid.UUID
	dangling          []ending
	unwatched         []keyName
}

func (s *sweepStep) scan(rows pgx.Rows) error {
	var heldIn, keys, watchedIn, watched []string
	var leases []uuid.UUID
	err := rows.Scan(&s.due, &s.begins, &s.ends, &s.pause, &s.dead, &heldIn, &keys, &leases, &watchedIn, &watched)
	for i, lease := range leases {
		s.dangling = append(s.dangling, ending{namespace: heldIn[i], key: keys[i], lease: lease})
	}
	for i, key := range watched {
		s.unwatched = append(s.unwatched, keyName{watchedIn[i], key})
	}
	return err
}

// sweepLeft is the row of the statement sweep_left: the greatest number of rows that it deleted from a
// table, and the shared keys whose waiters it deleted.
type sweepLeft struct {
	most             int
	namespaces, keys []string
}

func (s *Store) sweepStep(ctx context.Context) (step sweepStep, err error) {
	err = s.sweepPart(ctx, func(ctx context.Context, o *operation) error {
		steps, err := query(ctx, o, sqlSweepStep, []any{o.sweepAfter, o.forgetAfter, o.sweepLap, o.sweepBudget},
			func(rows pgx.Rows, step *sweepStep) error { return step.scan(rows) })
		if err == nil {
			step = steps[0]
		}
		return err
	})
	return step, err
}

// sweepPart runs a part of a sweep as an operation with its own Timeout.
func (s *Store) sweepPart(ctx context.Context, do func(context.Context, *operation) error) error {
	ctx, cancel, o, err := s.begin(ctx, "sweep")
	if err != nil {
		return err
	}
	defer cancel()
	return do(ctx, o)
}

// sweepFound handles the results of a step, and after the first step of a lap also sweeps the small tables.
// If one part fails, the others still run.
func (s *Store) sweepFound(ctx context.Context, step sweepStep) error {
	var errs []error
	if len(step.dead) > 0 {
		errs = append(errs, s.sweepPart(ctx, func(ctx context.Context, o *operation) error {
			return o.finish(ctx, work{leases: step.dead}, false)
		}))
	}
	if len(step.dangling) > 0 {
		errs = append(errs, s.sweepPart(ctx, func(ctx context.Context, o *operation) error {
			return o.finish(ctx, work{keys: step.dangling}, false)
		}))
	}
	if len(step.unwatched) > 0 {
		errs = append(errs, s.sweepPart(ctx, func(ctx context.Context, o *operation) error {
			return o.unmark(ctx, step.unwatched)
		}))
	}
	for more := step.begins; more; {
		err := s.sweepPart(ctx, func(ctx context.Context, o *operation) error {
			gone, err := query(ctx, o, sqlSweepLeft, []any{sweepRows}, func(rows pgx.Rows, l *sweepLeft) error {
				return rows.Scan(&l.most, &l.namespaces, &l.keys)
			})
			if more = err == nil && gone[0].most == sweepRows; err != nil {
				return err
			}
			return o.finish(ctx, work{keys: sharedKeys(gone[0].namespaces, gone[0].keys)}, false)
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
