package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// answers is the result of an AcquireAll that runs beside the test.
type answers struct {
	g    []types.Grant
	err  error
	done chan struct{}
}

func (r *rig) askAll(ctx context.Context, s *holdings.Session, req types.Request, keys ...string) *answers {
	a := &answers{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.g, a.err = r.m.AcquireAll(ctx, s, keys, req)
	}()
	synctest.Wait()
	return a
}

// waitAll starts a wait for several keys beside the test.
func (r *rig) waitAll(s *holdings.Session, keys ...string) *answers {
	return r.askAll(context.Background(), s, types.Request{Wait: types.WaitForever}, keys...)
}

func (a *answers) isOver() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (a *answers) granted(t tester, keys ...string) []types.Grant {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatalf("not granted: %v", a.err)
	}
	for i, key := range keys {
		if a.g[i].Key != key || a.g[i].Token == 0 || a.g[i].ExpiresIn <= 0 || a.g[i].Reentry != 1 {
			t.Fatalf("grant %d: %+v", i, a.g[i])
		}
	}
	return a.g
}

// isFree checks that another session gets each key at once, and releases it.
func (r *rig) isFree(keys ...string) {
	r.t.Helper()
	synctest.Wait()
	for _, key := range keys {
		if l := r.stored(key); l.Held {
			r.t.Errorf("%q is held by %q", key, l.Holder.Session)
		}
	}
}

func TestGroupAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		a := r.askAll(context.Background(), s, types.Request{Owner: "o"}, "c", "a", "b")
		for _, g := range a.granted(t, "c", "a", "b") {
			if h := r.stored(g.Key); h.Token != g.Token || h.Holder.Owner != "o" {
				t.Errorf("got %+v", h)
			}
		}
		if n := r.m.holdings.Remembered()["pending calls"]; s.Held() != 3 || n != 0 {
			t.Errorf("%d held, %d pending", s.Held(), n)
		}
		if n := r.st.count("Acquire"); !r.st.traits.Inline && n != 1 {
			t.Errorf("%d statements", n)
		}
		// If a key is missing, the group gets no key, and the answer names the missing key.
		a = r.askAll(context.Background(), other, types.Request{NoCache: true}, "x", "b", "z")
		<-a.done
		var held *types.HeldError
		if !errors.As(a.err, &held) || held.Lock.Key != "b" || !held.Lock.Held {
			t.Fatalf("%v", a.err)
		}
		r.isFree("x", "z")
		s.End(types.EndDeleted)
		other.End(types.EndDeleted)
		r.nothingLeft()
	})
}

func TestGroupWaits(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		b, d := r.lock(other, "b"), r.lock(other, "d")
		a := r.waitAll(s, "a", "b", "c", "d")
		if r.stored("a").Holder.Session != s.Name() {
			t.Error("the keys before the missing one are not held")
		}
		r.isFree("c")
		// The app does not see the parts of its group.
		part := r.stored("a")
		if v, err := r.m.Get(context.Background(), s, "a", false); err != nil || v.Mine || s.Held() != 0 {
			t.Errorf("shown: %+v, %d held, %v", v, s.Held(), err)
		}
		if p, _ := r.m.List(context.Background(), s, types.ListRequest{Scope: types.ScopeSession, Limit: 10}); len(p.Locks) != 0 {
			t.Errorf("listed: %+v", p)
		}
		if p, _ := r.m.List(context.Background(), s, types.ListRequest{Scope: types.ScopeAll, Limit: 10}); p.Locks[0].Mine {
			t.Errorf("listed as the session's own: %+v", p)
		}
		if _, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "a", Token: part.Token}); err == nil {
			t.Error("a part was released")
		}
		r.release(other, b)
		synctest.Wait()
		if a.isOver() || r.stored("c").Holder.Session != s.Name() {
			t.Error("the group does not continue with the next key")
		}
		r.release(other, d)
		g := a.granted(t, "a", "b", "c", "d")
		if g[0].Token != part.Token || s.Held() != 4 {
			t.Errorf("%d, not %d; %d held", g[0].Token, part.Token, s.Held())
		}
		for _, g := range g {
			if v, _ := r.m.Get(context.Background(), s, g.Key, false); !v.Mine {
				t.Errorf("%q is not shown", g.Key)
			}
			r.release(s, g)
		}
		r.nothingLeft()
	})
}

