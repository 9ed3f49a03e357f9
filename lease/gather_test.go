package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// left is how many calls of the sidecar of a gathering have just left the queue.
const left = 10

// gathering is a queue whose holder is the last of several calls of a sidecar that waited a second for the key. The
// sidecar served the others. Behind it wait a call of another pod and further calls of the sidecar.
type gathering struct {
	*rig
	other       *rig
	first       *answer
	theirs      *answer
	ours        []*answer
	statements  int // number of statements that have queued calls
	queueLength int
}

func newGathering(t *testing.T, ours int) *gathering {
	t.Helper()
	g := &gathering{rig: newRig(t)}
	g.other = g.another()
	o := g.other.eitherSession()
	held := g.other.lock(o, "k")
	calls := []*answer{g.waitLong()}
	for range left - 1 {
		calls = append(calls, g.waitLong())
	}
	g.theirs = g.other.wait(g.other.eitherSession(), "k", types.WaitForever)
	for range ours {
		g.ours = append(g.ours, g.waitLong())
	}
	time.Sleep(time.Second)
	g.other.release(o, held)
	for _, c := range calls[:left-1] {
		c.release(g.rig)
	}
	g.first = calls[left-1]
	g.first.granted(t)
	g.statements, g.queueLength = g.st.count("Enqueue"), g.stored("k").QueueLength
	return g
}

func (g *gathering) waitLong() *answer { return g.wait(g.eitherSession(), "k", types.WaitForever) }

// queuedBy checks how many further statements have queued calls.
func (g *gathering) queuedBy(statements int) {
	g.t.Helper()
	synctest.Wait()
	if n := g.st.count("Enqueue") - g.statements; n != statements {
		g.t.Errorf("%d statements queued calls, expected %d", n, statements)
	}
}

// queued checks how many further calls were queued, and by how many statements.
func (g *gathering) queued(calls, statements int) {
	g.t.Helper()
	g.queuedBy(statements)
	if n := g.stored("k").QueueLength - g.queueLength; n != calls {
		g.t.Errorf("%d more calls are queued, expected %d", n, calls)
	}
}

// served frees the key for each of these calls in turn.
func (g *gathering) served(calls ...*answer) {
	g.t.Helper()
	for i, c := range calls {
		by := g.rig
		if c == g.theirs {
			by = g.other
		}
		synctest.Wait()
		for _, later := range calls[i+1:] {
			if later.isOver() {
				g.t.Fatal("a call was overtaken")
			}
		}
		c.release(by)
	}
}

// Calls come while other calls of their sidecar are served. They are queued together after a delay,
// in their order.
// Proves: promise 5
func TestCallsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 4)
		more := []*answer{g.waitLong(), g.waitLong()}
		time.Sleep(attempt.MaxGather - time.Millisecond)
		more = append(more, g.waitLong())
		g.queued(0, 0)
		time.Sleep(2 * time.Millisecond)
		g.queued(3, 1)
		g.served(append(append([]*answer{g.first, g.theirs}, g.ours...), more...)...)
		g.nothingLeft()
	})
}

// Gathered calls are queued when as many came as have left the queue.
func TestGatheredCallsAreQueuedWhenAllCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 3)
		began := time.Now()
		var more []*answer
		for range left - 1 {
			more = append(more, g.waitLong())
		}
		g.queued(0, 0)
		more = append(more, g.waitLong())
		g.queued(left, 1)
		g.served(append(append([]*answer{g.first, g.theirs}, g.ours...), more...)...)
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %v until the calls were queued", d)
		}
		g.nothingLeft()
	})
}

// If no call of the sidecar is in the queue or has the key, the key may be free soon, so calls are gathered for 2 ms at
// most.
// Proves: promise 5
func TestCallsAreGatheredForLessTimeBehindTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 0)
		g.first.release(g.rig)
		g.theirs.granted(t)
		g.queueLength = 0
		more := []*answer{g.waitLong(), g.waitLong()}
		time.Sleep(2*time.Millisecond - time.Nanosecond)
		g.queued(0, 0)
		time.Sleep(2 * time.Nanosecond)
		g.queued(2, 1)
		g.served(append([]*answer{g.theirs}, more...)...)
		g.nothingLeft()
	})
}

// While a call of the sidecar has the key, the key is not free. So calls are gathered for as long as if it were queued.
// Proves: promise 5
func TestCallsAreGatheredWhileTheLastHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 0)
		more := []*answer{g.waitLong(), g.waitLong()}
		time.Sleep(attempt.MaxGather - time.Nanosecond)
		g.queued(0, 0)
		time.Sleep(2 * time.Nanosecond)
		g.queued(2, 1)
		g.served(append([]*answer{g.first, g.theirs}, more...)...)
		g.nothingLeft()
	})
}

