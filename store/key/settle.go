package key

import (
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Visit settles a row whose key one of these dead leases held or kept, or for which it waited. It removes waiters,
// skipped waiters and watchers under dead leases. If a hold keeps the key, its waiters are notified to check
// again, because they may expect a later end. With nil, each dead lease counts.
func (o *Op) Visit(r *Row, died []*Lease) {
	if left := r.dropGone() && len(r.shares) > 0; !left && !r.under(died, func(*holder) bool { return true }) {
		return
	}
	if len(r.shares) > 0 {
		o.settleDead(r)
	} else {
		o.Settle(r)
	}
	if r.under(died, func(h *holder) bool { return h.onHold(o.Now) }) {
		o.tellAll(r)
	}
}

// under reports whether one of these leases was that of such a grant, or of its hold.
func (r *Row) under(died []*Lease, such func(*holder) bool) bool {
	one := func(l *Lease) bool { return l != nil && (slices.Contains(died, l) || died == nil && l.Dead()) }
	for h := range r.holders() {
		if such(h) && (one(h.lease) || one(h.hold)) {
			return true
		}
	}
	return false
}

// Settle updates a row: it reaps an expired holder, and hands the key of a dead one to the first living
// waiter. It reports whether the key has neither holder nor waiters.
func (o *Op) Settle(r *Row) (free bool) {
	if len(r.shares) > 0 {
		return o.settleShares(r)
	}
	if r.lease == nil {
		return true
	}
	if !o.reapedIfExpired(&r.holder) {
		return false
	}
	if r.freed != 0 {
		return true // it was settled before
	}
	o.expired(r, &r.holder)
	if o.pass(r) {
		return false
	}
	r.vacate(o.Now)
	return true
}

// settleShares updates a row with shares: see Settle.
func (o *Op) settleShares(r *Row) (free bool) {
	for _, h := range r.shares {
		o.reapedIfExpired(h)
	}
	return o.settleDead(r)
}

// settleDead does so only for dead shares. Expired ones still count.
func (o *Op) settleDead(r *Row) (free bool) {
	o.dropDead(r)
	if o.pass(r) || len(r.shares) > 0 {
		return false
	}
	r.vacate(o.Now)
	return true
}

// dropDead removes shares whose lease is dead and whose MinHold is over.
func (o *Op) dropDead(r *Row) {
	r.shares = slices.DeleteFunc(r.shares, func(h *holder) bool {
		dead := h.lease.Dead() && !h.onHold(o.Now)
		if dead {
			o.expired(r, h)
			r.remember(h)
		}
		return dead
	})
}

// letIn grants shares to the waiters at the head of the queue that fit. Callers use it after a waiter left.
func (o *Op) letIn(r *Row) {
	if len(r.shares) > 0 {
		o.settleDead(r)
	}
}

// pass hands a key on, and removes waiters that died just now. A removed waiter may have blocked others
// from a share, so pass hands off again. The later visit of that death would no longer find the waiter.
func (o *Op) pass(r *Row) (granted bool) {
	granted = o.handOff(r, "")
	for (granted || len(o.Died) > 0) && r.dropGone() && len(r.shares) > 0 {
		granted = o.handOff(r, "") || granted
	}
	return granted && r.taken()
}

// taken reports whether a key that was handed off still has a holder. A new share's lease may have died at once.
func (r *Row) taken() bool { return len(r.shares) > 0 || r.lease != endedLease || r.onQuietHold() }

// expired reports the end of a grant to watchers, unless its release was reported before.
func (o *Op) expired(r *Row, h *holder) {
	if !h.Released && !h.onQuietHold() {
		o.event(r, h.Token, store.Event{Kind: store.EventExpired})
	}
}

// reapedIfExpired reaps the lease of a grant if it has expired, and reports whether the grant no longer keeps the key.
func (o *Op) reapedIfExpired(h *holder) bool {
	if h.held(o.Now) {
		return false
	}
	if !h.lease.Dead() {
		o.Reap(h.lease, false)
	}
	return h.lease.Dead() // not dead if a renewal came first
}

// grant gives the key, or a share of it, to an asker.
func (o *Op) grant(r *Row, a *asker) *holder {
	h := &r.holder
	if a.Shared {
		h = r.addShare(a.Limit)
	}
	o.take(h, a, r.Key)
	r.Token, r.freed = h.Token, 0
	o.event(r, h.Token, store.Event{Kind: store.EventAcquired})
	return h
}

// handOff gives a key without an exclusive holder to the first living waiters that fit. It reports whether
// it granted any. For a waiter whose lease has expired, the reap decides. by is the trace context of the
// release that caused the hand-off, or empty. PostgreSQL's functions pass_on and pass_shares do the same.
func (o *Op) handOff(r *Row, by string) (granted bool) {
	if r.queue.len() > 0 {
		o.dropDead(r)
	}
	if o.Quiet > 0 {
		return o.holdForWaiters(r)
	}
	for w := r.queue.first(); w != nil; w = r.queue.first() {
		if !w.lease.Alive(o.Now) {
			o.Reap(w.lease, false)
		}
		if w.lease.Dead() {
			r.dequeue(w)
			o.dropDead(r)
			continue
		}
		if !r.fits(&w.asker) {
			break
		}
		r.dequeue(w)
		h := o.grant(r, &w.asker)
		h.HandedBy = by
		var answer store.Answer
		h.granted(&answer, o.Now)
		if granted = true; !w.Shared {
			answer.Cohort = o.cohort(r)
		}
		o.tell(r, w, answer)
		if !w.Shared {
			break
		}
	}
	return granted && r.taken()
}

// cohort returns the waiters that the holder's sidecar may serve without the store. They are directly
// behind the holder, wait under the same lease, and are exclusive without skip.
func (o *Op) cohort(r *Row) (cohort []store.HalfID) {
	if !r.lease.Renewed() || r.hold != nil || len(r.watchers) > 0 || r.Stopping != nil {
		return nil
	}
	for _, w := range r.queue.line[:min(r.queue.len(), store.TokensPerGrant-1)] {
		if w.lease.id != r.lease.id || w.TTL > 0 || w.MinHold > 0 || w.Skip || w.Shared {
			break
		}
		cohort = append(cohort, store.HalfOf(w.Attempt))
	}
	if len(cohort) == 0 || !o.Engine.Reserve(r.holder.Token+int64(len(cohort))) {
		return nil
	}
	return cohort
}
