package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/background"
)

// persist submits an item to a lane until done returns true or the manager stops. done is called with the
// answer to each try. Then settled is called once. Only the first try is in the trace of ctx, because in an
// outage the later ones would displace everything else in the exporter's queue.
func persist[T, R any](
	ctx context.Context, later *background.Runner, submit func(context.Context, T, func(R, error)) error, item T,
	done func(R, error) bool, settled func(),
) {
	answered := func(r R, err error) {
		again := func() { persist(context.Background(), later, submit, item, done, settled) }
		if done(r, err) || !later.Retry(again) {
			settled()
		}
	}
	if err := submit(ctx, item, answered); err != nil {
		// The manager has stopped. The revocation of its leases ends everything under them.
		done(*new(R), err)
		settled()
	}
}
