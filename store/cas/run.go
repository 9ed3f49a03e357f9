package cas

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

const (
	// maxRounds limits how often a call tries to swap a record that others change at the same time.
	maxRounds = 2000
	// maxReads limits how often a record is read in a round.
	maxReads = 20
	// atOnce is how many rounds follow each other at once. Later ones come after a random pause of at most the time that a swap takes.
	atOnce = 16
	// lockedPatience is how long a call for one key tries again while another session of the server keeps the record locked.
	lockedPatience = time.Second
)

var (
	errContended = errors.New("others changed the key at the same time, too often")
	errRowLocked = errors.New("another session of the store's server keeps the record of the key locked")
)

// job is what a call does with one key.
type job struct {
	key  string // as the backend knows it
	name string // as callers know it
	// items are done together, in their order, with one swap. Most jobs have one, for which there is room in only.
	items []item
	only  [1]item
	// blind: the first try may assume that a record which this instance has not seen does not exist.
	blind bool
	// bump: the record changes in any case. forget: it is deleted if it still is as assumed.
	bump, forget bool
	// reads: the items only read. Then a record is settled only if somebody waits for or watches the key.
	reads bool
	// mail goes with the swap.
	mail []mail
	// full: the record has no room for more waiters.
	full bool
	// asks: an item is an ask. If the record would be too large, asks are refused. Without any, the call fails.
	asks bool
	// beside: the call has other jobs, which a fault of this record must not harm.
	beside bool
	// locked is called if another session keeps the record locked; nil: the items are answered.
	locked func()
	// leases are those whose states the items need, too.
	leases []store.LeaseID

	// rec is the record that the next turn assumes; nil: it must be read first. fresh: it was read for this call.
	rec   *Record
	fresh bool
	// was is what the data of rec says, if it was read before; otherwise nil.
	was *key.Record
	// quiet is when the quiet time of the key's server ends, if it refused a swap. Of several servers, each has its own.
	quiet time.Time
	// deaths counts the swaps that failed because a lease had died.
	deaths int
	// lost counts those that failed because another swap came first, and took is how long the last one was on its way.
	lost int
	took time.Duration
	// rivals are the instances that were named in the records which came first. asked is until when they give way to this job.
	rivals map[string]struct{}
	asked  time.Time
	// waysEnd is when the job no longer gives way to others; zero: it has not done so yet.
	waysEnd time.Time
	// lockedAt is when a swap was first refused because another session kept the record locked.
	lockedAt time.Time
	// states are those that were read for this call.
	states map[store.LeaseID]LeaseState
	// unchanged: a read answered the items.
	unchanged bool
	// seen is the version at the last read, and dead are the leases that were dead then: see proved.
	seen int64
	dead []store.LeaseID
}

// item is one item of a call. do runs the machine and writes the answer, each time anew. It returns false if it
// needs the state of a lease. answer, verdict and lock are what contains tokens; at most one of them is set.
type item struct {
	do      func(*turn) bool
	ask     bool
	answer  *store.Answer
	verdict *store.Verdict
	lock    *store.Lock
	// final: the asker relies on the answer, if it is a grant, a skip or a verdict, also if only a read gave it.
	final bool
	// locked answers if another session keeps the record locked; nil: the answer or verdict says so.
	locked func()
}

// add adds an item.
func (j *job) add(it item) {
	if j.items == nil {
		j.items = j.only[:0]
	}
	j.items = append(j.items, it)
	j.asks = j.asks || it.ask
}

// ends reports whether a job does more than to ask: it releases, withdraws, or visits a key after a death.
func (j *job) ends() bool {
	return !j.asks || slices.ContainsFunc(j.items, func(it item) bool { return !it.ask })
}

// refuse answers and removes the asks.
func (j *job) refuse() {
	j.items = slices.DeleteFunc(j.items, func(it item) bool {
		if it.ask {
			*it.answer = store.Answer{Outcome: store.QueueFull}
		}
		return it.ask
	})
	j.asks = false
}

// answerLocked answers that another session keeps the record locked. It reports whether there are items, and all have such an answer.
func (j *job) answerLocked() bool {
	if j.locked != nil {
		j.locked()
		return true
	}
	for i := range j.items {
		switch it := &j.items[i]; {
		case it.locked != nil:
			it.locked()
		case it.answer != nil:
			*it.answer = store.Answer{Outcome: store.RowLocked}
		case it.verdict != nil:
			*it.verdict = store.Verdict{Status: store.ClaimRowLocked}
		default:
			return false
		}
	}
	return len(j.items) > 0 // a job without any sends letters
}

