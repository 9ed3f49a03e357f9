package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Acquire takes each key that can be had now.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	answers := make([]store.Answer, len(asks))
	for i := range asks {
		answers[i] = o.ask(s, &asks[i])
	}
	o.finish()
	return answers, nil
}

// AcquireOne is Acquire for one key.
func (s *Store) AcquireOne(ctx context.Context, ask store.Ask) (store.Answer, error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return store.Answer{}, err
	}
	o := operation{ns: s.ns}
	answer := o.ask(s, &ask)
	o.finish()
	return answer, nil
}

func (o *operation) ask(s *Store, ask *store.Ask) store.Answer {
	sh := o.ns.shard(ask.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	if r := sh.rows[ask.Key]; r != nil {
		if h := r.heldBy(ask.ID, now); h != nil {
			return h.grantedAgain(s, now)
		}
		if k := r.skipped[ask.ID]; k != nil && ask.Wait {
			return k.answer()
		}
	}
	own, ok := o.ownLease(ask, now) // nil: none is needed
	if !ok {
		return store.Answer{Outcome: store.LeaseLost}
	}
	r := sh.row(ask.Key)
	if !o.settle(r, now) {
		if h := r.heldBy(ask.ID, now); h != nil {
			return h.grantedAgain(s, now) // it was one of the first in line when a holder was reaped
		}
		switch {
		case ask.Shared && o.mismatch(r, ask.Limit, now):
			return store.Answer{Outcome: store.LimitMismatch, Lock: r.blockers(now)}
		case ask.Shared && r.mayJoin():
		case ask.Wait:
			return o.wait(s, r, ask, own, now)
		default:
			return store.Answer{Outcome: store.Held, Lock: r.blockers(now)}
		}
	}
	a := s.asker(ask, own)
	return o.grant(r, &a, now).granted(now)
}

// ownLease finds the asker's lease, and reports whether the ask may go on: only an Acquire of a
// bind:ttl lock needs none.
func (o *operation) ownLease(ask *store.Ask, now moment) (*lease, bool) {
	if ask.TTL > 0 && !ask.Wait {
		return nil, true
	}
	own := o.ns.leases.get(ask.Lease)
	return own, own != nil && own.renewed && own.alive(now)
}

// wait puts an asker in line, or finds it there. A place under a lease that has ended is lost, and may
// have kept others waiting.
func (o *operation) wait(s *Store, r *row, ask *store.Ask, own *lease, now moment) store.Answer {
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
	return r.queued(w, now)
}
