package cas

import (
	"context"
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// maxReads limits how often a record is read in a round.
const maxReads = 20

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

// step runs the machine on what a job knows of its record, and decides what the job needs then.
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
// two reads agree on that. A server may read the leases
// after the record, and meanwhile a holder may have changed to another lease. So a second read must find the same
// version, and no more dead leases.
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
	records, states, err := s.backend.Load(ctx, keys, leases)
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
