package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store/memory"
)

// TestGroupProperties lets groups and single calls at several sidecars compete for a few keys, in
// random order. The callers of a sidecar have sessions of their own, or are threads of one session. Each call is granted within the time that all others could need. A key never has
// two holders, and nothing is left at the end.
// Proves: promise 14, trap deadlock, trap second thread
func TestGroupProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sides := make([][]option, rapid.IntRange(1, 3).Draw(rt, "sidecars"))
		for i := range sides {
			if rapid.Bool().Draw(rt, "inline") {
				sides[i] = append(sides[i], inline)
			}
			sides[i] = append(sides[i], with(func(c *types.Config) { c.BatchMax = 3 }))
		}
		var open openSpans
		if rapid.Bool().Draw(rt, "traced") {
			sides[0] = append(sides[0], open.opt())
		}
		threads := rapid.Bool().Draw(rt, "threads of one session")
		keys := []string{"a", "b", "c", "d"}
		callers := rapid.SliceOfN(rapid.Uint64(), 2, 12).Draw(rt, "callers")
		const rounds, hold = 4, 50 * time.Millisecond
		var failed []string
		synctest.Test(t, func(t *testing.T) {
			space := memory.NewSpace()
			rigs, common := make([]*rig, len(sides)), make([]*holdings.Session, len(sides))
			for i, opts := range sides {
				rigs[i] = newRigOn(t, space, string(rune('A'+i)), opts...)
				common[i] = rigs[i].explicitSession()
			}
			var mu sync.Mutex
			holder := map[string]int64{}
			complain := func(format string, args ...any) { failed = append(failed, fmt.Sprintf(format, args...)) }
			var all sync.WaitGroup
			for n, seed := range callers {
				r, random := rigs[n%len(rigs)], rand.New(rand.NewPCG(seed, 1))
				s := common[n%len(rigs)]
				if !threads {
					s = r.eitherSession()
				}
				all.Go(func() {
					for range rounds {
						wanted := slices.Clone(keys)
						random.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
						wanted = wanted[:1+random.IntN(len(keys))]
						req := types.Request{Wait: 20 * time.Second}
						owner := s
						if random.IntN(3) == 0 {
							req.Bind, req.TTL, owner = types.BindTTL, time.Second, nil
						}
						began := time.Now()
						var grants []types.Grant
						var err error
						if len(wanted) == 1 {
							req.Key = wanted[0]
							grants = make([]types.Grant, 1)
							grants[0], err = r.m.Acquire(sampledCall(), owner, req)
						} else {
							grants, err = r.m.AcquireAll(sampledCall(), owner, wanted, req)
						}
						mu.Lock()
						if err != nil {
							complain("caller %d, %v after %s: %v", n, wanted, time.Since(began), err)
							mu.Unlock()
							return
						}
						for i, g := range grants {
							if g.Key != wanted[i] || holder[g.Key] != 0 {
								complain("caller %d: %q is held under %d and %d", n, g.Key, holder[g.Key], g.Token)
							}
							holder[g.Key] = g.Token
						}
						mu.Unlock()
						time.Sleep(time.Duration(random.Int64N(int64(hold))))
						for _, g := range grants {
							mu.Lock()
							holder[g.Key] = 0
							mu.Unlock()
							if _, err := r.m.Release(context.Background(), owner, types.ReleaseRequest{Key: g.Key, Token: g.Token}); err != nil {
								mu.Lock()
								complain("caller %d: %v", n, err)
								mu.Unlock()
							}
						}
					}
				})
			}
			all.Wait()
			for _, r := range rigs {
				for _, s := range r.m.holdings.All() {
					s.End(types.EndDeleted)
				}
			}
			time.Sleep(time.Minute)
			for _, r := range rigs {
				r.nothingLeft()
				r.m.Stop()
			}
			open.none(t)
		})
		if len(failed) > 0 {
			rt.Fatal(failed)
		}
	})
}
