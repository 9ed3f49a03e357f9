package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Signal sends requests to the present holders of keys.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	if err := s.usable(ctx, "Signal"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	standings := make([]store.ClaimStatus, len(signals))
	for i := range signals {
		standings[i] = o.signalKey(signals[i])
	}
	o.finish()
	return standings, nil
}

func (o *operation) signalKey(g store.Signal) store.ClaimStatus {
	sh := o.ns.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[g.Key]
	if r == nil {
		return store.UnknownToken
	}
	status := store.UnknownToken
	for _, h := range slices.Collect(r.holders()) { // collected first, because a break changes them
		if h.held(now) && (g.Token == 0 || g.Token == h.token) {
			status = store.Holds
			o.signal(r, h, g, now)
		}
	}
	return status
}

// signal sends a request to one holder.
func (o *operation) signal(r *row, h *holder, g store.Signal, now moment) {
	g.Token, g.At = h.token, now.wall
	switch {
	case g.Kind == store.Stop:
		if !o.noteStop(r, h, &g) {
			return // the same request was sent before
		}
	case !h.lease.renewed || h.lease.dead():
		o.lapse(r, h, now, "") // this lock has no session that could give it up
		return
	}
	if h.lease.renewed && h.lease.signal(g, r.oldest(), o.ns) {
		o.news = append(o.news, delivery{h.lease.by, store.News{Signals: true}})
	}
	if g.Kind == store.Break && h.kept(now) {
		h.holdUntil = 0
		o.tellAll(r, now) // they expect the end of the hold
	}
}

// noteStop records in the lock that its holder should stop, and reports whether this is new.
func (o *operation) noteStop(r *row, h *holder, g *store.Signal) bool {
	stopping := &store.Stopping{Reason: g.Reason, At: g.At}
	if before := h.stopping; before != nil {
		if sameReason(before.Reason, g.Reason) {
			return false
		}
		stopping.At = before.At
	}
	h.stopping = stopping
	if !h.released { // otherwise its end was reported already
		o.event(r, h.token, store.Event{Kind: store.EventStopping, Stopping: stopping})
	}
	return true
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// oldest is the token of the holder that was granted first.
func (r *row) oldest() int64 {
	if len(r.shares) > 0 {
		return r.shares[0].token
	}
	return r.token
}

// signal adds a signal to a holder under this lease. It replaces unread ones of the same kind for this
// grant, and for grants before the oldest holder of the key. It returns false if the lease is dead.
func (l *lease) signal(g store.Signal, oldest int64, ns *namespace) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead() {
		return false
	}
	l.signals = slices.DeleteFunc(l.signals, func(before store.Signal) bool {
		return before.Key == g.Key && before.Kind == g.Kind && (before.Token == g.Token || before.Token < oldest)
	})
	g.ID = store.SignalID(ns.lastSignal.Add(1))
	l.signals = append(l.signals, g)
	return true
}

// Signals returns the requests to holders under these leases of this instance.
func (s *Store) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	if err := s.usable(ctx, "Signals"); err != nil {
		return nil, err
	}
	var found []store.Signal
	for _, id := range leases {
		if l := s.ns.leases.get(id); l != nil && l.by == s {
			l.mu.Lock()
			found = append(found, l.signals...)
			l.mu.Unlock()
		}
	}
	return found, nil
}

// Acknowledge forgets signals to holders of this instance.
func (s *Store) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	if err := s.usable(ctx, "Acknowledge"); err != nil {
		return err
	}
	if len(signals) == 0 {
		return nil
	}
	for _, l := range s.ns.leases.renewedBy(s.id.Instance) {
		l.mu.Lock()
		l.signals = slices.DeleteFunc(l.signals, func(g store.Signal) bool {
			return slices.Contains(signals, g.ID)
		})
		l.mu.Unlock()
	}
	return nil
}
