package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// CheckWaits tells what became of waiters.
func (s *Store) CheckWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "CheckWaits", waits, (*operation).check)
}

// CancelWaits takes waiters out of their queues.
func (s *Store) CancelWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "CancelWaits", waits, (*operation).cancel)
}

// Undo frees what attempts hold or wait for. In memory no attempt's outcome is
// ever unknown; callers need not know that.
func (s *Store) Undo(ctx context.Context, attempts []store.Attempt) error {
	_, err := s.eachAttempt(ctx, "Undo", attempts, (*operation).undo)
	return err
}

// eachAttempt does something to each attempt's row, with the row's shard locked.
func (s *Store) eachAttempt(ctx context.Context, op string, attempts []store.Attempt,
	do func(*operation, *row, store.GrantID, moment) store.Answer,
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
			answers[i] = do(&o, r, a.Grant, s.ns.space.now())
		}
		sh.mu.Unlock()
	}
	o.finish()
	return answers, nil
}

func (o *operation) check(r *row, grant store.GrantID, now moment) store.Answer {
	if r.queue.find(grant) != nil {
		o.settle(r, now) // may hand the key to this waiter, or find it dead
	}
	if w := r.queue.find(grant); w != nil {
		if !w.lease.dead() {
			return r.queued(w, now)
		}
		r.dequeue(w)
	}
	return heldBy(r, grant, now)
}

func (o *operation) cancel(r *row, grant store.GrantID, now moment) store.Answer {
	if w := r.queue.find(grant); w != nil {
		r.dequeue(w)
	}
	return heldBy(r, grant, now)
}

func (o *operation) undo(r *row, grant store.GrantID, now moment) store.Answer {
	if w := r.queue.find(grant); w != nil {
		r.dequeue(w)
	}
	if r.lease != nil && r.grant == grant && !r.lease.dead() {
		o.giveUp(r, now)
	}
	return store.Answer{Outcome: store.Gone}
}

// heldBy answers an attempt that is not in line.
func heldBy(r *row, grant store.GrantID, now moment) store.Answer {
	if r.grant == grant && r.held(now) {
		return r.granted(now)
	}
	return store.Answer{Outcome: store.Gone}
}
