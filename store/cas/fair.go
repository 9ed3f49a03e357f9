package cas

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/fair"
)

// limited is a [Server] whose views share few connections, on which a request may wait for those of others. A request waits here for one, so that a
// view with many requests takes its turn behind the others.
type limited interface {
	// Connections is how many there are.
	Connections() int
}

// inTurn is the backend of a view of such a server. Renewals have a connection of their own.
type inTurn struct {
	Backend
	view   *Store
	places *fair.Places[*Store]
}

// turn carries out a request when a connection is free.
func (b *inTurn) turn(ctx context.Context, op string, do func() error) error {
	if err := b.places.Enter(ctx, b.view); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	defer b.places.Leave()
	return do()
}

// Load implements [Backend].
func (b *inTurn) Load(ctx context.Context, keys []string, leases []store.LeaseID) (records []Record, states []LeaseState, err error) {
	err = b.turn(ctx, "load", func() (err error) { records, states, err = b.Backend.Load(ctx, keys, leases); return err })
	return records, states, err
}

// Swap implements [Backend].
func (b *inTurn) Swap(ctx context.Context, swaps []Swap) (done []Swapped, err error) {
	err = b.turn(ctx, "swap", func() (err error) { done, err = b.Backend.Swap(ctx, swaps); return err })
	return done, err
}

// Post implements [Backend].
func (b *inTurn) Post(ctx context.Context, letters []Letter) error {
	return b.turn(ctx, "post", func() error { return b.Backend.Post(ctx, letters) })
}

// Scan implements [Backend].
func (b *inTurn) Scan(ctx context.Context, prefix, after string, limit int) (found []Record, err error) {
	err = b.turn(ctx, "scan", func() (err error) { found, err = b.Backend.Scan(ctx, prefix, after, limit); return err })
	return found, err
}

// OpenLeases implements [Backend].
func (b *inTurn) OpenLeases(ctx context.Context, leases []NewLease) (history store.History, err error) {
	err = b.turn(ctx, "open", func() (err error) { history, err = b.Backend.OpenLeases(ctx, leases); return err })
	return history, err
}

// Revoke implements [Backend].
func (b *inTurn) Revoke(ctx context.Context, leases []store.LeaseID) error {
	return b.turn(ctx, "revoke", func() error { return b.Backend.Revoke(ctx, leases) })
}

// Opened implements [Backend].
func (b *inTurn) Opened(ctx context.Context, instance string) (found []store.LeaseID, err error) {
	err = b.turn(ctx, "opened", func() (err error) { found, err = b.Backend.Opened(ctx, instance); return err })
	return found, err
}

// NextToken implements [Backend].
func (b *inTurn) NextToken(ctx context.Context) (next int64, err error) {
	err = b.turn(ctx, "next", func() (err error) { next, err = b.Backend.NextToken(ctx); return err })
	return next, err
}

// RaiseTokens implements [Backend].
func (b *inTurn) RaiseTokens(ctx context.Context, first int64) error {
	return b.turn(ctx, "raise", func() error { return b.Backend.RaiseTokens(ctx, first) })
}
