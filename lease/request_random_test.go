package lease

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// asker makes acquires with request ids, and stores their answers.
type asker struct {
	*rig
	s       *holdings.Session
	rng     *rand.Rand
	pending []pendingAsk
	told    map[uuid.UUID][]types.Grant // grants that are not given up
	late    []types.Grant               // grants that were released by the id
}

// pendingAsk is an acquire in progress.
type pendingAsk struct {
	req   types.Request
	a     *answer
	leave context.CancelFunc
}

// settle waits until all calls that are not queued have ended, and stores their answers.
func (k *asker) settle() {
	time.Sleep(30 * time.Second)
	synctest.Wait()
	left := k.pending[:0]
	for _, p := range k.pending {
		switch {
		case !p.a.isOver():
			left = append(left, p)
		case p.a.err == nil:
			k.told[p.req.RequestID] = append(k.told[p.req.RequestID], p.a.g)
		}
	}
	k.pending = left
}

// step starts an operation, which may still run when step returns.
func (k *asker) step(one *types.Request) {
	req := *one
	told := k.told[req.RequestID]
	switch n := k.rng.IntN(10); {
	case n < 4:
		ctx, leave := context.WithCancel(context.Background())
		k.pending = append(k.pending, pendingAsk{req, k.ask(ctx, k.s, req), leave})
	case n < 6 && len(k.pending) > 0:
		k.pending[k.rng.IntN(len(k.pending))].leave()
	case n < 8 && len(told) > 0: // hand back a grant whose answer did not arrive
		k.m.HandBack(k.s, told[len(told)-1])
		k.told[req.RequestID] = told[:len(told)-1]
	case n == 8:
		k.giveUp(one)
	case len(k.late) > 0: // hand back a released grant, whose answer did not arrive
		k.m.HandBack(k.s, k.late[0])
		k.late = k.late[1:]
	}
	if k.rng.IntN(2) == 0 {
		synctest.Wait()
	}
	time.Sleep(time.Duration(k.rng.IntN(3)) * time.Millisecond)
}

// giveUp releases by the id, which is not used again.
func (k *asker) giveUp(one *types.Request) {
	req := *one
	one.RequestID = uuid.New()
	k.settle() // so that all answers are known
	k.releaseBy(k.s, req)
	k.late = append(k.late, k.told[req.RequestID]...)
	delete(k.told, req.RequestID)
	left := k.pending[:0]
	for _, p := range k.pending {
		if p.req.RequestID != req.RequestID {
			left = append(left, p)
		} else if <-p.a.done; p.a.err == nil {
			k.t.Errorf("a call continues after its release: %+v", p.a.g)
		}
	}
	k.pending = left
}

// check compares the answers with the holders in the store.
func (k *asker) check() {
	k.settle()
	known := 0
	for _, told := range k.told {
		known += len(told)
		for _, g := range told {
			if g.Token != told[0].Token || g.Reentry != told[0].Reentry {
				k.t.Errorf("one request got %+v and %+v", told[0], g)
			}
			k.mustBe(g)
		}
	}
	if known == 0 && k.stored("k").Held {
		k.t.Error("held although no call got the lock")
	}
}

// Calls with a few ids are made, repeated, cancelled, not delivered and released in any order. A
// delivered grant is held, and nothing is left at the end.
func TestRequestsInAnyOrder(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			k := &asker{rig: r, s: r.explicitSession(), rng: rand.New(rand.NewPCG(seed, 1)), told: map[uuid.UUID][]types.Grant{}}
			requests := make([]types.Request, 4)
			for i := range requests {
				requests[i] = once([]time.Duration{0, types.WaitForever}[i%2])
				requests[i].NoCache = false
				requests[i].Owner, requests[i].Reentrant = "o", i >= 2
				requests[i].Data = nil
			}
			for _, op := range []string{"Acquire", "Enqueue", "Cancel", "Release", "Withdraw"} {
				r.st.set(op, fault{before: time.Duration(k.rng.IntN(3)) * time.Millisecond, after: time.Duration(k.rng.IntN(3)) * time.Millisecond})
			}
			for range 6 {
				for range 10 {
					k.step(&requests[k.rng.IntN(len(requests))])
				}
				k.check()
			}
			for i := range requests {
				k.giveUp(&requests[i])
			}
			r.nothingLeft()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}
