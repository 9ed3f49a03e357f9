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

// asker makes acquires with request ids, and knows which of them were told of what.
type asker struct {
	*rig
	s       *holdings.Session
	rng     *rand.Rand
	pending []pendingAsk
	told    map[uuid.UUID][]types.Grant // of what is not given up
	late    []types.Grant               // of what was released by the id
}

// pendingAsk is an acquire that is under way.
type pendingAsk struct {
	req   types.Request
	a     *answer
	leave context.CancelFunc
}

// settle waits until all calls but those that wait in line are over, and notes what they were told.
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

// step does something, which need not be over when it returns.
func (k *asker) step(one *types.Request) {
	req := *one
	told := k.told[req.RequestID]
	switch n := k.rng.IntN(10); {
	case n < 4:
		ctx, leave := context.WithCancel(context.Background())
		k.pending = append(k.pending, pendingAsk{req, k.ask(ctx, k.s, req), leave})
	case n < 6 && len(k.pending) > 0:
		k.pending[k.rng.IntN(len(k.pending))].leave()
	case n < 8 && len(told) > 0: // its answer did not arrive
		k.m.HandBack(k.s, told[len(told)-1])
		k.told[req.RequestID] = told[:len(told)-1]
	case n == 8:
		k.giveUp(one)
	case len(k.late) > 0: // that its answer did not arrive is only seen now
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
	k.settle() // else it is not known who hears what
	k.releaseBy(k.s, req)
	k.late = append(k.late, k.told[req.RequestID]...)
	delete(k.told, req.RequestID)
	left := k.pending[:0]
	for _, p := range k.pending {
		if p.req.RequestID != req.RequestID {
			left = append(left, p)
		} else if <-p.a.done; p.a.err == nil {
			k.t.Errorf("a call goes on that was released: %+v", p.a.g)
		}
	}
	k.pending = left
}

// check sees that who was told of a grant has it, and that nobody else has one.
func (k *asker) check() {
	k.settle()
	known := 0
	for _, told := range k.told {
		known += len(told)
		for _, g := range told {
			if g.Token != told[0].Token || g.Reentry != told[0].Reentry {
				k.t.Errorf("one request was told of %+v and %+v", told[0], g)
			}
			k.mustBe(g)
		}
	}
	if known == 0 && k.stored("k").Held {
		k.t.Error("held, and nobody was told")
	}
}

// Calls with a few ids are made, repeated, left, not delivered and released in whatever order:
// who was told of a grant has it, and in the end nothing is left.
func TestRequestsInAnyOrder(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			k := &asker{rig: r, s: r.sessionOf(true), rng: rand.New(rand.NewPCG(seed, 1)), told: map[uuid.UUID][]types.Grant{}}
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
