package memory

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// lock returns the state that readers see.
func (r *row) lock(now moment) (l store.Lock) {
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
	case r.held(now):
		r.show(&l, &r.holder, now)
		return l
	}
	return store.Lock{
		Key: r.key, Token: r.token, QueueLength: r.queue.len(),
		Expired: r.token != 0 && !r.wasReleased(),
	}
}

// wasReleased reports whether the last grant was released.
func (r *row) wasReleased() bool {
	if h := r.share(r.token); h != nil {
		return h.released
	}
	return r.released
}

// blockers returns the holders to an asker that is denied the key. It includes holders whose lease has
// expired but is not reaped yet.
func (r *row) blockers(l *store.Lock, now moment) {
	if len(r.shares) > 0 {
		r.together(l, r.shares, store.BlockersShown, now)
		return
	}
	r.show(l, &r.holder, now)
}

// together returns the number of shared holders, and the first of them.
func (r *row) together(l *store.Lock, holders []*holder, most int, now moment) {
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
func (r *row) alone(h *holder, now moment) (l store.Lock) {
	if r.show(&l, h, now); l.Shared {
		l.Holders = []store.Share{h.share(now)}
	}
	return l
}

// show writes one holder into an empty lock.
func (r *row) show(l *store.Lock, h *holder, now moment) {
	l.Key, l.Held, l.Token, l.QueueLength, l.Stopping = r.key, true, h.token, r.queue.len(), h.stopping
	l.Limit = r.sharedLimit()
	h.show(&l.Holder, now)
	if h != &r.holder {
		l.Shared, l.HoldersCount, l.NextEnd = true, len(r.shares), l.Holder.ExpiresIn
	}
}

func (h *holder) share(now moment) store.Share {
	share := store.Share{Token: h.token, Slot: h.slot, Stopping: h.stopping}
	h.show(&share.Holder, now)
	return share
}

func (h *holder) show(to *store.Holder, now moment) {
	to.Instance, to.Pod, to.Session, to.Owner = h.by.id.Instance, h.by.id.Pod, h.session, h.owner
	to.Lease, to.Renewed = h.lease.id, h.lease.renewed
	to.HoldPending = !h.lease.alive(now) && h.kept(now)
	to.AcquiredAt, to.HeldFor, to.ExpiresIn = h.acquired, h.heldFor(now), h.endsIn(now)
	to.Data, to.Traceparent = h.data, h.traceparent // Data is only replaced as a whole
}

func (h *holder) heldFor(now moment) time.Duration { return max(0, now.wall.Sub(h.acquired)) }
