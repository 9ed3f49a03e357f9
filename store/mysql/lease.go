package mysql

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// leasesAtOnce is how many leases one packet opens, renews or revokes.
	leasesAtOnce = 256
	// noteFor is how long a note of the longest TTL is fresh. It is kept for keepNote at least.
	noteFor, keepNote = 10 * time.Minute, time.Hour
)

// OpenLeases implements [cas.Backend].
func (b *Server) OpenLeases(ctx context.Context, leases []cas.NewLease) (history store.History, err error) {
	longest := int64(0)
	for _, l := range leases {
		if l.Instance != "" {
			longest = max(longest, l.TTL.Microseconds())
		}
	}
	if longest > b.longest.Load() {
		b.longest.Store(longest) // of two at a time one may be missed, and noted in the table
	}
	if longest > 0 {
		if _, err := b.write(ctx, "note_ttl", func(p *packet) {
			p.add("note_ttl", longest, longest, longest, noteFor.Microseconds())
		}); err != nil {
			return history, cas.Failed("open", err, false) // without a lease, the note only makes a quiet time longer
		}
	}
	for i, part := range slices.Collect(slices.Chunk(leases, leasesAtOnce)) {
		_, now, err := b.writeIn(ctx, "open", func(p *packet) {
			ids := make([]store.LeaseID, len(part))
			for i, l := range part {
				ids[i] = l.ID
				ttl := l.TTL.Microseconds()
				p.add("open_lease", l.ID, l.Instance, ttl, ttl, ttl, ttl)
			}
			p.ask("existing_leases", ids)
		})
		if err == nil && i > 0 && now.history != history {
			err = errMoved // some may be forgotten
		}
		if err != nil {
			return history, cas.Failed("open", err, i > 0 || store.OutcomeUnknown(err))
		}
		history = now.history
	}
	return history, nil
}

// Renew implements [cas.Backend]. If somebody keeps a lease's row locked, the others are renewed without it, after a wait. So instances share
// neither a packet nor a connection for renewals: that wait would be one of all.
func (b *Backend) Renew(ctx context.Context, leases []store.LeaseID) (renewed []store.LeaseID, history store.History, err error) {
	r := renewal{b: b}
	for part := range slices.Chunk(leases, leasesAtOnce) {
		err := r.renew(ctx, part)
		if errors.Is(err, errRowLocked) && len(part) > 1 {
			err = nil
			for i := range part {
				err = errors.Join(err, r.renew(ctx, part[i:i+1]))
			}
		}
		if err != nil {
			return r.renewed, r.history, cas.Failed("renew", err, true)
		}
	}
	return r.renewed, r.history, nil
}

// renewal is one call of Renew.
type renewal struct {
	b       *Backend
	renewed []store.LeaseID
	history store.History
}

func (r *renewal) renew(ctx context.Context, leases []store.LeaseID) error {
	b := r.b
	found, now, err := b.request(ctx, b.own.renewals, "renew", true, true, func(p *packet) {
		p.ask("keep_leases", leases)
		p.add("end_expired", leases)
		p.add("renew", leases)
		p.ask("existing_leases", leases)
	})
	if err != nil {
		return err
	}
	exist, err := leaseIDs(found[len(found)-1])
	if err != nil {
		return err
	}
	if len(r.renewed) > 0 && r.history != now.history {
		r.renewed = nil // they were extended in a history that is over
	}
	r.history = now.history
	for _, id := range leases {
		if slices.Contains(exist, id) {
			r.renewed = append(r.renewed, id)
		}
	}
	return nil
}

// Revoke implements [cas.Backend].
func (b *Server) Revoke(ctx context.Context, leases []store.LeaseID) error {
	for i, part := range slices.Collect(slices.Chunk(leases, leasesAtOnce)) {
		if _, _, err := b.request(ctx, b.main, "revoke", true, true, func(p *packet) {
			p.add("revoke", part)
			p.ask("existing_leases", part)
		}); err != nil {
			return cas.Failed("revoke", err, i > 0 || store.OutcomeUnknown(err))
		}
	}
	return nil
}

// Opened implements [cas.Backend].
func (b *Server) Opened(ctx context.Context, instance string) ([]store.LeaseID, error) {
	found, err := b.read(ctx, "opened", func(p *packet) { p.ask("opened", instance) })
	if err != nil {
		return nil, err
	}
	ids, err := leaseIDs(found[0])
	if err != nil {
		return nil, cas.Failed("opened", err, false)
	}
	return ids, nil
}
