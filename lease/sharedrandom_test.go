package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// sharers contains the locks that the callers of one key believe to hold.
type sharers struct {
	mu      sync.Mutex
	t       *testing.T
	writers int
	slots   map[int]bool
	limit   int
	most    int // the most holders at a time
}

// enter adds a grant, which its caller now believes to hold.
func (sh *sharers) enter(g *types.Grant) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if g.Shared {
		if sh.slots[g.Slot] || g.Slot >= sh.limit {
			sh.t.Errorf("slot %d is granted twice, or is too high: %v", g.Slot, sh.slots)
		}
		sh.slots[g.Slot] = true
	} else {
		sh.writers++
	}
	sh.most = max(sh.most, len(sh.slots))
	if sh.writers > 1 || sh.writers == 1 && len(sh.slots) > 0 || len(sh.slots) > sh.limit {
		sh.t.Errorf("%d writers and the slots %v at the same time", sh.writers, sh.slots)
	}
}

func (sh *sharers) leave(g *types.Grant) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if g.Shared {
		delete(sh.slots, g.Slot)
	} else {
		sh.writers--
	}
}

// Callers of three sidecars wait, leave, downgrade, release and drop at random. A writer is always
// alone, each slot has one holder, and nothing is left at the end.
func TestSharersAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			rigs := []*rig{r, r.another(opt), newRigOn(t, r.space, "c", opt)}
			sh := &sharers{t: t, slots: map[int]bool{}, limit: 3}
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() { sh.visit(rigs[i%3], rand.New(rand.NewPCG(seed, uint64(i)))) })
			}
			all.Wait()
			if sh.most != sh.limit {
				t.Errorf("seed %d: at most %d holders at the same time", seed, sh.most)
			}
			time.Sleep(time.Minute)
			for _, r := range rigs {
				r.nothingLeft()
				if n := len(r.losses()); n > 0 {
					t.Errorf("seed %d: %d locks were lost", seed, n)
				}
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// visit acquires the key repeatedly, in several sessions.
func (sh *sharers) visit(r *rig, rnd *rand.Rand) {
	s := r.sessionOf(rnd.IntN(2) == 0)
	pause := func(most time.Duration) { time.Sleep(time.Duration(rnd.Int64N(int64(most)))) }
	for range 30 {
		pause(20 * time.Millisecond)
		req := types.Request{Key: "k", NoCache: true}
		if rnd.IntN(3) > 0 {
			req.Shared, req.Limit = true, sh.limit
		}
		if rnd.IntN(4) > 0 {
			req.Wait = time.Duration(1+rnd.IntN(200)) * time.Millisecond
		}
		ctx, cancel := context.WithCancel(context.Background())
		if rnd.IntN(8) == 0 {
			time.AfterFunc(time.Duration(rnd.IntN(50))*time.Millisecond, cancel)
		}
		g, err := r.m.Acquire(ctx, s, req)
		if err == nil {
			sh.enter(&g)
			sh.hold(r, s, &g, rnd)
		} else if types.CodeOf(err) == "internal" {
			sh.t.Errorf("error %v", err)
		}
		cancel()
		if rnd.IntN(10) == 0 {
			<-s.End(types.EndDropped)
			s = r.sessionOf(rnd.IntN(2) == 0)
		}
	}
	s.End(types.EndDropped)
}

// hold uses a grant for a while, and then ends it in one of several ways. The caller stops
// believing before.
func (sh *sharers) hold(r *rig, s *Session, g *types.Grant, rnd *rand.Rand) {
	time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
	if !g.Shared && rnd.IntN(3) == 0 {
		sh.mu.Lock()
		sh.writers--
		sh.mu.Unlock()
		share, err := r.downgrade(s, *g)
		if err != nil || share.Token != g.Token {
			sh.t.Errorf("downgraded: %+v, %v", share, err)
			return
		}
		if share.Limit == 0 { // without shared waiters, the share has no slot, and calls with a limit are refused
			_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
			if err != nil {
				sh.t.Error(fmt.Errorf("release: %w", err))
			}
			return
		}
		*g = share
		sh.enter(g)
	}
	sh.leave(g)
	if _, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token}); err != nil {
		sh.t.Error(fmt.Errorf("release: %w", err))
	}
}
