package heartbeat

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// ErrReaping: the leases of predecessors are not reaped yet.
var ErrReaping = errors.New("reaping the leases of the sidecar that ran here before")

// reapRounds is how often revoking the predecessors is tried with a store that answers. If a row stays
// locked for so long, the sidecar becomes ready without that, and the leases expire.
const reapRounds = 5

const forever = time.Duration(math.MaxInt64)

// Reap revokes the leases of instances that ran here before, so that others need not wait until these
// leases expire. The instances are listed in the order in which they ran. Reap works in the background
// until the leases' context ends. It calls done when the store has confirmed all. Until then, or until a
// few tries have failed, Ready returns an error.
func (ls *Leases) Reap(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	ls.reaping.Store(true)
	ls.leftUnrevoked.Add(1)
	left, rounds := slices.Clone(instances), 0
	slices.Reverse(left) // the latest instance's leases are the most likely to live
	ls.cfg.Background.Persist(func(ctx context.Context) bool {
		left = slices.DeleteFunc(left, func(instance string) bool { return ls.reapInstance(ctx, instance) })
		if rounds++; ls.cfg.Store.Ready() != nil {
			rounds = 0
		}
		if len(left) == 0 {
			done()
			ls.leftUnrevoked.Add(-1)
		}
		if len(left) == 0 || rounds == reapRounds {
			ls.reaping.Store(false)
		}
		return len(left) == 0
	}, ls.cfg.StoreTimeout, forever, func() {})
}

func (ls *Leases) reapInstance(ctx context.Context, instance string) bool {
	reaper, ok := ls.cfg.Store.(store.Reaper)
	if !ok {
		return true // expired leases need no reaper here
	}
	err := reaper.ReapInstance(ctx, instance)
	if err != nil {
		ls.cfg.Log.Warn("could not reap the leases of an earlier sidecar of this pod, trying again", "instance", instance, "error", err)
	}
	return err == nil
}

// Ready returns an error while predecessors are being reaped.
func (ls *Leases) Ready() error {
	if ls.reaping.Load() {
		return ErrReaping
	}
	return nil
}