// The last call of the sidecar comes back after the store has confirmed its release, which takes longer than 2 ms. It
// is queued together with the others.
// Proves: promise 5
func TestTheLastComesBackAfterItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 0)
		var more []*answer
		for range left - 1 {
			more = append(more, g.waitLong())
		}
		g.st.set("Release", fault{before: 10 * time.Millisecond})
		g.first.release(g.rig)
		time.Sleep(time.Millisecond)
		g.queueLength = 0 // the call of the other pod has the key
		g.queued(0, 0)
		more = append(more, g.waitLong())
		g.queued(left, 1)
		g.served(append([]*answer{g.theirs}, more...)...)
		g.nothingLeft()
	})
}

// Calls began to be gathered while a call of the sidecar had the key. When the store has confirmed its release, the key
// may be free soon, so the others wait for 2 ms at most from then on.
// Proves: promise 5
func TestGatheringEndsSoonAfterTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 2)
		more := []*answer{g.waitLong(), g.waitLong()}
		g.served(append([]*answer{g.first, g.theirs}, g.ours...)...)
		began := time.Now()
		g.served(more...)
		if d := time.Since(began); d > 2*time.Millisecond {
			t.Errorf("the key was free for %v while calls were gathered", d)
		}
		g.nothingLeft()
	})
}

// If only one sidecar asks for a key, its calls are not gathered after a while.
// Proves: promise 5
func TestCallsAreNotGatheredAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		held := r.lock(s, "k")
		calls := []*answer{r.wait(r.eitherSession(), "k", types.WaitForever)}
		time.Sleep(2*attempt.MaxGather + time.Nanosecond)
		for range 3 {
			calls = append(calls, r.wait(r.eitherSession(), "k", types.WaitForever))
		}
		r.release(s, held)
		before := r.st.count("Enqueue")
		for i := range 20 {
			calls[i].release(r)
			calls = append(calls, r.wait(r.eitherSession(), "k", types.WaitForever))
			synctest.Wait()
			if n := r.st.count("Enqueue") - before; n != i+1 {
				t.Fatalf("%d statements queued %d calls", n, i+1)
			}
		}
		for _, c := range calls[20:] {
			c.release(r)
		}
		r.nothingLeft()
	})
}

// In these cases a call is queued at once, not gathered.
// Proves: promise 5
func TestCallsThatAreNotGathered(t *testing.T) {
	cases := map[string]struct {
		ours   int
		before func(g *gathering)
		req    types.Request
	}{
		"no call has left the queue for some time": {ours: 4, before: func(*gathering) { time.Sleep(attempt.MaxGather) }},
		"its wait ends soon":                       {ours: 4, req: types.Request{Wait: 2*attempt.MaxGather - time.Millisecond}},
		"it is directly behind a call that was just queued": {ours: 4, before: func(g *gathering) {
			g.ask(context.Background(), g.eitherSession(), types.Request{Key: "k", Wait: attempt.MaxGather})
			synctest.Wait()
			g.statements, g.queueLength = g.statements+1, g.queueLength+1
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGathering(t, c.ours)
				if c.before != nil {
					c.before(g)
				}
				if c.req.Wait == 0 {
					c.req.Wait = types.WaitForever
				}
				c.req.Key = "k"
				g.ask(context.Background(), g.eitherSession(), c.req)
				g.queued(1, 1)
			})
		})
	}
}

// After a short wait, calls are gathered for a short time.
// Proves: promise 5
func TestCallsAreGatheredForAPartOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 4)
		last := g.waitLong()
		time.Sleep(attempt.MaxGather)
		g.queued(1, 1)
		g.served(append(append([]*answer{g.first, g.theirs}, g.ours...), last)...)

		o := g.other.eitherSession()
		held := g.other.lock(o, "k")
		first, next := g.waitLong(), []*answer{g.waitLong(), g.waitLong()}
		time.Sleep(10 * time.Millisecond)
		g.other.release(o, held)
		first.release(g.rig)
		next[0].granted(t)
		n := g.st.count("Enqueue")
		next = append(next, g.waitLong())
		time.Sleep(4 * time.Millisecond)
		if g.st.count("Enqueue") != n {
			t.Error("the call was not gathered")
		}
		time.Sleep(2 * time.Millisecond)
		if g.st.count("Enqueue") != n+1 {
			t.Error("the call was gathered for longer than half of the wait before")
		}
		g.served(next...)
		g.nothingLeft()
	})
}

