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
func (b *Backend) OpenLeases(ctx context.Context, leases []cas.NewLease) error {
	longest := int64(0)
	for _, l := range leases {
		if l.Instance != "" {
			longest = max(longest, l.TTL.Microseconds())
		}
	}
	if longest > 0 {
		if _, err := b.write(ctx, "note_ttl", func(p *packet) {
			p.add("note_ttl", longest, longest, longest, noteFor.Microseconds())
		}); err != nil {
			return fail("open", err, false) // without a lease, the note only makes a quiet time longer
		}
	}
	for i, part := range slices.Collect(slices.Chunk(leases, leasesAtOnce)) {
		if _, err := b.write(ctx, "open", func(p *packet) {
			ids := make([]store.LeaseID, len(part))
			for i, l := range part {
				ids[i] = l.ID
				p.add("open_lease", l.ID, l.Instance, l.TTL.Microseconds(), l.TTL.Microseconds())
			}
			p.ask("existing_leases", ids)
		}); err != nil {
			return fail("open", err, i > 0)
		}
	}
	return nil
}

// Renew implements [cas.Backend]. If somebody keeps a lease's row locked, the others are renewed without it.
func (b *Backend) Renew(ctx context.Context, leases []store.LeaseID) (kept []store.LeaseID, err error) {
	for part := range slices.Chunk(leases, leasesAtOnce) {
		some, err := b.renew(ctx, part)
		if errors.Is(err, errRowLocked) && len(part) > 1 {
			some, err = nil, nil
			for i := range part {
				one, failed := b.renew(ctx, part[i:i+1])
				some, err = append(some, one...), errors.Join(err, failed)
			}
		}
		kept = append(kept, some...)
		if err != nil {
			return kept, fail("renew", err, true)
		}
	}
	return kept, nil
}

func (b *Backend) renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, error) {
	found, err := b.request(ctx, b.pools.renewals, "renew", true, true, func(p *packet) {
		p.add("end_expired", leases)
		p.add("renew", leases)
		p.ask("existing_leases", leases)
	})
	if err != nil {
		return nil, err
	}
	exist, err := leaseIDs(found[0])
	if err != nil {
		return nil, fail("renew", err, true)
	}
	return slices.DeleteFunc(slices.Clone(leases), func(id store.LeaseID) bool { return !slices.Contains(exist, id) }), nil
}

// Revoke implements [cas.Backend].
func (b *Backend) Revoke(ctx context.Context, leases []store.LeaseID) error {
	for i, part := range slices.Collect(slices.Chunk(leases, leasesAtOnce)) {
		if _, err := b.request(ctx, b.pools.main, "revoke", true, true, func(p *packet) {
			p.add("revoke", part)
			p.ask("existing_leases", part)
		}); err != nil {
			return fail("revoke", err, i > 0)
		}
	}
	return nil
}

// Opened implements [cas.Backend].
func (b *Backend) Opened(ctx context.Context, instance string) ([]store.LeaseID, error) {
	found, err := b.read(ctx, "opened", func(p *packet) { p.ask("opened", instance) })
	if err != nil {
		return nil, err
	}
	ids, err := leaseIDs(found[0])
	if err != nil {
		return nil, fail("opened", err, false)
	}
	return ids, nil
}
