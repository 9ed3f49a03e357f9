package key

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Lock returns the state that readers see.
func (r *Row) Lock(now Moment) (l store.Lock) {
	switch {
	case len(r.shares) > 0:
		living := slices.Collect(func(yield func(*holder) bool) {
			for _, h := range r.shares {
				if h.held(now) && !yield(h) {
					return
				}
			}
		})
		if len(living) > 0 {
			r.together(&l, living, store.HoldersShown, now)
			return l
		}
	case r.visible(now):
		r.show(&l, &r.holder, now)
		return l
	}
	return r.free()
}

// free is the state of a key that has no holder.
func (r *Row) free() store.Lock {
	return store.Lock{
		Key: r.Key, Token: r.Token, QueueLength: r.queue.len(), Limit: r.sharedLimit(),
		Expired: r.Token != 0 && !r.wasReleased(),
	}
}

// wasReleased reports whether the last grant was released.
func (r *Row) wasReleased() bool {
	if h := r.share(r.Token); h != nil {
		return h.Released
	}
	return r.Released
}

// blockers returns the holders to an asker that is denied the key. It includes holders whose lease has
// expired but is not reaped yet.
func (r *Row) blockers(l *store.Lock, now Moment) {
	if len(r.shares) > 0 {
		r.together(l, r.shares, store.BlockersShown, now)
		return
	}
	if r.onQuietHold() { // only the end, when to check again
		*l = r.free()
		l.Holder.ExpiresIn = r.hold.Remaining(now)
		return
	}
	r.show(l, &r.holder, now)
}

// together returns the number of shared holders, and the first of them.
func (r *Row) together(l *store.Lock, holders []*holder, most int, now Moment) {
	r.show(l, holders[0], now)
	l.HoldersCount, l.Holders = len(holders), make([]store.Share, 0, min(len(holders), most))
	for i, h := range holders {
		l.NextEnd = min(l.NextEnd, h.endsIn(now))
		if i < most {
			l.Holders = append(l.Holders, h.share(now))
		}
	}
}

// alone returns one holder, without the others of a shared lock.
func (r *Row) alone(h *holder, now Moment) (l store.Lock) {
	if r.show(&l, h, now); l.Shared {
		l.Holders = []store.Share{h.share(now)}
	}
	return l
}

// show writes one holder into an empty lock.
func (r *Row) show(l *store.Lock, h *holder, now Moment) {
	l.Key, l.Held, l.Token, l.QueueLength, l.Stopping = r.Key, true, h.Token, r.queue.len(), h.Stopping
	l.Limit, l.Kept = r.sharedLimit(), h == &r.holder && r.keepable(now)
	h.show(&l.Holder, now)
	if h != &r.holder {
		l.Shared, l.HoldersCount, l.NextEnd = true, len(r.shares), l.Holder.ExpiresIn
	}
}

func (h *holder) share(now Moment) store.Share {
	share := store.Share{Token: h.Token, Slot: h.Slot, Stopping: h.Stopping}
	h.show(&share.Holder, now)
	return share
}

func (h *holder) show(to *store.Holder, now Moment) {
	to.Instance, to.Pod, to.Session, to.Owner = h.by.Name, h.by.Pod, h.Session, h.Owner
	to.Lease, to.Renewed = h.lease.id, h.lease.Renewed()
	to.HoldPending = !h.lease.Alive(now) && h.onHold(now)
	to.AcquiredAt, to.HeldFor, to.ExpiresIn = h.Acquired, h.heldFor(now), h.endsIn(now)
	to.Data, to.Traceparent = h.Data, h.Traceparent // Data is only replaced as a whole
}

func (h *holder) heldFor(now Moment) time.Duration { return max(0, now.Wall.Sub(h.Acquired)) }

// Get returns the state that readers see. It first settles a key that a dead lease holds while others wait: a
// reap is under way elsewhere, and readers must not see a free key that has waiters, except in a quiet time.
func (o *Op) Get(r *Row) store.Lock {
	if r.queue.len() > 0 && r.abandoned() {
		o.Settle(r)
	}
	return r.Lock(o.Now)
}

// abandoned reports whether a holder is dead and no MinHold keeps the key.
func (r *Row) abandoned() bool {
	for h := range r.holders() {
		if h.hold == nil && h.lease.Dead() {
			return true
		}
	}
	return false
}

// HeldAt reports whether the key has a holder of this instance, or with an empty name of any instance.
func (r *Row) HeldAt(instance string, now Moment) bool {
	for h := range r.holders() {
		if h.visible(now) && (instance == "" || instance == h.by.Name) {
			return true
		}
	}
	return false
}

// Waiting returns waiters whose lease lives, in queue order: at most limit, and only those after this one.
func (r *Row) Waiting(after store.QueuePlace, limit int, now Moment) (found []store.Waiting) {
	for i, w := range r.queue.line {
		if len(found) >= limit {
			break
		}
		if !w.lease.Alive(now) || r.Key == after.Key && w.order <= after.Order {
			continue
		}
		found = append(found, store.Waiting{
			QueuePlace: store.QueuePlace{Key: r.Key, Order: w.order}, Position: i + 1,
			Pod: w.by.Pod, Session: w.Session, Owner: w.Owner, Traceparent: w.Traceparent,
			Shared: w.Shared, Limit: w.Limit, WaitingFor: max(0, now.Wall.Sub(time.UnixMicro(w.since))),
		})
	}
	return found
}

// Queued returns the number of waiters, some of which may be dead.
func (r *Row) Queued() int { return r.queue.len() }

// Count counts the row's holders and waiters, and calls holder for each holder, with its pod.
func (r *Row) Count(now Moment, holder func(pod string, s store.Stat)) store.Stat {
	of := store.Stat{Waiting: int64(r.queue.len())}
	for h := range r.holders() {
		if held := h.stat(now); held != (store.Stat{}) {
			if len(r.shares) > 0 {
				held.Shared = held.Held
			}
			holder(h.by.Pod, held)
			of = of.Plus(held)
		}
	}
	return of
}

// stat counts a grant.
func (h *holder) stat(now Moment) store.Stat {
	switch {
	case h.visible(now):
		return store.Stat{Held: 1, Average: h.heldFor(now), Longest: h.heldFor(now)}
	case !h.lease.Dead():
		return store.Stat{Expired: 1}
	default:
		return store.Stat{}
	}
}
