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

// reapRounds is how often revoking the predecessors is tried, with a store that answers, before the
// leases are ready without: somebody keeps a row of theirs locked, and they expire by themselves.
const reapRounds = 5

const forever = time.Duration(math.MaxInt64)

// Reap revokes what instances left that ran here before and run no more, so that nobody has to wait
// until their leases expire. It works in the background, as long as the leases' context lives, and
// calls done when the store has confirmed all. Until then, or a few tries that failed, Ready says
// so. The instances come in the order in which they ran.
func (ls *Leases) Reap(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	ls.reaping.Store(true)
	ls.leftUnrevoked.Add(1)
	left, rounds := slices.Clone(instances), 0
	slices.Reverse(left) // the last one's leases are the most likely to live
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
		return true // they expire by themselves
	}
	err := reaper.ReapInstance(ctx, instance)
	if err != nil {
		ls.cfg.Log.Warn("a predecessor's leases are not reaped, trying again", "instance", instance, "error", err)
	}
	return err == nil
}

// Ready is nil unless predecessors are being reaped.
func (ls *Leases) Ready() error {
	if ls.reaping.Load() {
		return ErrReaping
	}
	return nil
}
