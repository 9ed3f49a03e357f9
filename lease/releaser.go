package lease

import (
	"context"
	"log/slog"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// releaser sends a claim to the lane of releases again and again until the store confirms it,
// or it does not matter any more because the lock's lease is dead. Only the first try stands
// in the trace: in an outage those of all locks would push everything else out of the
// exporter's queue. It does not use persist, because that makes seven objects more for each release.
type releaser struct {
	lane      *batcher.Lane[store.Claim, store.Verdict]
	retries   *retries
	heldCache *heldcache.Cache
	log       *slog.Logger
}

// submitting is one of the ways into the lane of releases.
type submitting = func(context.Context, store.Claim, func(store.Verdict, error)) error

// Release sends a release: see [sender].
func (rl *releaser) Release(ctx context.Context, r releasing) { rl.send(ctx, rl.lane.Submit, r) }

// ReleaseInCaller sends a release of which somebody waits for the first try.
func (rl *releaser) ReleaseInCaller(ctx context.Context, r releasing) { rl.send(ctx, rl.lane.Do, r) }

func (rl *releaser) send(ctx context.Context, by submitting, r releasing) {
	// Releases are not limited: what is released was held, and that is limited.
	if err := by(ctx, r.Claim(), func(v store.Verdict, err error) { rl.answered(r, &v, err) }); err != nil {
		// The manager has stopped; its leases are revoked with all that they hold.
		r.WasTried(err)
		r.IsSettled()
	}
}

// answered hears the answer to a try.
func (rl *releaser) answered(r releasing, v *store.Verdict, err error) {
	err = types.Judged("release", v.Status, err)
	if err != nil && r.Matters() {
		r.WasTried(err)
		again := func() { rl.send(context.Background(), rl.lane.Submit, r) }
		if !rl.retries.after(clock.Jittered(clock.RetryPause), again) {
			r.IsSettled()
		}
		return
	}
	c := r.Claim()
	if err == nil && v.Status != store.Holds {
		rl.log.Debug("what was released was not held any more", "key", c.Key, "token", c.Token)
	}
	rl.heldCache.Drop(c.Key)
	r.WasTried(nil)
	r.IsSettled()
}
