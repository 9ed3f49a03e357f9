package key

import (
	"cmp"
	"iter"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// holders yields the present holders, some of which may be dead.
func (r *Row) holders() iter.Seq[*holder] {
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
func (r *Row) addShare(limit int) *holder {
	h := &holder{}
	if limit > 0 {
		h.Slot = r.freeSlot()
	}
	if len(r.shares) == 0 {
		r.holder = holder{asker: asker{lease: endedLease}}
	}
	r.shares, r.limit = append(r.shares, h), limit
	return h
}

// freeSlot is the smallest number that no share has.
func (r *Row) freeSlot() int {
	taken := make([]bool, len(r.shares)+1)
	for _, h := range r.shares {
		if h.Slot < len(taken) {
			taken[h.Slot] = true
		}
	}
	return slices.Index(taken, false)
}

// share returns the share under a token, or nil.
func (r *Row) share(token int64) *holder {
	if i, found := r.shareAt(token); found {
		return r.shares[i]
	}
	return nil
}

func (r *Row) shareAt(token int64) (i int, found bool) {
	return slices.BinarySearchFunc(r.shares, token, func(h *holder, token int64) int { return cmp.Compare(h.Token, token) })
}

// drop removes a share from the row. An exclusive holder stays, for vacate.
func (r *Row) drop(h *holder) {
	if i, found := r.shareAt(h.Token); found {
		r.shares = slices.Delete(r.shares, i, i+1)
		r.remember(h)
	}
}

// remember records how the youngest share ended, for later claims.
func (r *Row) remember(h *holder) {
	if h.Token == r.Token {
		r.Released = h.Released
	}
}

// past decides a claim on a share that the row no longer has.
func (r *Row) past(token int64) store.ClaimStatus {
	switch {
	case token != r.Token:
		return store.UnknownToken
	case r.Released:
		return store.Released
	default:
		return store.Expired
	}
}

// fits reports whether an asker at the head can have a key without an exclusive holder. An attempt has at
// most one share, so its own dead share that a hold keeps blocks it.
func (r *Row) fits(a *asker) bool {
	if a.Shared {
		return !r.full() && (len(r.shares) == 0 || r.attempt(a.Attempt) == nil)
	}
	return len(r.shares) == 0
}

func (r *Row) full() bool { return r.limit > 0 && len(r.shares) >= r.limit }

// mayJoin reports whether a new asker can have a share beside others.
func (r *Row) mayJoin(id store.AttemptID) bool {
	return len(r.shares) > 0 && r.queue.len() == 0 && !r.full() && r.attempt(id) == nil
}

// mismatch reports whether shares or shared waiters name another limit. Expired waiters do not count:
// mismatch reaps them.
func (o *Op) mismatch(r *Row, limit int) bool {
	if r.limit == limit || len(r.shares)+r.queue.shared == 0 {
		return false
	}
	if len(r.shares) > 0 {
		return true
	}
	for _, w := range r.queue.line {
		if w.Shared {
			o.Reap(w.lease, false)
		}
	}
	r.dropGone()
	return r.queue.shared > 0
}

// sharedLimit is the limit that shares and shared waiters name; zero if there are none.
func (r *Row) sharedLimit() int {
	if len(r.shares)+r.queue.shared == 0 {
		return 0
	}
	return r.limit
}
