package key

import (
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// A grant is Keepable if the instance that asks was the last one to have the key, and nobody else wants it. The instance may then keep the
// key between its sessions, and the row shows one grant all that time: it has the lease, the token and the session of the first one. Nothing
// in the row says whether a session holds the key at the moment. So the machine treats a kept key as a held one everywhere. It only tells
// the instance when somebody else begins to want the key.

// comesAgain reports whether the grant to this asker may be Keepable. The key is free.
func (o *Op) comesAgain(r *Row, ask *store.Ask) bool {
	last := ask.Last != 0 && ask.Last == r.Token && r.Released
	return last && !ask.Shared && ask.TTL <= 0 && ask.MinHold <= 0 && !ask.Skip && !r.wanted(o.Now)
}

// wanted reports whether a living waiter or watcher wants the key.
func (r *Row) wanted(now Moment) bool {
	for _, w := range r.watchers {
		if w.lease.Alive(now) {
			return true
		}
	}
	return slices.ContainsFunc(r.queue.line, func(w *waiter) bool { return w.lease.Alive(now) })
}

// keepable reports whether the instance of the exclusive holder may keep the key.
func (r *Row) keepable(now Moment) bool {
	return r.Keepable && !r.Released && len(r.shares) == 0 && r.lease != nil && r.lease.Alive(now)
}

// awaitedElsewhere reports whether a living waiter of another instance than the holder's is in the queue.
func (r *Row) awaitedElsewhere(now Moment) bool {
	return slices.ContainsFunc(r.queue.line, func(w *waiter) bool { return w.lease.Alive(now) && !w.by.is(r.by) })
}

// recall tells the instance that may keep the key that the caller, another one, wants it.
func (o *Op) recall(r *Row) {
	if r.keepable(o.Now) && !r.by.is(o.By) {
		o.News = append(o.News, News{r.by, store.News{Attempt: store.Attempt{Key: r.Key}, Recall: true}})
	}
}

// unkeep ends that a grant is Keepable: the holder that the row shows has the key from now on. The first waiter may wait only to learn
// this.
func (o *Op) unkeep(r *Row, h *holder) {
	if h.Keepable {
		h.Keepable = false
		o.tellFirst(r)
	}
}
