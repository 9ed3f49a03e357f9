package key

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
func (o *Op) skipWaiters(r *Row, result []byte) {
	result = bytes.Clone(result)
	r.queue.removeAll(func(w *waiter) bool {
		if !w.Skip {
			return false
		}
		k := &skip{waiter: w, result: result}
		r.keepSkip(k)
		o.tell(r, w, k.answer())
		return true
	})
	r.tidy()
}

func (r *Row) keepSkip(k *skip) {
	if r.skipped == nil {
		r.skipped = map[store.AttemptID]*skip{}
	}
	r.skipped[k.Attempt] = k
}

func (o *Op) tellSkipped(r *Row) {
	for _, k := range r.skipped {
		if r.heldBy(k.Attempt, o.Now) == nil {
			o.tell(r, k.waiter, k.answer())
		}
	}
}

// forgetSkip deletes a skipped waiter if the instance made it.
func (o *Op) forgetSkip(r *Row, k *skip) (forgotten bool) {
	if k == nil || !k.by.is(o.By) {
		return false
	}
	delete(r.skipped, k.Attempt)
	r.tidy()
	return true
}