// Groups that name the same keys in opposite orders do not deadlock.
// Proves: promise 14, trap deadlock
func TestGroupsInOppositeOrders(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		holder, one, other := r.eitherSession(), r.eitherSession(), r.eitherSession()
		a, b := r.lock(holder, "a"), r.lock(holder, "b")
		first := r.askAll(context.Background(), one, types.Request{Wait: time.Minute}, "a", "b")
		second := r.askAll(context.Background(), other, types.Request{Wait: time.Minute}, "b", "a")
		r.release(holder, a)
		r.release(holder, b)
		first.granted(t, "a", "b")
		one.End(types.EndDeleted)
		second.granted(t, "b", "a")
		other.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// A group keeps its queue position: later calls do not get the key before it.
// Proves: promise 14
func TestGroupIsNotOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		s, other := r.eitherSession(), b.explicitSession()
		hot := b.lock(other, "hot")
		a := r.waitAll(s, "a", "hot", "z")
		later := b.wait(other, "hot", types.WaitForever)
		b.release(other, hot)
		g := a.granted(t, "a", "hot", "z")
		synctest.Wait()
		if later.isOver() {
			t.Fatal("overtaken")
		}
		r.release(s, g[1])
		later.granted(t)
	})
}

// A group whose wait ends releases its parts, for each reason.
func TestGroupLeaves(t *testing.T) {
	for name, leave := range map[string]func(r *rig, s *holdings.Session, cancel func()) error{
		"call": func(_ *rig, _ *holdings.Session, cancel func()) error { cancel(); return types.ErrCallerLeft },
		"session": func(_ *rig, s *holdings.Session, _ func()) error {
			s.End(types.EndDropped)
			return types.ErrSessionEnded
		},
		"drain": func(r *rig, _ *holdings.Session, _ func()) error { r.m.Drain(); return types.ErrDraining },
		"time":  func(*rig, *holdings.Session, func()) error { time.Sleep(10 * time.Second); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s, other := r.eitherSession(), r.eitherSession()
				r.lock(other, "b")
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				a := r.askAll(ctx, s, types.Request{Wait: 10 * time.Second}, "a", "b", "c")
				ttl := r.askAll(ctx, nil, types.Request{Wait: 10 * time.Second, Bind: types.BindTTL, TTL: time.Minute}, "A", "b", "c")
				want := leave(r, s, cancel)
				<-a.done
				if name != "session" {
					<-ttl.done
				}
				var timeout *types.TimeoutError
				switch {
				case want != nil && !errors.Is(a.err, want):
					t.Errorf("%v", a.err)
				case want == nil && (!errors.As(a.err, &timeout) || timeout.Lock.Key != "b" || timeout.Position != 1 || timeout.Waited < 10*time.Second):
					t.Errorf("%v", a.err)
				}
				r.isFree("a", "c")
				if l := r.stored("A"); name != "session" && l.Held {
					t.Error("a bind:ttl part is still held")
				}
				if len(r.losses()) != 0 {
					t.Errorf("lost %v", r.losses())
				}
				cancel()
				<-ttl.done
				s.End(types.EndDropped)
				other.End(types.EndDropped)
				r.nothingLeft()
			})
		})
	}
}

