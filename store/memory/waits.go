package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Check returns what became of waiters.
func (s *Store) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "Check", waits, s.check)
}

// Cancel takes waiters out of their queues.
func (s *Store) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "Cancel", waits, s.cancel)
}

// Withdraw frees what attempts hold or wait for. In memory, the outcome of an attempt is always known.
func (s *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	answers, err := s.eachAttempt(ctx, "Withdraw", attempts, s.withdraw)
	outcomes := make([]store.Outcome, len(answers))
	for i, a := range answers {
		outcomes[i] = a.Outcome
	}
	return outcomes, err
}

// eachAttempt calls do for each attempt's row, with the row's shard locked.
func (s *Store) eachAttempt(ctx context.Context, op string, attempts []store.Attempt,
	do func(*operation, *row, store.Attempt, moment) store.Answer,
) ([]store.Answer, error) {
	if err := s.usable(ctx, op); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	answers := make([]store.Answer, len(attempts))
	for i, a := range attempts {
		answers[i].Outcome = store.Gone
		sh := s.ns.shard(a.Key)
		sh.mu.Lock()
		if r := sh.rows[a.Key]; r != nil {
			answers[i] = do(&o, r, a, s.ns.space.now())
		}
		sh.mu.Unlock()
	}
	o.finish()
	return answers, nil
}

func (s *Store) check(o *operation, r *row, a store.Attempt, now moment) (answer store.Answer) {
	if r.queue.find(a.ID) != nil {
		o.settle(r, now) // may hand the key to this waiter, or find its lease dead
	}
	if w := r.queue.find(a.ID); w != nil {
		if !w.lease.dead() {
			r.queued(&answer, w, now)
			return answer
		}
		r.dequeue(w) // its lease died just now
		o.letIn(r, now)
	}
	return s.heldBy(r, a, now)
}

func (s *Store) cancel(o *operation, r *row, a store.Attempt, now moment) store.Answer {
	place := o.leave(s, r, a.ID, now)
	found := s.heldBy(r, a, now)
	if k := r.skipped[a.ID]; k != nil && !s.forgetSkip(r, k) && found.Outcome == store.Skipped {
		found = store.Answer{Outcome: store.Gone} // the result belongs to the other instance
	}
	found.Position = place
	return found
}

func (s *Store) withdraw(o *operation, r *row, a store.Attempt, now moment) store.Answer {
	s.forgetSkip(r, r.skipped[a.ID])
	o.leave(s, r, a.ID, now)
	switch h := r.attempt(a.ID); {
	case h == nil || h.lease.dead() && !h.kept(now) || !h.mayBeUndelivered(s, now):
	case h.lease.alive(now):
		o.released(r, h, store.NoOutcome, nil)
		o.free(r, h, now, "")
	default:
		o.lapse(r, h, now, "")
	}
	return store.Answer{Outcome: store.Gone}
}

// leave removes a waiter from the queue and returns its position. It leaves a waiter of another instance.
func (o *operation) leave(s *Store, r *row, grant store.AttemptID, now moment) (place int) {
	w := r.queue.find(grant)
	if w == nil || w.by != s && !w.lease.dead() {
		return 0
	}
	place = r.queue.position(w)
	r.dequeue(w)
	o.letIn(r, now)
	return place
}

// heldBy answers an attempt that is not in the queue. A skipped waiter may have been repeated by an Acquire.
func (s *Store) heldBy(r *row, a store.Attempt, now moment) (answer store.Answer) {
	switch held := r.heldBy(a.ID, now); {
	case held != nil && a.Undelivered:
		held.granted(&answer, now)
		return answer
	case held != nil:
		held.grantedAgain(&answer, s, now)
		return answer
	}
	if k := r.skipped[a.ID]; k != nil {
		return k.answer()
	}
	return store.Answer{Outcome: store.Gone}
}
