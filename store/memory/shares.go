package memory

import (
	"cmp"
	"iter"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// holders yields the present holders, some of which may be dead.
func (r *row) holders() iter.Seq[*holder] {
	return func(yield func(*holder) bool) {
		if len(r.shares) == 0 && r.lease != nil {
			yield(&r.holder)
		}
		for _, h := range r.shares {
			if !yield(h) {
				return
			}
		}
	}
}

// addShare adds an empty share. The caller then calls take on it.
func (r *row) addShare(limit int) *holder {
	h := &holder{}
	if limit > 0 {
		h.slot = r.freeSlot()
	}
	if len(r.shares) == 0 {
		r.holder = holder{asker: asker{lease: deadLease}}
	}
	r.shares, r.limit = append(r.shares, h), limit
	return h
}

// freeSlot is the smallest number that no share has.
func (r *row) freeSlot() int {
	taken := make([]bool, len(r.shares)+1)
	for _, h := range r.shares {
		if h.slot < len(taken) {
			taken[h.slot] = true
		}
	}
	return slices.Index(taken, false)
}

// share returns the share under a token, or nil.
func (r *row) share(token int64) *holder {
	if i, found := r.shareAt(token); found {
		return r.shares[i]
	}
	return nil
}

func (r *row) shareAt(token int64) (i int, found bool) {
	return slices.BinarySearchFunc(r.shares, token, func(h *holder, token int64) int { return cmp.Compare(h.token, token) })
}

// drop removes a share from the row. An exclusive holder stays, for vacate.
func (r *row) drop(h *holder) {
	if i, found := r.shareAt(h.token); found {
		r.shares = slices.Delete(r.shares, i, i+1)
		r.remember(h)
	}
}

// remember records how the youngest share ended, for later claims.
func (r *row) remember(h *holder) {
	if h.token == r.token {
		r.released = h.released
	}
}

// past decides a claim on a share that the row no longer has.
func (r *row) past(token int64) store.ClaimStatus {
	switch {
	case token != r.token:
		return store.UnknownToken
	case r.released:
		return store.Released
	default:
		return store.Expired
	}
}

// dropDead removes shares whose lease is dead and whose MinHold is over.
func (o *operation) dropDead(r *row, now moment) {
	r.shares = slices.DeleteFunc(r.shares, func(h *holder) bool {
		dead := h.lease.dead() && !h.kept(now)
		if dead {
			o.expired(r, h)
			r.remember(h)
		}
		return dead
	})
}

// settleShares updates a row with shares: see settle.
func (o *operation) settleShares(r *row, now moment) (free bool) {
	for _, h := range r.shares {
		o.ended(h, now)
	}
	return o.settleDead(r, now)
}

// settleDead does so only for dead shares. Expired ones still count.
func (o *operation) settleDead(r *row, now moment) (free bool) {
	o.dropDead(r, now)
	if o.pass(r, now) || len(r.shares) > 0 {
		return false
	}
	r.vacate(now)
	return true
}

// letIn grants shares to the waiters at the head of the queue that fit. Callers use it after a waiter left.
func (o *operation) letIn(r *row, now moment) {
	if len(r.shares) > 0 {
		o.settleDead(r, now)
	}
}

// fits reports whether an asker at the head can have a key without an exclusive holder. An attempt has at
// most one share, so its own dead share that a hold keeps blocks it.
func (r *row) fits(a *asker) bool {
	if a.shared {
		return !r.full() && (len(r.shares) == 0 || r.attempt(a.grant) == nil)
	}
	return len(r.shares) == 0
}

func (r *row) full() bool { return r.limit > 0 && len(r.shares) >= r.limit }

// mayJoin reports whether a new asker can have a share beside others.
func (r *row) mayJoin(id store.AttemptID) bool {
	return len(r.shares) > 0 && r.queue.len() == 0 && !r.full() && r.attempt(id) == nil
}

// mismatch reports whether shares or shared waiters name another limit. Expired waiters do not count:
// mismatch reaps them.
func (o *operation) mismatch(r *row, limit int, now moment) bool {
	if r.limit == limit || len(r.shares)+r.queue.shared == 0 {
		return false
	}
	if len(r.shares) > 0 {
		return true
	}
	for _, w := range r.queue.line {
		if w.shared {
			o.reap(w.lease, now, false)
		}
	}
	r.dropGone()
	return r.queue.shared > 0
}

// sharedLimit is the limit that shares and shared waiters name; zero if there are none.
func (r *row) sharedLimit() int {
	if len(r.shares)+r.queue.shared == 0 {
		return 0
	}
	return r.limit
}

// downgrade turns the exclusive holder into a share, with the limit of the living shared waiters.
func (r *row) downgrade(now moment) *holder {
	limit := 0
	if slices.ContainsFunc(r.queue.line, func(w *waiter) bool { return w.shared && w.lease.alive(now) }) {
		limit = r.limit
	}
	was := r.holder
	h := r.addShare(limit)
	*h = was
	h.shared, r.token = true, was.token
	return h
}

// under reports whether a grant of the key is held under one of these leases.
func (r *row) under(leases []*lease) bool {
	for h := range r.holders() {
		if slices.Contains(leases, h.lease) {
			return true
		}
	}
	return false
}

// keptUnder reports whether a MinHold keeps the key for a grant under one of these leases.
func (r *row) keptUnder(leases []*lease, now moment) bool {
	for h := range r.holders() {
		if h.kept(now) && slices.Contains(leases, h.lease) {
			return true
		}
	}
	return false
}
