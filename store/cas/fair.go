package cas

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// limited is a [Server] whose views share few connections, on which a request may wait for those of others. A request waits here for one, so that a
// view with many requests takes its turn behind the others.
type limited interface {
	// Connections is how many there are, and Patience is for how long a request waits for one.
	Connections() int
	Patience() time.Duration
}

// inParts is the backend of such a server, if a Swap may need several requests.
type inParts interface {
	// SwapInParts is Swap, which sends a request beside another one only if another connection is free: until it calls leave.
	SwapInParts(ctx context.Context, swaps []Swap, another func() (leave func(), free bool)) ([]Swapped, error)
}

// user takes turns for the connections: the requests of a view, or its letters that ask for way, which so do not wait behind its requests.
type user struct {
	view *Store
	asks bool
}

var errNoPlace = errors.New("other requests of this process use all connections to the server")

// inTurn carries out a request when a connection is free, if the server has few.
func (s *Store) inTurn(ctx context.Context, op string, do func() error) error {
	return s.turnOf(ctx, user{view: s}, op, do)
}

func (s *Store) turnOf(ctx context.Context, who user, op string, do func() error) error {
	places := s.space.places
	if places == nil {
		return do()
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.space.patience, errNoPlace)
	defer cancel()
	if places.Enter(limited, who) != nil {
		return &store.Error{Op: op, Err: context.Cause(limited)}
	}
	defer places.Leave()
	return do()
}

// inTurn is the backend of a view of such a server. Renewals have a connection of their own.
type inTurn struct {
	Backend
	view *Store
}

// turn carries out a request when a connection is free.
func (b *inTurn) turn(ctx context.Context, op string, do func() error) error {
	return b.view.inTurn(ctx, op, do)
}

// Load implements [Backend].
func (b *inTurn) Load(ctx context.Context, keys []string, leases []store.LeaseID) (records []Record, states []LeaseState, err error) {
	err = b.turn(ctx, "load", func() (err error) { records, states, err = b.Backend.Load(ctx, keys, leases); return err })
	return records, states, err
}

// Swap implements [Backend].
func (b *inTurn) Swap(ctx context.Context, swaps []Swap) (done []Swapped, err error) {
	err = b.turn(ctx, "swap", func() (err error) {
		if parts, ok := b.Backend.(inParts); ok {
			done, err = parts.SwapInParts(ctx, swaps, b.another)
		} else {
			done, err = b.Backend.Swap(ctx, swaps)
		}
		return err
	})
	return done, err
}

func (b *inTurn) another() (leave func(), free bool) {
	places := b.view.space.places
	return places.Leave, places.TryEnter()
}

// Post implements [Backend]. The letters ask for way.
func (b *inTurn) Post(ctx context.Context, letters []Letter) error {
	return b.view.turnOf(ctx, user{b.view, true}, "post", func() error { return b.Backend.Post(ctx, letters) })
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