// relied reports whether the asker relies on the answer.
func (it *item) relied() bool {
	return it.final && (it.answer == nil || it.answer.Outcome == store.Granted || it.answer.Outcome == store.Skipped)
}

// run does jobs of different keys. Each round reads the records that it must read, and swaps all that change; what
// did not succeed goes into the next round. An error says that the outcome is unknown if a swap was carried out.
func (s *Store) run(ctx context.Context, op string, jobs []*job) error {
	if err := s.usable(ctx, op); err != nil {
		return err
	}
	for _, j := range jobs {
		j.beside = len(jobs) > 1
		s.assume(j)
	}
	all, carried := jobs, false
	var post []*job
	for round := 0; len(jobs) > 0; round++ {
		err := s.rest(ctx, round, jobs)
		var turns []*turn
		if err == nil {
			turns, err = s.turns(ctx, jobs)
		}
		var did bool
		var later []*job
		if err == nil {
			turns, later, err = s.giveWay(ctx, turns)
		}
		if err == nil {
			jobs, did, err = s.swap(ctx, turns, &post)
			jobs = append(jobs, later...)
		}
		if carried = carried || did; err != nil {
			return Failed(op, err, carried || store.OutcomeUnknown(err) && turns != nil)
		}
	}
	for _, j := range post { // one after the other, because they have one key
		if err := s.run(ctx, op, []*job{j}); err != nil {
			s.log.Warn("some instances were not told; they will check", "key", j.name, "letters", len(j.mail), "error", err)
		}
	}
	return s.confirm(ctx, op, all)
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

// rest pauses before a round if many came before, so that instances which compete for a key do not do so in step. A refused swap
// tells the present record, so the first rounds follow at once: whoever pauses loses to an instance that does not.
func (s *Store) rest(ctx context.Context, round int, jobs []*job) error {
	switch {
	case round < atOnce:
		return ctx.Err()
	case round >= maxRounds:
		return errContended
	}
	most := time.Millisecond
	for _, j := range jobs {
		most = max(most, j.took)
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

// turns returns the turns of jobs whose record must be swapped. The other jobs are done.
func (s *Store) turns(ctx context.Context, jobs []*job) (turns []*turn, err error) {
	var unread []*job
	var one func(j *job) error
	one = func(j *job) error {
		t, err := s.take(j)
		switch unknown := errors.Is(err, errUnread); {
		case err != nil && !unknown && j.beside && j.answerLocked():
			// The caller asks again for these items alone, and then gets the error.
			s.log.Debug("a record cannot be used, so its items are answered as if it were locked", "error", err)
		case err != nil && !unknown:
			return err
		case unknown, (t.tooLarge || !t.changed()) && (!j.fresh || t.assumed):
			j.rec = nil
			unread = append(unread, j)
		case t.tooLarge:
			if j.refuse(); len(j.items) > 0 {
				return one(j)
			}
		case t.changed():
			turns = append(turns, t)
		case !j.proved():
			j.rec = nil
			unread = append(unread, j)
		default:
			j.unchanged = true
			s.settled(t, t.job.rec.Version)
		}
		return nil
	}
	for _, j := range jobs {
		if j.rec == nil {
			unread = append(unread, j)
		} else if err := one(j); err != nil {
			return nil, err
		}
	}
	if len(unread) == 0 {
		return turns, nil
	}
	for reads := 0; len(unread) > 0; reads++ {
		if reads == maxReads {
			return nil, errUnread
		}
		loaded := unread
		unread = nil
		if err := s.load(ctx, loaded); err != nil {
			return nil, err
		}
		for _, j := range loaded {
			if err := one(j); err != nil {
				return nil, err
			}
		}
	}
	return turns, nil
}

// proved reports whether an answer that no swap proves may rest on the death of the record's leases. A server may read the leases
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
		s.keep(&records[i], nil)
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

// swap swaps the records of turns, and returns the jobs that need another round. did: a swap was carried out. It adds
// jobs that send more letters.
func (s *Store) swap(ctx context.Context, turns []*turn, post *[]*job) (again []*job, did bool, err error) {
	if len(turns) == 0 {
		return nil, false, nil
	}
	var opened []NewLease
	swaps := make([]Swap, len(turns))
	for i, t := range turns {
		opened, swaps[i] = append(opened, t.opened...), t.swap()
		s.expect(t)
	}
	if len(opened) > 0 {
		if _, err := s.backend.OpenLeases(ctx, opened); err != nil {
			s.unexpect(turns...)
			s.discard(ids(opened)...)
			return nil, false, Failed("", err, false)
		}
	}
	began, posted := time.Now(), s.askForWay(ctx, turns)
	done, err := s.backend.Swap(ctx, swaps)
	took := time.Since(began)
	posted()
	if err != nil {
		if store.OutcomeUnknown(err) {
			s.doubt(turns)
		} else {
			s.unexpect(turns...)
			s.discard(ids(opened)...)
		}
		return nil, false, err
	}
	for i, t := range turns {
		if r := &done[i].Record; done[i].Done {
			did = true
			*post = append(*post, t.post(r.Base)...)
			s.carriedOut(t, r)
		} else {
			s.unexpect(t)
			s.discard(ids(t.opened)...)
			if t.job.forget {
				continue // it is in use again, or locked. What it is then must not be deleted.
			}
			if done[i].Locked && t.job.waitsForLock() {
				t.job.loses(r, took)
				again = append(again, t.job)
				continue
			}
			if done[i].Locked && t.job.answerLocked() {
				continue
			}
			if done[i].Locked {
				err = &store.Error{Err: fmt.Errorf("key %q: %w", t.job.name, errRowLocked)}
				continue
			}
			again = append(again, t.job)
			s.refused(done[i].Quiet)
			if s.keep(r, nil); done[i].Quiet > 0 {
				t.job.quiet = time.Now().Add(done[i].Quiet)
				t.job.read(r, nil)
			} else if r.Version == t.job.rec.Version {
				t.job.rec = nil // a lease has died, perhaps one that the record does not name
				t.job.deaths++
			} else {
				t.job.loses(r, took)
			}
		}
	}
	return again, did, err
}

// loses notes that another swap came first, and the record that it left.
func (j *job) loses(r *Record, took time.Duration) {
	j.lost, j.took = j.lost+1, took
	j.read(r, nil)
}

// waitsForLock reports whether a job tries again although another session keeps the record locked. Mostly that is the swap of a sidecar
// that is faster. Beside other jobs it does not, so that none of them waits.
func (j *job) waitsForLock() bool {
	if j.lockedAt.IsZero() {
		j.lockedAt = time.Now()
	}
	return !j.beside && time.Since(j.lockedAt) < lockedPatience
}

// carriedOut completes the answers after the swap, tells the news of this instance, and drops leases that ended.
func (s *Store) carriedOut(t *turn, r *Record) {
	fix := func(token *int64) {
		if *token >= provisional {
			*token += r.Base - provisional
		}
	}
	lock := func(l *store.Lock) {
		fix(&l.Token)
		for i := range l.Holders {
			fix(&l.Holders[i].Token)
		}
	}
	for _, it := range t.job.items {
		if it.answer != nil {
			fix(&it.answer.Token)
			lock(&it.answer.Lock)
		}
		if it.verdict != nil {
			lock(&it.verdict.Lock)
		}
		if it.lock != nil {
			lock(it.lock)
		}
	}
	s.discard(t.closed...)
	r.Key, r.Data = t.job.key, t.data
	r.Leases = r.Leases[:0]
	for _, l := range t.next.Leases {
		r.Leases = append(r.Leases, l.ID)
	}
	if t.job.forget {
		r.Version = 0
	}
	tokens(t.next, func(token *int64) { *token = absolute(*token, r.Base) })
	s.keep(r, t.next)
	s.settled(t, r.Version)
	for _, n := range t.op.News {
		if n.To.Name != s.me.Name {
			continue
		}
		news := n.News
		fix(&news.Answer.Token)
		if news.Answer.Outcome == store.Granted { // its lease was opened before the swap
			news.Answer.ExpiresIn -= time.Since(s.start) - time.Duration(t.op.Now.At)
		}
		if news.Event != nil {
			event := *news.Event
			fix(&event.Token)
			news.Event = &event
		}
		s.tell(t.job.name, news)
	}
}

func ids(leases []NewLease) []store.LeaseID {
	all := make([]store.LeaseID, len(leases))
	for i, l := range leases {
		all[i] = l.ID
	}
	return all
}
