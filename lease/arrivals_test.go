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

// inOrder checks that calls are granted one after the other: each releases when it has the key.
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

// whereHeld is bubble for a test that holds an operation up: one that is inline never is.
func whereHeld(t *testing.T, op string, test func(t *testing.T, opt option)) {
	t.Helper()
	if op == "OpenLeases" {
		bubble(t, test)
		return
	}
	synctest.Test(t, func(t *testing.T) { test(t, func(*types.Config, *store.Traits) {}) })
}

// waits are kinds of requests that wait for a key.
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

// A crowd comes for a key at the same time. It is queued after a few statements, in the
// order in which it came, and who comes later is served later: whatever the store is doing
// for the first of them in that moment.
func TestBurstIsQueuedInOrder(t *testing.T) {
	const crowd = 300
	for _, held := range []bool{false, true} {
		for _, op := range []string{"OpenLeases", "Acquire", "Enqueue"} {
			t.Run(fmt.Sprintf("%s, held %v", op, held), func(t *testing.T) {
				whereHeld(t, op, func(t *testing.T, opt option) {
					r := newRig(t, opt, with(func(c *types.Config) { c.BatchMax, c.MaxSessions = 1000, 1000 }))
					other := r.another(opt)
					o := other.session()
					var g types.Grant
					if held {
						g = other.lock(o, "k")
					}
					proceed := r.st.holdAnswer(op)
					var calls []*answer
					for range crowd {
						calls = append(calls, r.wait(r.sessionOf(true), "k", types.WaitForever))
					}
					if op != "OpenLeases" {
						time.Sleep(5 * time.Millisecond)
					}
					proceed()
					calls = append(calls, r.wait(r.session(), "k", types.WaitForever))
					if n := r.st.count("Acquire") + r.st.count("Enqueue"); op != "OpenLeases" && n > 5 { // with the last
						t.Errorf("%d questions until %d stand in line", n, crowd)
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

// Calls of all kinds keep their order among each other.
func TestArrivalsOfAllKindsKeepTheirOrder(t *testing.T) {
	for first, ahead := range waits() {
		for second, behind := range waits() {
			for _, op := range []string{"OpenLeases", "Acquire", "Enqueue"} {
				t.Run(first+" before "+second+" "+op, func(t *testing.T) {
					whereHeld(t, op, func(t *testing.T, opt option) {
						r := newRig(t, opt)
						r.lock(r.session(), "warm") // its TTL has an open lease
						proceed := r.st.hold(op)
						var calls []*answer
						for _, req := range []types.Request{ahead, behind, ahead, behind} {
							if req.RequestID != uuid.Nil {
								req.RequestID = uuid.New()
							}
							req.Key, req.Wait = "k", types.WaitForever
							calls = append(calls, r.ask(context.Background(), r.sessionOf(true), req))
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

// A group comes to the line of a key when it asks for it.
func TestGroupArrivesBeforeACrowd(t *testing.T) {
	for _, key := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			other := r.another()
			o := other.session()
			held := other.lock(o, key)
			s := r.session()
			proceed := r.st.hold("Acquire")
			group := r.waitAll(s, "a", "b", "c")
			var calls []*answer
			for range 10 {
				calls = append(calls, r.wait(r.sessionOf(true), key, types.WaitForever))
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

// A group that comes behind a crowd does not take the key before it.
func TestGroupArrivesBehindACrowd(t *testing.T) {
	for _, key := range []string{"a", "b"} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			r.lock(r.session(), "warm")
			proceed := r.st.hold("OpenLeases")
			var calls []*answer
			for range 10 {
				calls = append(calls, r.ask(context.Background(), r.sessionOf(true), types.Request{Key: key, Wait: types.WaitForever, TTL: time.Minute}))
				synctest.Wait()
			}
			s := r.session()
			group := r.waitAll(s, "a", "b")
			if group.isOver() {
				t.Fatalf("%s: the group has it before those who came for it: %+v %v", key, group.g, group.err)
			}
			proceed()
			r.inOrder(calls)
			for _, g := range group.granted(t, "a", "b") {
				r.release(s, g)
			}
		})
	}
}

// A call that has asked nothing yet, because another one of the key is before it, leaves at once,
// and those behind it lose nothing.
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
					first := r.wait(r.session(), "k", types.WaitForever)
					s := r.session()
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					leaves := r.ask(ctx, s, types.Request{Key: "k", Wait: time.Second})
					synctest.Wait()
					last := r.wait(r.session(), "k", types.WaitForever)
					c.leave(r, s, cancel)
					synctest.Wait()
					if !leaves.isOver() {
						t.Fatal("it waits for the question of another call")
					}
					if timeout := new(*types.TimeoutError); c.want == nil && !errors.As(leaves.err, timeout) || c.want != nil && !errors.Is(leaves.err, c.want) {
						t.Errorf("told %v", leaves.err)
					}
					proceed()
					r.inOrder([]*answer{first, last})
					r.nothingLeft()
				})
			})
		}
	}
}

// The first fails: those behind it go on.
func TestFirstArrivalFails(t *testing.T) {
	for _, f := range []fault{{times: 1, refuse: true}, {times: 1, lose: true}, {times: 1, forget: true}} {
		for _, op := range []string{"OpenLeases", "Acquire"} {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				f.before = time.Second
				r.st.set(op, f)
				first := r.ask(context.Background(), r.sessionOf(true), types.Request{Key: "k", Wait: types.WaitForever, TTL: time.Minute})
				time.Sleep(time.Millisecond)
				calls := []*answer{r.wait(r.sessionOf(true), "k", types.WaitForever), r.wait(r.sessionOf(true), "k", types.WaitForever)}
				if <-first.done; first.err == nil {
					t.Fatalf("told %+v", first.g)
				}
				time.Sleep(time.Minute)
				r.inOrder(calls)
				time.Sleep(time.Minute)
				r.nothingLeft()
			})
		}
	}
}

// An acquire whose answer brings its call into line does not wait there for others: however
// many stand before it, the answers to other acquires come.
func TestFullLineDelaysNoAcquires(t *testing.T) {
	const limit = 10
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.MaxWaiters, c.BatchMax = limit, limit }))
		other, s := r.another(), r.session()
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
		for range 2 { // their questions stay when they have left
			comeAndLeave()
			synctest.Wait()
		}
		crowded := r.ask(context.Background(), s, types.Request{Key: "b", Wait: types.WaitForever})
		synctest.Wait()
		free := r.ask(context.Background(), s, types.Request{Key: "free"})
		synctest.Wait()
		if !free.isOver() || free.err != nil {
			t.Errorf("a free key is not had: %v", free.err)
		}
		if limited := new(*LimitError); !crowded.isOver() || !errors.As(crowded.err, limited) {
			t.Errorf("told %v", crowded.err)
		}
		proceed()
		synctest.Wait()
		s.End(types.EndDropped)
		synctest.Wait()
		if n := len(r.m.acquirer.Waiting()); n != 0 {
			t.Errorf("%d still stand in line", n)
		}
	})
}
