package cas

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// send swaps the records of turns with one request, after the leases that they need are opened. took is how long the swaps were on their way.
func (s *Store) send(ctx context.Context, turns []*turn) (answers []Swapped, took time.Duration, err error) {
	if len(turns) == 0 {
		return nil, 0, nil
	}
	var opened []NewLease
	swaps := make([]Swap, len(turns))
	for i, t := range turns {
		opened, swaps[i] = append(opened, t.opened...), t.swap()
		s.expect(t)
	}
	if len(opened) > 0 {
		if _, err := s.requests.OpenLeases(ctx, opened); err != nil {
			s.takeBack(turns...)
			return nil, 0, Failed("", err, false)
		}
	}
	if letters, most := s.lettersForWay(turns); len(letters) > 0 {
		var posting sync.WaitGroup
		posting.Go(func() { s.postFor(ctx, letters, most) }) // beside the swap
		defer posting.Wait()                                 // ctx ends with the call
	}
	began := time.Now()
	answers, err = s.requests.Swap(ctx, swaps)
	took = time.Since(began)
	switch {
	case err == nil:
	case store.OutcomeUnknown(err):
		s.doubt(turns)
	default:
		s.takeBack(turns...)
	}
	return answers, took, err
}

// takeBack takes back what was prepared for swaps that were certainly not carried out.
func (s *Store) takeBack(turns ...*turn) {
	s.unexpect(turns...)
	for _, t := range turns {
		s.discard(ids(t.opened)...)
	}
}

// answered reads the answer to a turn's swap. It reports whether the job needs another round.
func (c *call) answered(t *turn, a *Swapped, took time.Duration) (again bool, err error) {
	s, j, r := c.s, t.job, &a.Record
	if a.Done {
		c.did = true
		c.mail = append(c.mail, t.post(r.Base)...)
		s.carriedOut(t, r)
		return false, nil
	}
	s.takeBack(t)
	switch {
	case j.forget: // it is in use again, or locked. What it is then must not be deleted.
		return false, nil
	case a.Later && j.waitsForLock():
		j.loses(r, took)
		return true, nil
	case a.Later && j.answerLocked():
		return false, nil
	case a.Later:
		return false, &store.Error{Err: fmt.Errorf("key %q: %w", j.name, errRowLocked)}
	}
	s.cacheRecord(r, nil)
	switch {
	case a.Quiet > 0: // the machine must not grant
		s.refused(a.Quiet)
		j.quiet = time.Now().Add(a.Quiet)
		j.read(r, nil)
	case r.Version == j.rec.Version: // only a dead lease refuses such a swap, perhaps one that the record does not name
		j.rec = nil
		j.deaths++
	default: // another swap came first
		j.loses(r, took)
	}
	return true, nil
}

// carriedOut is what follows from a swap: the answers get their tokens, leases that ended are revoked, the record and what it says
// about this instance are remembered, and the news for this instance are told.
func (s *Store) carriedOut(t *turn, r *Record) {
	for i := range t.job.items {
		t.job.items[i].complete(r.Base)
	}
	s.discard(t.closed...)
	s.remember(t, r)
	s.learn(t, r.Version)
	s.tellOwn(t, r.Base)
}

// complete replaces the provisional tokens of an item's answer.
func (it *item) complete(base int64) {
	if it.answer != nil {
		complete(&it.answer.Token, base)
		completeLock(&it.answer.Lock, base)
	}
	if it.lock != nil {
		completeLock(it.lock, base)
	}
}

func completeLock(l *store.Lock, base int64) {
	complete(&l.Token, base)
	for i := range l.Holders {
		complete(&l.Holders[i].Token, base)
	}
}

// remember keeps the record that a turn's swap has written.
func (s *Store) remember(t *turn, r *Record) {
	r.Key, r.Data = t.job.key, t.data
	r.Leases = r.Leases[:0]
	for _, l := range t.next.Leases {
		r.Leases = append(r.Leases, l.ID)
	}
	if t.job.forget {
		r.Version = 0
	}
	tokens(t.next, func(token *int64) { *token = absolute(*token, r.Base) })
	s.cacheRecord(r, t.next)
}

// tellOwn tells the news of a turn that are for this instance. The others go in letters.
func (s *Store) tellOwn(t *turn, base int64) {
	for _, n := range t.op.News {
		if n.To.Name != s.me.Name {
			continue
		}
		news := n.News
		complete(&news.Answer.Token, base)
		if news.Answer.Outcome == store.Granted { // its lease was opened before the swap
			news.Answer.ExpiresIn -= time.Since(s.start) - time.Duration(t.op.Now.At)
		}
		if news.Event != nil {
			event := *news.Event
			complete(&event.Token, base)
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