// Threads of an explicit session exclude each other by groups as by single keys: one waits until another releases. A group that
// does not wait is told which key is held.
// Proves: trap second thread
func TestThreadsOfASessionWaitForGroups(t *testing.T) {
	for name, mode := range map[string]types.Request{"exclusive": {}, "shared": {Shared: true}} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s := r.explicitSession()
			b := r.lock(s, "b")
			mode.Wait = 0
			_, err := r.m.AcquireAll(context.Background(), s, []string{"c", "b", "a"}, mode)
			if held, ok := errors.AsType[*HeldError](err); !ok || held.Lock.Key != "b" {
				t.Errorf("%s: error %v", name, err)
			}
			r.isFree("a", "c")
			mode.Wait = time.Hour
			waits := r.askAll(context.Background(), s, mode, "c", "b", "a")
			behind := r.askAll(context.Background(), s, types.Request{Wait: time.Hour}, "b", "d")
			time.Sleep(time.Minute)
			if waits.isOver() || behind.isOver() {
				t.Fatalf("%s: over before the key is released: %v, %v", name, waits.err, behind.err)
			}
			r.release(s, b)
			got := waits.granted(t, "c", "b", "a")
			synctest.Wait()
			if behind.isOver() {
				t.Fatalf("%s: two threads of the session have a key: %v", name, behind.err)
			}
			for _, g := range got {
				r.release(s, g)
			}
			for _, g := range behind.granted(t, "b", "d") {
				r.release(s, g)
			}
			r.nothingLeft()
		})
	}
}

// A group in a connection's own session would wait for itself, because the session has no other thread. So it is refused at once,
// even if it would wait for another key before.
// Proves: trap second thread
func TestGroupThatWouldWaitForItself(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.connectionSession(), r.connectionSession()
		r.lock(other, "a")
		x := r.lock(s, "x")
		asked := r.st.count("Acquire")
		for _, shared := range []bool{false, true} {
			keys := []string{"a", "x"}
			if shared { // what a share finds is known only at the key's turn
				keys = keys[1:]
			}
			a := r.askAll(context.Background(), s, types.Request{Wait: time.Hour, Shared: shared}, keys...)
			<-a.done
			if own, ok := errors.AsType[*types.InvalidError](a.err); !ok || own.Of != "field wait_ms" || !strings.Contains(own.Text, `"x"`) {
				t.Errorf("shared %t: error %v", shared, a.err)
			}
			if n := r.st.count("Acquire") - asked; !shared && n != 0 {
				t.Errorf("%d questions to the store", n)
			}
		}
		r.release(s, x)
		y := r.share(s, "y", 0)
		second := r.askAll(context.Background(), s, types.Request{Wait: time.Hour, Shared: true}, "y", "z")
		for _, g := range append(second.granted(t, "y", "z"), y) {
			r.release(s, g)
		}
	})
}

func TestGroupLimits(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxLocksPerSession, c.MaxWaiters = 3, 1 }))
		s, other := r.eitherSession(), r.eitherSession()
		x := r.lock(s, "x")
		var limit *LimitError
		ask := func(keys ...string) error {
			_, err := r.m.AcquireAll(context.Background(), s, keys, types.Request{})
			return err
		}
		if err := ask("a", "b", "c"); !errors.As(err, &limit) || limit.Limit != 3 {
			t.Errorf("%v", err)
		}
		// While a group waits, each of its keys counts as held, and the group counts as one waiting
		// call.
		hot := r.lock(other, "b")
		a := r.waitAll(s, "a", "b")
		if _, err := r.try(s, "y"); !errors.As(err, &limit) {
			t.Errorf("%v", err)
		}
		if w := r.wait(other, "a", types.WaitForever); !w.isOver() || !errors.As(w.err, &limit) || limit.Setting != "LOCKSIDECAR_MAX_WAITERS" {
			t.Errorf("%v", w.err)
		}
		r.release(s, x)
		r.release(other, hot)
		a.granted(t, "a", "b")
		if err := ask("y"); err != nil {
			t.Error(err)
		}
		if err := ask("z"); !errors.As(err, &limit) {
			t.Errorf("%v", err)
		}
		s.End(types.EndDeleted)
		other.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Parts that are handed back do not keep their MinHold, because they were not delivered.
