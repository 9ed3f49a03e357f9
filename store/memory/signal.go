package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Signal asks holders for something, whoever they are.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	if err := s.usable(ctx, "Signal"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	standings := make([]store.ClaimStatus, len(signals))
	for i := range signals {
		standings[i] = o.signal(signals[i])
	}
	o.finish()
	return standings, nil
}

func (o *operation) signal(g store.Signal) store.ClaimStatus {
	sh := o.ns.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[g.Key]
	if r == nil || !r.held(now) || g.Token != 0 && g.Token != r.token {
		return store.UnknownToken
	}
	g.Token, g.At = r.token, now.wall
	switch {
	case g.Kind == store.Stop:
		if !o.noteStop(r, &g) {
			return store.Holds // it was told before
		}
	case !r.lease.renewed || r.lease.dead():
		o.lapse(r, now, "") // nobody can be asked to give it up
		return store.Holds
	}
	if r.lease.renewed && r.lease.signal(g, o.ns) {
		o.news = append(o.news, delivery{r.lease.by, store.News{Signals: true}})
	}
	if g.Kind == store.Break && r.kept(now) {
		r.holdUntil = 0
		o.tellAll(r, now) // they were told that it ends with the hold
	}
	return store.Holds
}

// noteStop notes in the lock that its holder should stop, and reports whether that is new.
func (o *operation) noteStop(r *row, g *store.Signal) bool {
	stopping := &store.Stopping{Reason: g.Reason, At: g.At}
	if before := r.stopping; before != nil {
		if sameReason(before.Reason, g.Reason) {
			return false
		}
		stopping.At = before.At
	}
	r.stopping = stopping
	if !r.released { // else its end was told already
		o.event(r, store.Event{Kind: store.EventStopping, Stopping: stopping})
	}
	return true
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// signal sends a signal to a holder under this lease. It replaces an unread one of its kind for the
// same key. It refuses when the lease is dead.
func (l *lease) signal(g store.Signal, ns *namespace) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead() {
		return false
	}
	l.signals = slices.DeleteFunc(l.signals, func(before store.Signal) bool {
		return before.Key == g.Key && before.Kind == g.Kind
	})
	g.ID = store.SignalID(ns.lastSignal.Add(1))
	l.signals = append(l.signals, g)
	return true
}

// Signals returns what holders under these leases of this instance are asked for.
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
