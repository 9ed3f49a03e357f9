package key

import (
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Signal sends a request to one holder, or to all present holders.
func (o *Op) Signal(r *Row, g store.Signal) store.ClaimStatus {
	status := store.UnknownToken
	for _, h := range slices.Collect(r.holders()) { // collected first, because a break changes them
		if h.visible(o.Now) && (g.Token == 0 || g.Token == h.Token) {
			status = store.Holds
			o.signal(r, h, g)
		}
	}
	return status
}

// signal sends a request to one holder.
func (o *Op) signal(r *Row, h *holder, g store.Signal) {
	g.Token, g.At = h.Token, stored(o.Now.Wall)
	switch {
	case g.Kind == store.Stop:
		if !o.noteStop(r, h, &g) {
			return // the same request was sent before
		}
	case !h.lease.Renewed() || h.lease.Dead():
		o.lapse(r, h, "") // this lock has no session that could give it up
		return
	}
	if h.lease.Renewed() && h.lease.signal(g, r.oldest(), o.Engine) {
		o.News = append(o.News, News{h.lease.by, store.News{Signals: true}})
	}
	if g.Kind == store.Break && h.onHold(o.Now) {
		h.hold = nil
		o.tellAll(r) // they expect the end of the hold
	}
}

// noteStop records in the lock that its holder should stop, and reports whether this is new.
func (o *Op) noteStop(r *Row, h *holder, g *store.Signal) bool {
	stopping := &store.Stopping{Reason: g.Reason, At: g.At}
	if before := h.Stopping; before != nil {
		if sameReason(before.Reason, g.Reason) {
			return false
		}
		stopping.At = before.At
	}
	h.Stopping = stopping
	if !h.Released { // otherwise its end was reported already
		o.event(r, h.Token, store.Event{Kind: store.EventStopping, Stopping: stopping})
	}
	return true
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// oldest is the token of the holder that was granted first.
func (r *Row) oldest() int64 {
	if len(r.shares) > 0 {
		return r.shares[0].Token
	}
	return r.Token
}
