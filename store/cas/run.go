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
	// maxReads limits how often a record is read in a round.
	maxReads = 20
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

// assume gives a job the record of the cache.
func (s *Store) assume(j *job) {
	if j.rec != nil {
		return
	}
	if r, found := s.cache.Get(j.key); found {
		j.rec, j.was = &r.Record, r.read // which nobody changes
	} else if j.blind {
		j.rec = &Record{Key: j.key}
	}
}

// need is what a job needs next.
type need int

const (
	nothing need = iota // it has its answer
	aRead
	aSwap
)

// turns runs the machine for each job, after as many reads as that needs. It returns the turns whose records must be swapped. The other jobs have
// their answers.
func (s *Store) turns(ctx context.Context, jobs []*job) (turns []*turn, err error) {
	for reads := 0; ; reads++ {
		var unread []*job
		for _, j := range jobs {
			t, needs, err := s.step(j)
			switch {
			case err != nil:
				return nil, err
			case needs == aRead:
				unread = append(unread, j)
			case needs == aSwap:
				turns = append(turns, t)
			}
		}
		if len(unread) == 0 {
			return turns, nil
		}
		if reads == maxReads {
			return nil, errUnread
		}
		if err := s.load(ctx, unread); err != nil {
			return nil, err
		}
		jobs = unread
	}
}

// step runs the machine on what a job knows of its record, and decides what the job needs then:
//
//	record or lease is not known           a read
//	the turn changes the record            a swap, which proves all that was assumed
//	it changes nothing, and the record     a read, because no swap would prove the answer
//	or a lease was only remembered
//	the new record would be too large      the asks are refused, and the other items run again
//	it changes nothing, and rests on       a second read: see proved
//	the death of a lease
//	it changes nothing otherwise           nothing: the items have their answers
func (s *Store) step(j *job) (*turn, need, error) {
	if j.rec == nil {
		return nil, aRead, nil
	}
	t, err := s.take(j)
	switch {
	case errors.Is(err, errUnread):
		return nil, aRead, nil
	case err != nil && j.beside && j.answerLocked():
		// The caller asks again for these items alone, and then gets the error.
		s.log.Debug("a record cannot be used, so its items are answered as if it were locked", "error", err)
		return nil, nothing, nil
	case err != nil:
		return nil, nothing, err
	case !t.tooLarge && t.changed():
		return t, aSwap, nil // which tells whether all that was assumed is right
	case !j.fresh || t.assumed:
		return nil, aRead, nil // no swap would prove the answer
	case t.tooLarge:
		if j.refuse(); len(j.items) > 0 {
			return s.step(j)
		}
		return nil, nothing, nil
	case !j.proved():
		return nil, aRead, nil
	}
	j.unchanged = true
	s.learn(t, j.rec.Version)
	return nil, nothing, nil
}

// proved: an answer without a swap may rest on the death of a lease that was only read. proved reports whether no lease of the record is dead, or
// two reads agree on that. A server may read the leases after the record, and meanwhile a holder may have changed to another lease. So a second
// read must find the same version, and no more dead leases.
func (j *job) proved() bool {
	var dead []store.LeaseID
	for i, id := range j.rec.Leases {
		if i < len(j.rec.States) && !j.rec.States[i].Alive {
			dead = append(dead, id)
		}
	}
	more := slices.ContainsFunc(dead, func(id store.LeaseID) bool { return !slices.Contains(j.dead, id) })
	same := j.seen == j.rec.Version
	j.seen, j.dead = j.rec.Version, dead
	return len(dead) == 0 || same && !more
}

// load reads the records of jobs, and the states of all leases that they need.
func (s *Store) load(ctx context.Context, jobs []*job) error {
	keys := make([]string, len(jobs))
	var leases []store.LeaseID
	for i, j := range jobs {
		keys[i] = j.key
		for _, id := range j.leases {
			if !slices.Contains(leases, id) {
				leases = append(leases, id)
			}
		}
	}
	records, states, err := s.requests.Load(ctx, keys, leases)
	if err != nil {
		return err
	}
	more := make(map[store.LeaseID]LeaseState, len(leases))
	for i, id := range leases {
		more[id] = states[i]
	}
	for i, j := range jobs {
		j.read(&records[i], more)
		s.cacheRecord(&records[i], nil)
	}
	return nil
}

// read gives a job a record as the server has it.
func (j *job) read(r *Record, more map[store.LeaseID]LeaseState) {
	j.rec, j.was, j.fresh, j.states = r, nil, true, make(map[store.LeaseID]LeaseState, len(r.Leases)+len(j.leases))
	for _, id := range j.leases {
		if state, found := more[id]; found {
			j.states[id] = state
		}
	}
	for i, id := range r.Leases {
		j.states[id] = r.States[i]
	}
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
	return Failed(op, s.inTurn(ctx, "confirm", func() error { return c.Confirm(ctx) }), true)
}
