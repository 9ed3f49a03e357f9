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

// persist submits an item to a lane until done returns true or the manager stops. done is called with the
// answer to each try. Then settled is called once. Only the first try is in the trace of ctx, because in an
// outage the later ones would displace everything else in the exporter's queue.
func persist[T, R any](
	ctx context.Context, later *background.Runner, submit func(context.Context, T, func(R, error)) error, item T,
	done func(R, error) bool, settled func(),
) {
	answered := func(r R, err error) {
		again := func() { persist(context.Background(), later, submit, item, done, settled) }
		if done(r, err) || !later.After(clock.Jittered(clock.RetryPause), again) {
			settled()
		}
	}
	if err := submit(ctx, item, answered); err != nil {
		// The manager has stopped. The revocation of its leases ends everything under them.
		done(*new(R), err)
		settled()
	}
}

// withdraw frees what an attempt of unknown outcome may have got. It does so at once, for waiters of the key,
// and again when the server has certainly given up, because a buffered question may be carried out after the
// first withdrawal.
func (aq *Acquirer) withdraw(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	aq.withdrawOnce(ctx, a, matters, func() {
		again := func() { aq.withdrawOnce(ctx, a, matters, settled) }
		if aq.inline || !matters() || !aq.later.After(2*aq.cfg.StoreTimeout, again) {
			settled()
		}
	})
}

// withdrawOnce repeats a withdrawal until the store confirms it or matters returns false.
func (aq *Acquirer) withdrawOnce(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Withdrawals.Submit, a, func(o store.Outcome, err error) bool {
		aq.heldCache.Drop(a.Key)
		return err == nil && o != store.RowLocked || !matters()
	}, settled)
}

// forgetWait makes the store forget a skipped waiter. It repeats this until the store confirms or the waiter's
// lease is dead.
func (aq *Acquirer) forgetWait(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Cancels.Submit, a, func(ans store.Answer, err error) bool {
		return err == nil && ans.Outcome != store.RowLocked || !matters()
	}, settled)
}

// Free frees a grant in the background, until the store confirms it or matters returns false.
func (aq *Acquirer) Free(ctx context.Context, c store.Claim, matters func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Releases.Submit, c, func(v store.Verdict, err error) bool {
		if types.Judged("release", v.Status, err) != nil && matters() {
			return false
		}
		aq.heldCache.Drop(c.Key)
		return true
	}, settled)
}

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
