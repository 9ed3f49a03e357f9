package lease

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// AcquireOne is Acquire for one item, with all faults of Acquire.
func (d *double) AcquireOne(ctx context.Context, ask store.Ask) (store.Answer, error) {
	return only(d.Acquire(ctx, []store.Ask{ask}))
}

// ReleaseOne is Release for one item.
func (d *double) ReleaseOne(ctx context.Context, claim store.Claim) (store.Verdict, error) {
	return only(d.Release(ctx, []store.Claim{claim}))
}

func only[R any](answers []R, err error) (r R, _ error) {
	if err == nil {
		r = answers[0]
	}
	return r, err
}

func (d *double) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	signals = slices.Clone(signals)
	return do(ctx, d, "Signal", len(signals), func(ctx context.Context) ([]store.ClaimStatus, error) {
		return unlessLocked(d, signals, func(s store.Signal) string { return s.Key }, store.ClaimRowLocked,
			func(signals []store.Signal) ([]store.ClaimStatus, error) { return d.Store.Signal(ctx, signals) })
	})
}

func (d *double) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	leases = slices.Clone(leases)
	return do(ctx, d, "Signals", len(leases), func(ctx context.Context) ([]store.Signal, error) { return d.Store.Signals(ctx, leases) })
}

func (d *double) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	signals = slices.Clone(signals)
	_, err := do(ctx, d, "Acknowledge", len(signals), func(ctx context.Context) (int, error) { return 0, d.Store.Acknowledge(ctx, signals) })
	return err
}
