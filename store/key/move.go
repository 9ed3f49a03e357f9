package key

import "github.com/locksidecar/locksidecar/store"

// Move moves a lock or a waiter from one lease to another, which is nil if the engine does not know it.
func (o *Op) Move(r *Row, m store.Move, from store.LeaseID, to *Lease) store.ClaimStatus {
	if to == nil || !to.Alive(o.Now) {
		return store.Expired
	}
	var under **Lease
	var held *holder
	if w := r.queue.find(m.ID); w != nil {
		under = &w.lease
	} else if k := r.skipped[m.ID]; k != nil {
		under = &k.lease
	} else {
		h, status := o.claimed(r, r.tokenOf(m), to.id, false)
		if status != store.Holds {
			return status
		}
		under, held = &h.lease, h
	}
	switch present := *under; {
	case !present.Alive(o.Now):
		return store.Expired
	case present.id == to.id:
	case present.id != from:
		return store.OtherSession
	default:
		*under = to
		if held != nil {
			present.moveSignals(r.Key, held.Token, to)
		}
	}
	return store.Holds
}

// tokenOf returns the token under which the row knows a lock.
func (r *Row) tokenOf(m store.Move) int64 {
	if m.ID != (store.AttemptID{}) {
		if h := r.attempt(m.ID); h != nil {
			return h.Token
		}
	}
	if len(r.shares) == 0 && store.OfGrant(r.Token, m.Token) {
		return r.Token
	}
	return m.Token
}

// HeldUnder returns the grants that are held under renewed leases of an instance.
func (r *Row) HeldUnder(by *Instance) (grants []store.HeldGrant) {
	for h := range r.holders() {
		if !h.Released && h.lease.by.is(by) && !h.lease.Dead() {
			grants = append(grants, store.HeldGrant{Key: r.Key, Token: h.Token, Lease: h.lease.id})
		}
	}
	return grants
}
