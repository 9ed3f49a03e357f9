package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// inOrder checks that calls are granted one after the other. Each call releases the key when it has
// it.
func (r *rig) inOrder(calls []*answer) {
	r.t.Helper()
	for i, a := range calls {
		synctest.Wait()
		for j, later := range calls[i+1:] {
			if later.isOver() && later.err == nil {
				r.t.Fatalf("call %d is granted before call %d", i+1+j, i)
			}
		}
		g := a.granted(r.t)
		_, err := r.m.Release(context.Background(), a.s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		r.must(err)
	}
}

// whereHeld is bubble for a test that holds up an operation. An inline lane cannot be held up.
func whereHeld(t *testing.T, op string, test func(t *testing.T, opt option)) {
	t.Helper()
	if op == "OpenLeases" {
		bubble(t, test)
		return
	}
	synctest.Test(t, func(t *testing.T) { test(t, func(*types.Config, *store.Traits) {}) })
}

// waits are the kinds of requests that wait for a key.
func waits() map[string]types.Request {
	return map[string]types.Request{
		"plain":                 {},
		"no-cache":              {NoCache: true},
		"another TTL":           {TTL: time.Minute},
		"with a hold":           {MinHold: time.Nanosecond},
		"skipped":               {Skip: true},
		"reentrant":             {Reentrant: true, Owner: "o"},
		"bind:ttl":              {Bind: types.BindTTL, TTL: time.Hour},
		"bind:ttl, with a name": {Bind: types.BindTTL, TTL: time.Hour, RequestID: uuid.New()},
	}
}

// Many calls come for a key at the same time. A few statements queue them in the order in which
// they came, and later calls are served later. This holds for every statement that the first call
// may be in.
// Proves: promise 5
func TestBurstIsQueuedInOrder(t *testing.T) {
	const crowd = 300
	for _, held := range []bool{false, true} {
		for _, op := range []string{"OpenLeases", "Acquire", "Enqueue"} {
			t.Run(fmt.Sprintf("%s, held %v", op, held), func(t *testing.T) {
				whereHeld(t, op, func(t *testing.T, opt option) {
					r := newRig(t, opt, with(func(c *types.Config) { c.BatchMax, c.MaxSessions = 1000, 1000 }))
					other := r.another(opt)
					o := other.eitherSession()
					var g types.Grant
					if held {
						g = other.lock(o, "k")
					}
					proceed := r.st.holdAnswer(op)
					var calls []*answer
					for range crowd {
						calls = append(calls, r.wait(r.explicitSession(), "k", types.WaitForever))
					}
					if op != "OpenLeases" {
						time.Sleep(5 * time.Millisecond)
					}
					proceed()
					calls = append(calls, r.wait(r.eitherSession(), "k", types.WaitForever))
					if n := r.st.count("Acquire") + r.st.count("Enqueue"); op != "OpenLeases" && n > 5 { // includes the last call
						t.Errorf("%d statements until %d calls are queued", n, crowd)
					}
					if held {
						other.release(o, g)
					}
					r.inOrder(calls)
					r.nothingLeft()
				})
			})
		}
	}
}

// Calls of different kinds keep their order.
// Proves: promise 5
func TestArrivalsOfAllKindsKeepTheirOrder(t *testing.T) {
	for first, ahead := range waits() {
		for second, behind := range waits() {
			for _, op := range []string{"OpenLeases", "Acquire", "Enqueue"} {
				t.Run(first+" before "+second+" "+op, func(t *testing.T) {
					whereHeld(t, op, func(t *testing.T, opt option) {
						r := newRig(t, opt)
						r.lock(r.eitherSession(), "warm") // opens the lease for its TTL
						proceed := r.st.hold(op)
						var calls []*answer
						for _, req := range []types.Request{ahead, behind, ahead, behind} {
							if req.RequestID != uuid.Nil {
								req.RequestID = uuid.New()
							}
							req.Key, req.Wait = "k", types.WaitForever
							calls = append(calls, r.ask(context.Background(), r.explicitSession(), req))
							synctest.Wait()
						}
						time.Sleep(5 * time.Millisecond)
						proceed()
						r.inOrder(calls)
						time.Sleep(time.Minute)
					})
				})
			}
		}
	}
}

// A group joins a key's queue when it asks for that key.
func TestGroupArrivesBeforeACrowd(t *testing.T) {
	for _, key := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			other := r.another()
			o := other.eitherSession()
			held := other.lock(o, key)
			s := r.eitherSession()
			proceed := r.st.hold("Acquire")
			group := r.waitAll(s, "a", "b", "c")
			var calls []*answer
			for range 10 {
				calls = append(calls, r.wait(r.explicitSession(), key, types.WaitForever))
			}
			proceed()
			synctest.Wait()
			other.release(o, held)
			for _, g := range group.granted(t, "a", "b", "c") {
				r.release(s, g)
			}
			r.inOrder(calls)
			r.nothingLeft()
		})
	}
}

