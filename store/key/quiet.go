package key

import "github.com/locksidecar/locksidecar/store"

// askInQuiet answers an ask for an available key while nothing is granted.
func (o *Op) askInQuiet(r *Row, ask *store.Ask, own *Lease, answer *store.Answer) {
	if !ask.Wait {
		*answer = store.Answer{Outcome: store.Quiet, ExpiresIn: o.Quiet}
		return
	}
	if len(r.shares) == 0 {
		o.keepQuiet(r)
	}
	o.wait(r, ask, own, answer)
}

// keepForWaiters keeps a key without a holder for its living waiters until the quiet time is over. It reports whether
// there are any. Their checks then hand the key on, in order. Beside shares the key needs no hold.
func (o *Op) keepForWaiters(r *Row) (kept bool) {
	for w := r.queue.first(); w != nil && !w.lease.Alive(o.Now); w = r.queue.first() {
		if o.Reap(w.lease, false); !w.lease.Dead() {
			break
		}
		r.dequeue(w)
	}
	if r.queue.len() == 0 || len(r.shares) > 0 {
		return false
	}
	o.keepQuiet(r)
	o.tellAll(r) // they learn when to check
	return true
}

// keepQuiet makes a hold without a holder. The last grant's token stays, and how it ended.
func (o *Op) keepQuiet(r *Row) {
	r.asker = asker{by: o.By, lease: endedLease}
	r.Stopping, r.freed, r.Acquired = nil, 0, o.Now.Wall
	r.hold = o.Engine.Hold(r.Key, o.Quiet, o.Now)
}

// keptQuiet reports whether a hold for the quiet time keeps the key, or did so last. Other holds have a MinHold.
func (h *holder) keptQuiet() bool { return h.hold != nil && h.MinHold == 0 }
