package lease

import (
	"context"

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
