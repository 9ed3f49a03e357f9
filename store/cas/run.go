package cas

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// maxRounds limits how often a call tries to swap a record that others change at the same time.
	maxRounds = 2000
	// atOnce is how many rounds follow each other at once. Later ones come after a random pause of at most the time that a swap takes.
	atOnce = 16
)

var errContended = errors.New("others changed the key at the same time, too often")

// run does jobs of different keys, in rounds. It ends when each job has its answer. An error says that the outcome is unknown if a swap was,
// or may have been, carried out.
func (s *Store) run(ctx context.Context, op string, jobs []*job) error {
	if err := s.usable(ctx, op); err != nil {
		return err
	}
	c := call{s: s, open: jobs}
	for _, j := range jobs {
		j.beside = len(jobs) > 1
		s.assume(j)
	}
	for n := 0; len(c.open) > 0; n++ {
		if err := c.round(ctx, n); err != nil {
			return Failed(op, err, c.did || store.OutcomeUnknown(err))
		}
	}
	// Letters without room in their swaps go with further swaps, which change nothing else. They run one after the other, because they
	// may have one key.
	for _, j := range c.mail {
		if err := s.run(ctx, op, []*job{j}); err != nil {
			s.log.Warn("some instances were not told; they will check", "key", j.name, "letters", len(j.mail), "error", err)
		}
	}
	return s.confirm(ctx, op, jobs)
}

// call is one call under way.
type call struct {
	s *Store
	// open are the jobs that have no answer yet.
	open []*job
	// did: a swap was carried out.
	did bool
	// mail are jobs that send the letters for which swaps had no room.
	mail []*job
}

// round tries each open job once.
func (c *call) round(ctx context.Context, n int) error {
	s := c.s
	if err := s.restBefore(ctx, n, c.open); err != nil {
		return err
	}
	// The machine runs on what is known of each record, which is read if that does not suffice. A job that changes nothing has its answer then.
	turns, err := s.turns(ctx, c.open)
	if err != nil {
		return Failed("", err, false)
	}
	// If another instance asked for way, its key waits for a later round.
	turns, later, err := s.giveWay(ctx, turns)
	if err != nil {
		return err
	}
	// One request swaps all records that change. Each swap is carried out or refused by itself.
	answers, took, err := s.send(ctx, turns)
	if err != nil {
		return err
	}
	c.open = later
	for i, t := range turns {
		again, failed := c.answered(t, &answers[i], took)
		if again { // at once, with the record that the answer brought
			c.open = append(c.open, t.job)
		}
		if failed != nil {
			err = failed
		}
	}
	return err
}

// restBefore pauses before a round if many came before, so that instances which compete for a key do not do so in step, or if a crowd
// wants the key. Otherwise rounds follow each other at once, because a refused swap tells the present record, and whoever pauses loses to
// an instance that does not.
func (s *Store) restBefore(ctx context.Context, round int, jobs []*job) error {
	if round >= maxRounds {
		return errContended
	}
	most := time.Duration(0)
	for _, j := range jobs {
		if rest := j.rest(); rest > 0 {
			most = max(most, rest)
			j.rec = nil // it would be old after the rest
		} else if round >= atOnce {
			most = max(most, j.race.took, time.Millisecond)
		}
	}
	if most == 0 {
		return ctx.Err()
	}
	return s.pause(ctx, rand.N(most)) //nolint:gosec // spreads load
}

func (s *Store) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return errStopped
	}
}

// confirm waits until the server keeps what it has shown, if an answer that was only read relies on it. A swap needs no such
// wait: its answer comes after its commit, and after those that it has seen.
func (s *Store) confirm(ctx context.Context, op string, jobs []*job) error {
	c, shows := s.backend.(Confirmer)
	relied := func(it item) bool { return it.relied() }
	if !shows || !slices.ContainsFunc(jobs, func(j *job) bool { return j.unchanged && slices.ContainsFunc(j.items, relied) }) {
		return nil
	}
	return Failed(op, c.Confirm(ctx), true)
}
