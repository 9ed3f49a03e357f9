package key

import "github.com/locksidecar/locksidecar/store"

// Check returns what became of a waiter.
func (o *Op) Check(r *Row, a store.Attempt) (answer store.Answer) {
	if r.queue.find(a.ID) != nil {
		o.Settle(r) // may hand the key to this waiter, or find its lease dead
	}
	if w := r.queue.find(a.ID); w != nil {
		if !w.lease.Dead() {
			r.queued(&answer, w, o.Now)
			return answer
		}
		r.dequeue(w) // its lease died just now
		o.letIn(r)
	}
	return o.outcome(r, a)
}

// Cancel takes a waiter out of the queue.
func (o *Op) Cancel(r *Row, a store.Attempt) store.Answer {
	place := o.leave(r, a.ID)
	found := o.outcome(r, a)
	if k := r.skipped[a.ID]; k != nil && !o.forgetSkip(r, k) && found.Outcome == store.Skipped {
		found = store.Answer{Outcome: store.Gone} // the result belongs to the other instance
	}
	found.Position = place
	return found
}

// Withdraw frees what an attempt holds or waits for. Afterwards the attempt is Gone.
func (o *Op) Withdraw(r *Row, a store.Attempt) store.Answer {
	o.forgetSkip(r, r.skipped[a.ID])
	o.leave(r, a.ID)
	switch h := r.attempt(a.ID); {
	case h == nil || h.lease.Dead() && !h.kept(o.Now) || !o.mayBeUndelivered(h):
	case h.lease.Alive(o.Now):
		o.released(r, h, store.NoOutcome, nil)
		o.free(r, h, "")
	default:
		o.lapse(r, h, "")
	}
	return store.Answer{Outcome: store.Gone}
}

// leave removes a waiter from the queue and returns its position. It leaves a waiter of another instance.
func (o *Op) leave(r *Row, grant store.AttemptID) (place int) {
	w := r.queue.find(grant)
	if w == nil || !w.by.is(o.By) && !w.lease.Dead() {
		return 0
	}
	place = r.queue.position(w)
	r.dequeue(w)
	o.letIn(r)
	return place
}

// outcome answers an attempt that is not in the queue. A skipped waiter may have been repeated by an Ask.
func (o *Op) outcome(r *Row, a store.Attempt) (answer store.Answer) {
	switch held := r.heldBy(a.ID, o.Now); {
	case held != nil && a.Undelivered:
		held.granted(&answer, o.Now)
		return answer
	case held != nil:
		o.grantedAgain(held, &answer)
		return answer
	}
	if k := r.skipped[a.ID]; k != nil {
		return k.answer()
	}
	return store.Answer{Outcome: store.Gone}
}