func TestGroupMinHold(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		r.lock(other, "b")
		for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
			req := types.Request{Wait: time.Second, MinHold: time.Hour, Bind: bind, TTL: 2 * time.Hour}
			a := r.askAll(context.Background(), s, req, "a", "b", "c")
			r.isFree("c")
			if !r.stored("a").Held {
				t.Error("not held")
			}
			<-a.done
			r.isFree("a")
		}
		g := r.askAll(context.Background(), s, types.Request{MinHold: time.Hour}, "x", "y").granted(t, "x", "y")
		r.release(s, g[0])
		synctest.Wait()
		if l := r.stored("x"); !l.Held || !l.Holder.HoldPending {
			t.Errorf("got %+v", l)
		}
	})
}

// A group that is repeated with its request id gets the same grants. A repeat that fails does not
// hand back the grants of the first call.
func TestGroupRepeats(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.eitherSession()
		req := types.Request{Bind: types.BindTTL, TTL: time.Minute, RequestID: uuid.New(), NoCache: true}
		first := r.askAll(context.Background(), nil, req, "a", "b").granted(t, "a", "b")
		again := r.askAll(context.Background(), nil, req, "a", "b").granted(t, "a", "b")
		if first[0].Token != again[0].Token || first[1].Token != again[1].Token {
			t.Errorf("got %+v, then %+v", first, again)
		}
		r.m.HandBack(nil, again[0]) // the first call still has it
		r.isHeldUnder(first[0])
		r.release(nil, first[1])
		r.lock(other, "b")
		a := r.askAll(context.Background(), nil, req, "a", "b")
		<-a.done
		var held *types.HeldError
		if !errors.As(a.err, &held) || held.Lock.Key != "b" {
			t.Fatalf("%v", a.err)
		}
		synctest.Wait()
		r.isHeldUnder(first[0])
		// An undelivered grant is handed back, also with a request id, and acquired again.
		req.RequestID, req.Wait = uuid.New(), 5*time.Second
		a = r.askAll(context.Background(), nil, req, "c", "b", "d")
		<-a.done
		r.isFree("d", "c")
		other.End(types.EndDeleted)
		r.askAll(context.Background(), nil, req, "c", "b", "d").granted(t, "c", "b", "d")
	})
}

func (r *rig) isHeldUnder(g types.Grant) {
	r.t.Helper()
	synctest.Wait()
	if l := r.stored(g.Key); l.Token != g.Token || !l.Held {
		r.t.Errorf("%q is not held under %d: %+v", g.Key, g.Token, l)
	}
}

// A key of a group counts once against the limit, and cannot be reentered.
func TestGroupPart(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxLocksPerSession = 3 }))
		s, other := r.eitherSession(), r.eitherSession()
		b := r.lock(other, "b")
		a := r.askAll(context.Background(), s, types.Request{Wait: types.WaitForever, Owner: "o"}, "a", "b")
		enter := types.Request{Key: "a", Owner: "o", Reentrant: true, NoCache: true}
		var held *types.HeldError
		if _, err := r.m.Acquire(context.Background(), s, enter); !errors.As(err, &held) {
			t.Errorf("%v", err)
		}
		r.lock(s, "y")
		r.release(other, b)
		a.granted(t, "a", "b")
		if g, err := r.m.Acquire(context.Background(), s, enter); err != nil || g.Reentry != 2 {
			t.Errorf("got %+v, %v", g, err)
		}
	})
}

// A group with a request id uses the same attempt id again for a key that it handed back. It does
// so only after the release, which would otherwise free the new grant.
func TestGroupAsksAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		far := r.another()
		other := far.eitherSession()
		b := far.lock(other, "b")
		release := r.st.hold("Release")
		req := types.Request{Bind: types.BindTTL, TTL: time.Minute, RequestID: uuid.New(), Wait: types.WaitForever}
		a := r.askAll(context.Background(), nil, req, "a", "b", "c")
		far.release(other, b)
		time.Sleep(time.Second)
		release()
		for _, g := range a.granted(t, "a", "b", "c") {
			time.Sleep(time.Second)
			r.isHeldUnder(g)
		}
	})
}
