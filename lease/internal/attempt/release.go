package attempt

import (
	"context"
	"log/slog"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Releaser sends a claim until the store confirms it, or the lock's lease is dead. As in persist, only the
// first try is in the trace. It does not use persist, which makes seven more objects for each release.
type Releaser struct {
	lane      *batcher.Lane[store.Claim, store.Verdict]
	later     *background.Runner // tries again
	heldCache *heldcache.Cache
	log       *slog.Logger
}

// NewReleaser makes a releaser.
func NewReleaser(ls *lanes.Set, later *background.Runner, cache *heldcache.Cache, log *slog.Logger) *Releaser {
	return &Releaser{lane: ls.Releases, later: later, heldCache: cache, log: log}
}

type submitting = func(context.Context, store.Claim, func(store.Verdict, error)) error

// Release sends a release: see [holdings.Sender].
func (rl *Releaser) Release(ctx context.Context, r *holdings.Release) {
	rl.send(ctx, rl.lane.Submit, r)
}

// ReleaseInCaller sends a release whose caller waits for the first try.
func (rl *Releaser) ReleaseInCaller(ctx context.Context, r *holdings.Release) {
	rl.send(ctx, rl.lane.Do, r)
}

func (rl *Releaser) send(ctx context.Context, by submitting, r *holdings.Release) {
	// Releases have no limit of their own, because locks have one.
	if err := by(ctx, r.Claim(), func(v store.Verdict, err error) { rl.answered(r, &v, err) }); err != nil {
		// The manager has stopped. The revocation of its leases ends their locks.
		r.WasTried(err)
		r.IsSettled()
	}
}

func (rl *Releaser) answered(r *holdings.Release, v *store.Verdict, err error) {
	if err = types.Judged("release", v.Status, err); err != nil {
		r.WasTried(err)
		again := func() { rl.send(context.Background(), rl.lane.Submit, r) }
		if !r.Matters() || !rl.later.After(clock.Jittered(clock.RetryPause), again) {
			r.IsSettled()
		}
		return
	}
	c := r.Claim()
	if v.Status != store.Holds {
		rl.log.Debug("a released lock was not held any more", "key", c.Key, "token", c.Token)
	}
	rl.heldCache.Drop(c.Key)
	r.WasTried(nil)
	r.IsSettled()
}
