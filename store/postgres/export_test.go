package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Setting asks for a server setting on a connection of a store.
func Setting(ctx context.Context, tb testing.TB, s store.Store, name string) string {
	tb.Helper()
	ctx, cancel, o, err := s.(*Store).begin(ctx, "setting")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	found, err := query(ctx, o, "SELECT current_setting($1)", []any{name}, scanOne[string])
	if err != nil {
		tb.Fatal(err)
	}
	return found[0]
}

// SweepAtOnce makes a store's sweeps take what just expired or became free.
func SweepAtOnce(s store.Store) {
	s.(*Store).sweepAfter, s.(*Store).forgetAfter = 0, time.Duration(0)
}
