package memory

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// lock returns the state that others may see.
func (r *row) lock(now moment) store.Lock {
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
			return r.together(living, store.HoldersShown, now)
		}
	case r.held(now):
		return r.shown(&r.holder, now)
	}
	return store.Lock{
		Key: r.key, Token: r.token, QueueLength: r.queue.len(),
		Expired: r.token != 0 && !r.wasReleased(),
	}
}

// wasReleased reports whether the last grant was.
func (r *row) wasReleased() bool {
	if h := r.share(r.token); h != nil {
		return h.released
	}
	return r.released
}

// blockers returns the holders to somebody who is denied the key, also those whose lease has expired but
// is not reaped yet.
func (r *row) blockers(now moment) store.Lock {
	if len(r.shares) > 0 {
		return r.together(r.shares, store.BlockersShown, now)
	}
	return r.shown(&r.holder, now)
}

// together returns shared holders, and the first of them one by one.
func (r *row) together(holders []*holder, most int, now moment) store.Lock {
	l := r.shown(holders[0], now)
	l.HoldersCount, l.Holders = len(holders), make([]store.Share, 0, min(len(holders), most))
	for i, h := range holders {
		l.NextEnd = min(l.NextEnd, h.endsIn(now))
		if i < most {
			l.Holders = append(l.Holders, h.share(now))
		}
	}
	return l
}

// shown returns one holder.
func (r *row) shown(h *holder, now moment) store.Lock {
	l := store.Lock{
		Key:         r.key,
		Held:        true,
		Token:       h.token,
		QueueLength: r.queue.len(),
		Stopping:    h.stopping,
		Holder:      h.seen(now),
		Limit:       r.sharedLimit(),
	}
	if h != &r.holder {
		l.Shared, l.HoldersCount, l.NextEnd = true, len(r.shares), l.Holder.ExpiresIn
	}
	return l
}

// alone returns one holder as the only one.
func (r *row) alone(h *holder, now moment) store.Lock {
	l := r.shown(h, now)
	if l.Shared {
		l.Holders = []store.Share{h.share(now)}
	}
	return l
}

func (h *holder) share(now moment) store.Share {
	return store.Share{Token: h.token, Slot: h.slot, Stopping: h.stopping, Holder: h.seen(now)}
}

func (h *holder) seen(now moment) store.Holder {
	return store.Holder{
		Instance:    h.by.id.Instance,
		Pod:         h.by.id.Pod,
		Session:     h.session,
		Owner:       h.owner,
		Lease:       h.lease.id,
		Renewed:     h.lease.renewed,
		HoldPending: !h.lease.alive(now) && h.kept(now),
		AcquiredAt:  h.acquired,
		HeldFor:     h.heldFor(now),
		ExpiresIn:   h.endsIn(now),
		Data:        h.data, // never written to; replaced as a whole
		Traceparent: h.traceparent,
	}
}

func (h *holder) heldFor(now moment) time.Duration { return max(0, now.wall.Sub(h.acquired)) }