// A group that comes after other calls does not get the key before them.
func TestGroupArrivesBehindACrowd(t *testing.T) {
	for _, key := range []string{"a", "b"} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			r.lock(r.eitherSession(), "warm")
			proceed := r.st.hold("OpenLeases")
			var calls []*answer
			for range 10 {
				calls = append(calls, r.ask(context.Background(), r.explicitSession(), types.Request{Key: key, Wait: types.WaitForever, TTL: time.Minute}))
				synctest.Wait()
			}
			s := r.eitherSession()
			group := r.waitAll(s, "a", "b")
			if group.isOver() {
				t.Fatalf("%s: the group was granted before the calls that came first: %+v %v", key, group.g, group.err)
			}
			proceed()
			r.inOrder(calls)
			for _, g := range group.granted(t, "a", "b") {
				r.release(s, g)
			}
		})
	}
}

// A call that waits behind another call of the key, and has not asked the store yet, leaves at
// once. The calls behind it keep their order.
func TestArrivalLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(r *rig, s *holdings.Session, cancel context.CancelFunc)
		want  error
	}{
		"session ends": {func(_ *rig, s *holdings.Session, _ context.CancelFunc) { s.End(types.EndDropped) }, types.ErrSessionEnded},
		"caller left":  {func(_ *rig, _ *holdings.Session, cancel context.CancelFunc) { cancel() }, types.ErrCallerLeft},
		"time is up":   {func(*rig, *holdings.Session, context.CancelFunc) { time.Sleep(time.Second) }, nil},
	} {
		for _, op := range []string{"OpenLeases", "Acquire"} {
			t.Run(name+" "+op, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					proceed := r.st.hold(op)
					first := r.wait(r.eitherSession(), "k", types.WaitForever)
					s := r.eitherSession()
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					leaves := r.ask(ctx, s, types.Request{Key: "k", Wait: time.Second})
					synctest.Wait()
					last := r.wait(r.eitherSession(), "k", types.WaitForever)
					c.leave(r, s, cancel)
					synctest.Wait()
					if !leaves.isOver() {
						t.Fatal("it waits for the statement of another call")
					}
					if timeout := new(*types.TimeoutError); c.want == nil && !errors.As(leaves.err, timeout) || c.want != nil && !errors.Is(leaves.err, c.want) {
						t.Errorf("error %v", leaves.err)
					}
					proceed()
					r.inOrder([]*answer{first, last})
					r.nothingLeft()
				})
			})
		}
	}
}

// The first call fails, and the calls behind it continue.
func TestFirstArrivalFails(t *testing.T) {
	for _, f := range []fault{{times: 1, refuse: true}, {times: 1, lose: true}, {times: 1, forget: true}} {
		for _, op := range []string{"OpenLeases", "Acquire"} {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				f.before = time.Second
				r.st.set(op, f)
				first := r.ask(context.Background(), r.explicitSession(), types.Request{Key: "k", Wait: types.WaitForever, TTL: time.Minute})
				time.Sleep(time.Millisecond)
				calls := []*answer{r.wait(r.explicitSession(), "k", types.WaitForever), r.wait(r.explicitSession(), "k", types.WaitForever)}
				if <-first.done; first.err == nil {
					t.Fatalf("got %+v", first.g)
				}
				time.Sleep(time.Minute)
				r.inOrder(calls)
				time.Sleep(time.Minute)
				r.nothingLeft()
			})
		}
	}
}

// An acquire whose answer puts its call into a full queue does not wait for the queue. So the
// answers of other acquires are not delayed.
func TestFullLineDelaysNoAcquires(t *testing.T) {
	const limit = 10
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.MaxWaiters, c.BatchMax = limit, limit }))
		other, s := r.another(), r.eitherSession()
		other.lockTTL("a", time.Hour)
		other.lockTTL("b", time.Hour)
		proceed := r.st.hold("Enqueue")
		comeAndLeave := func() {
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			for range limit {
				r.ask(ctx, s, types.Request{Key: "a", Wait: types.WaitForever})
				synctest.Wait()
			}
		}
		for range 2 { // their statements continue after the calls have left
			comeAndLeave()
			synctest.Wait()
		}
		crowded := r.ask(context.Background(), s, types.Request{Key: "b", Wait: types.WaitForever})
		synctest.Wait()
		free := r.ask(context.Background(), s, types.Request{Key: "free"})
		synctest.Wait()
		if !free.isOver() || free.err != nil {
			t.Errorf("a free key is not granted: %v", free.err)
		}
		if limited := new(*LimitError); !crowded.isOver() || !errors.As(crowded.err, limited) {
			t.Errorf("error %v", crowded.err)
		}
		proceed()
		synctest.Wait()
		s.End(types.EndDropped)
		synctest.Wait()
		if n := len(r.m.acquirer.Queue.Waiting()); n != 0 {
			t.Errorf("%d calls are still queued", n)
		}
	})
}
