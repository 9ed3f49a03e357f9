package memory

import (
	"bytes"

	"github.com/locksidecar/locksidecar/store"
)

// skip is what is remembered of a waiter whose holder succeeded.
type skip struct {
	*waiter
	result []byte // never written to
}

func (k *skip) answer() store.Answer {
	return store.Answer{Outcome: store.Skipped, Result: k.result}
}

// skipWaiters lets those wait no more who asked for it. They are told, and remembered
// until they are cancelled or their leases die.
func (o *operation) skipWaiters(r *row, result []byte) {
	result = bytes.Clone(result)
	r.queue.removeAll(func(w *waiter) bool {
		if !w.skip {
			return false
		}
		if r.skipped == nil {
			r.skipped = map[store.GrantID]*skip{}
		}
		r.skipped[w.grant] = &skip{waiter: w, result: result}
		return true
	})
	r.tidy()
	o.tellSkipped(r)
}

// tellSkipped tells those who were skipped.
func (o *operation) tellSkipped(r *row) {
	for _, k := range r.skipped {
		o.tell(r, k.waiter, k.answer())
	}
}

// skipOf finds what is remembered of a waiter, if it was skipped.
func (r *row) skipOf(grant store.GrantID) *skip {
	k := r.skipped[grant]
	if k != nil && k.lease.gone() {
		r.dropGone()
		return nil
	}
	return k
}

// forgetSkip forgets a waiter of this instance that was skipped, and returns what it
// was to know.
func (s *Store) forgetSkip(r *row, grant store.GrantID) *skip {
	k := r.skipOf(grant)
	if k == nil || k.by != s {
		return nil
	}
	delete(r.skipped, grant)
	r.tidy()
	return k
}
