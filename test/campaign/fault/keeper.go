package fault

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/load"
)

// KeeperKinds strike a sidecar just when it keeps a key, and somebody elsewhere begins to want that. They need sidecars
// that keep keys ([Terms.Keepers]).
var KeeperKinds = []Kind{
	{Name: "kill-keeper", part: sidecar, keeper: true, weight: 2, least: 0, most: 4 * time.Second, strike: keeping(killSidecar)},
	{Name: "freeze-keeper", part: sidecar, keeper: true, weight: 2, least: 500 * time.Millisecond, most: 6 * time.Second, strike: keeping(freezeSidecar)},
	{Name: "drain-keeper", part: sidecar, keeper: true, weight: 2, least: 0, most: time.Second, strike: keeping(drainSidecar)},
	{Name: "cut-keeper", part: sidecar, keeper: true, weight: 2, least: 500 * time.Millisecond, most: 6 * time.Second, strike: keeping(cut)},
	{Name: "deaf-keeper", part: sidecar, keeper: true, weight: 2, least: 2 * time.Second, most: 6 * time.Second, strike: keeping(unheard)},
}

// longestWant is longer than any lease lasts that a struck sidecar leaves, with what other faults add.
const longestWant = 30 * time.Second

// keeping strikes when the key is kept. It has no effect if the sidecar keeps none. Who wants the key elsewhere comes at about the same time.
func keeping(hit func(*strike) (int, error)) func(*strike) (int, error) {
	return func(s *strike) (int, error) {
		key := fmt.Sprintf("fault:%s:%x", s.Kind.Name, s.seed)
		keeper := &load.Keeper{Recorder: s.Recorder, Sidecar: s.Target, Socket: s.sidecar().Socket(), Key: key}
		defer keeper.Close()
		other := (s.Target + 1) % len(s.World.Sidecars)
		wants := &load.Keeper{Recorder: s.Recorder, Sidecar: other, Socket: s.World.Sidecars[other].Socket(), Key: key}
		early, late := between(s.rng, 0, 10*time.Millisecond), between(s.rng, 0, 10*time.Millisecond)
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		if !keeper.Keep(ctx) {
			return 0, nil
		}
		var waiter sync.WaitGroup
		defer waiter.Wait()
		waiter.Go(func() {
			defer wants.Close()
			ctx, cancel := context.WithTimeout(s.ctx, longestWant)
			defer cancel()
			s.rest(early)
			wants.Want(ctx)
		})
		s.rest(late)
		return hit(s)
	}
}
