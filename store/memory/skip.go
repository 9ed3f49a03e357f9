package memory

import (
	"bytes"

	"github.com/locksidecar/locksidecar/store"
)

type skip struct {
	*waiter
	result []byte // never written to
}

func (k *skip) answer() store.Answer {
	return store.Answer{Outcome: store.Skipped, Result: k.result}
}

// skipWaiters removes waiters with skip from the queue and notifies them. The row keeps them until they are
// cancelled or their leases die.
func (o *operation) skipWaiters(r *row, result []byte) {
	result = bytes.Clone(result)
	r.queue.removeAll(func(w *waiter) bool {
		if !w.skip {
			return false
		}
		if r.skipped == nil {
			r.skipped = map[store.AttemptID]*skip{}
		}
		k := &skip{waiter: w, result: result}
		r.skipped[w.grant] = k
		o.tell(r, w, k.answer())
		return true
	})
	r.tidy()
}

func (o *operation) tellSkipped(r *row, now moment) {
	for _, k := range r.skipped {
		if r.heldBy(k.grant, now) == nil {
			o.tell(r, k.waiter, k.answer())
		}
	}
}

// forgetSkip deletes a skipped waiter if this instance made it.
func (s *Store) forgetSkip(r *row, k *skip) (forgotten bool) {
	if k == nil || k.by != s {
		return false
	}
	delete(r.skipped, k.grant)
	r.tidy()
	return true
}