// A gathered call may end in these ways. It leaves nothing behind, and the calls behind it are
// queued.
// Proves: promise 5
func TestGatheredCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGathering(t, 4)
		ctx, leave := context.WithCancel(context.Background())
		leaver := g.ask(ctx, g.eitherSession(), types.Request{Key: "k", Wait: types.WaitForever})
		id := uuid.New()
		s := g.explicitSession()
		named := g.ask(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever, RequestID: id})
		synctest.Wait()
		repeat := g.ask(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever, RequestID: id})
		ended := g.explicitSession()
		ending := g.wait(ended, "k", types.WaitForever)
		timed := g.wait(g.eitherSession(), "k", 2*attempt.MaxGather)
		last := g.waitLong()
		g.queued(0, 0)
		leave()
		ended.End(types.EndDeleted)
		synctest.Wait()
		if !errors.Is(leaver.err, types.ErrCallerLeft) || !errors.Is(ending.err, types.ErrSessionEnded) {
			t.Errorf("they ended with %v and %v", leaver.err, ending.err)
		}
		time.Sleep(attempt.MaxGather)
		g.queued(3, 1)
		time.Sleep(attempt.MaxGather)
		synctest.Wait()
		if _, late := errors.AsType[*types.TimeoutError](timed.err); !late {
			t.Errorf("the call with a limit ended with %v", timed.err)
		}
		g.served(append(append([]*answer{g.first, g.theirs}, g.ours...), named)...)
		if a, b := named.granted(t), repeat.granted(t); a.Token != b.Token {
			t.Errorf("the repeat got token %d, the request %d", b.Token, a.Token)
		}
		last.release(g.rig)
		g.nothingLeft()
	})
}

// Calls are being gathered when one of these events happens. Each call ends with the right outcome
// and leaves nothing behind.
// Proves: promise 5
func TestGatheredCallsMeetTrouble(t *testing.T) {
	cases := map[string]func(g *gathering, gathered []*answer){
		"the sidecar drains": func(g *gathering, gathered []*answer) {
			g.m.Drain()
			for _, c := range gathered {
				<-c.done
				if !errors.Is(c.err, types.ErrDraining) {
					g.t.Errorf("the call ended with %v", c.err)
				}
			}
			if n := g.m.acquirer.Remembered()["keys with arrivals"]; n != 0 {
				g.t.Errorf("arrivals of %d keys are kept", n)
			}
			time.Sleep(attempt.MaxGather)
			g.queuedBy(0)
		},
		"the store is gone": func(g *gathering, gathered []*answer) {
			g.st.set("Enqueue", fault{times: 1, refuse: true})
			for _, c := range gathered {
				<-c.done
				if !store.Unavailable(c.err) {
					g.t.Errorf("the call ended with %v", c.err)
				}
			}
			g.served(append([]*answer{g.first, g.theirs}, g.ours...)...)
			g.nothingLeft()
		},
		"the lease is lost": func(g *gathering, gathered []*answer) {
			for _, l := range g.m.leases.All() {
				g.m.leases.Lose(l, types.LostExpired)
			}
			g.theirs.release(g.other)
			var all sync.WaitGroup
			for _, c := range append(gathered, g.ours...) {
				all.Go(func() { g.release(c.s, c.granted(g.t)) })
			}
			all.Wait()
			time.Sleep(time.Minute)
			g.nothingLeft()
		},
	}
	for name, happens := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGathering(t, 4)
				gathered := []*answer{g.waitLong(), g.waitLong()}
				g.queued(0, 0)
				happens(g, gathered)
			})
		})
	}
}

// The calls of two sidecars return to a key at once. Gathering gives them long cohorts. Otherwise,
// they would alternate in the queue, with cohorts of one or two calls.
func TestCallsThatComeBackHaveLongCohorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 16
		r := newRig(t)
		rigs := []*rig{r, r.another()}
		for _, r := range rigs {
			for op, took := range map[string]time.Duration{"Release": 1300 * time.Microsecond, "Enqueue": 800 * time.Microsecond, "Acquire": 800 * time.Microsecond} {
				r.st.set(op, fault{before: took})
			}
		}
		began, grants := time.Now(), [2]atomic.Int64{}
		var calls sync.WaitGroup
		for i := range 2 * each {
			by := rigs[i%2]
			calls.Go(func() {
				s := by.explicitSession()
				time.Sleep(time.Duration(i) * 3 * time.Millisecond) // they alternate at first
				for time.Since(began) < time.Second {
					g, err := by.m.Acquire(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever})
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(80 * time.Microsecond)
					by.release(s, g)
					grants[i%2].Add(1)
					time.Sleep(time.Duration(60+i) * time.Microsecond)
				}
			})
		}
		calls.Wait()
		for i, r := range rigs {
			n, releases := int(grants[i].Load()), r.st.count("Release")
			t.Logf("%d grants, %d releases in the store, %d statements that queued calls", n, releases, r.st.count("Enqueue"))
			if n < 5*releases {
				t.Errorf("%d grants needed %d releases in the store", n, releases)
			}
		}
		if a, b := grants[0].Load(), grants[1].Load(); 4*min(a, b) < 3*max(a, b) {
			t.Errorf("one sidecar got %d grants, the other %d", a, b)
		}
		r.nothingLeft()
	})
}
