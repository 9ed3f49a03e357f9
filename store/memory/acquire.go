package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Acquire takes each available key.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	answers := make([]store.Answer, len(asks))
	for i := range asks {
		o.ask(s, &asks[i], &answers[i])
	}
	o.finish()
	return answers, nil
}

// AcquireOne is Acquire for one key.
func (s *Store) AcquireOne(ctx context.Context, ask store.Ask) (answer store.Answer, err error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return store.Answer{}, err
	}
	o := operation{ns: s.ns}
	o.ask(s, &ask, &answer)
	o.finish()
	return answer, nil
}

// ask writes into answer, because copying the large struct takes time.
func (o *operation) ask(s *Store, ask *store.Ask, answer *store.Answer) {
	sh := o.ns.shard(ask.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	if r := sh.rows[ask.Key]; r != nil {
		if h := r.heldBy(ask.ID, now); h != nil {
			h.grantedAgain(answer, s, now)
			return
		}
		if k := r.skipped[ask.ID]; k != nil && ask.Wait {
			*answer = k.answer()
			return
		}
	}
	own, ok := o.ownLease(ask, now) // nil if the ask needs no lease
	if !ok {
		answer.Outcome = store.LeaseLost
		return
	}
	r := sh.row(ask.Key)
	if !o.settle(r, now) && !o.join(s, r, ask, own, answer, now) {
		return
	}
	a := s.asker(ask, own)
	o.grant(r, &a, now).granted(answer, now)
}

// join reports whether an asker can have a share beside other holders. If not, it writes the answer.
func (o *operation) join(s *Store, r *row, ask *store.Ask, own *lease, answer *store.Answer, now moment) bool {
	h := r.heldBy(ask.ID, now)
	switch {
	case h != nil: // the reap of a holder granted the key to this waiter
		h.grantedAgain(answer, s, now)
	case ask.Shared && o.mismatch(r, ask.Limit, now):
		answer.Outcome = store.LimitMismatch
		r.blockers(&answer.Lock, now)
	case ask.Shared && r.mayJoin(ask.ID):
		return true
	case ask.Wait:
		o.wait(s, r, ask, own, answer, now)
	default:
		answer.Outcome = store.Held
		r.blockers(&answer.Lock, now)
	}
	return false
}

// ownLease finds the asker's lease, and reports whether the ask may go on. Only an Acquire of a bind:ttl
// lock needs no lease.
func (o *operation) ownLease(ask *store.Ask, now moment) (*lease, bool) {
	if ask.TTL > 0 && !ask.Wait {
		return nil, true
	}
	own := o.ns.leases.get(ask.Lease)
	return own, own != nil && own.renewed && own.alive(now)
}

// wait enqueues an asker, or finds it in the queue. A queue position is lost with its lease. Because that
// waiter may have blocked others, letIn follows.
func (o *operation) wait(s *Store, r *row, ask *store.Ask, own *lease, answer *store.Answer, now moment) {
	w := r.queue.find(ask.ID)
	if w != nil && (w.lease != own || !w.lease.alive(now)) {
		r.dequeue(w)
		w = nil
	}
	if w == nil {
		a := s.asker(ask, own)
		w = r.enqueue(&a, now)
		o.letIn(r, now)
	}
	r.queued(answer, w, now)
}
