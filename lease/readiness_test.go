package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

var probing = with(func(c *types.Config) { c.Probes = true })

// after lets virtual time pass, and all that follows happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestReadyNeedsAGrant: a store that says that it is usable and grants nothing makes the sidecar not ready, from the start on.
// Proves: rule readiness
func TestReadyNeedsAGrant(t *testing.T) {
	for _, op := range []string{"OpenLeases", "Acquire"} {
		synctest.Test(t, func(t *testing.T) {
			log := &bytes.Buffer{}
			logging := with(func(c *types.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			space := memory.NewSpace()
			st := newDouble(space.Open(store.Identity{Namespace: "test", Instance: "a", Pod: "pod-a"}))
			st.set(op, fault{refuse: true})
			r := newRigWith(t, space, st, "a", probing, logging)
			if r.m.Ready() == nil {
				t.Errorf("%s: ready before the first probe", op)
			}
			after(readiness.Interval)
			if !errors.Is(r.m.Ready(), errBroken) {
				t.Errorf("%s fails, ready: %v", op, r.m.Ready())
			}
			after(time.Minute)
			if n := strings.Count(log.String(), "the store grants no locks"); n != 1 || !strings.Contains(log.String(), errBroken.Error()) {
				t.Errorf("%s: %d lines of the cause, want 1:\n%s", op, n, log)
			}
			r.st.lift(op)
			after(readiness.Interval)
			if r.m.Ready() != nil || !strings.Contains(log.String(), "the store grants locks again") {
				t.Errorf("%s: not ready again: %v\n%s", op, r.m.Ready(), log)
			}
		})
	}
}

// TestOneFailureIsNoVerdict: after the failure of one call a probe decides, and the sidecar stays ready meanwhile.
// Proves: rule readiness
func TestOneFailureIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, probing)
		synctest.Wait()
		s, ctx := r.eitherSession(), context.Background()
		for op, call := range map[string]func(){
			"Acquire": func() { <-r.ask(ctx, s, types.Request{Key: "k"}).done },
			"Release": func() {
				a := r.ask(ctx, nil, types.Request{Key: "released", Bind: types.BindTTL, TTL: time.Minute})
				<-a.done
				_, _ = r.m.Release(ctx, nil, types.ReleaseRequest{Key: "released", Token: a.g.Token})
			},
		} {
			after(time.Minute)
			before := r.st.count("OpenLeases")
			r.st.set(op, fault{refuse: true, times: 1})
			unready := 0
			call()
			for range 100 {
				if r.m.Ready() != nil {
					unready++
				}
				after(10 * time.Millisecond)
			}
			if unready > 0 {
				t.Errorf("%s failed once, and the sidecar was not ready at %d of 100 looks", op, unready)
			}
			if n := r.st.count("OpenLeases") - before; n == 0 || n > 2 { // that of the session may be one
				t.Errorf("%s failed once: %d leases for probes", op, n)
			}
		}
	})
}

// TestFailingCallsMakeItUnready: two calls in a row, one of them a probe, must fail. A probe follows in each second.
// Proves: rule readiness
func TestFailingCallsMakeItUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, probing)
		after(time.Hour)
		if r.m.Ready() != nil || r.st.count("Acquire") != 1 {
			t.Errorf("ready: %v after %d probes in an hour without calls, want 1", r.m.Ready(), r.st.count("Acquire"))
		}
		s, ctx := r.eitherSession(), context.Background()
		r.st.set("Acquire", fault{refuse: true})
		before, calls := r.st.count("Acquire"), 0
		for range 100 {
			a := r.ask(ctx, s, types.Request{Key: "k", NoCache: true})
			<-a.done
			calls++
			after(100 * time.Millisecond)
		}
		if !errors.Is(r.m.Ready(), errBroken) {
			t.Errorf("ready: %v", r.m.Ready())
		}
		if probes := r.st.count("Acquire") - before - calls; probes < 5 || probes > 11 {
			t.Errorf("%d probes in 10 s", probes)
		}
		r.st.lift("Acquire")
		after(readiness.Interval)
		if r.m.Ready() != nil {
			t.Errorf("not ready again: %v", r.m.Ready())
		}
	})
}

// TestQuietTimeIsNotReady: the sidecar tells for how long, and is ready afterwards.
// Proves: rule readiness
func TestQuietTimeIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, probing)
		synctest.Wait()
		r.st.setQuiet(7 * time.Second)
		if r.m.Ready() != nil { // and it asks the store
			t.Errorf("%v before a probe", r.m.Ready())
		}
		after(1500 * time.Millisecond)
		quiet, ok := errors.AsType[*QuietError](r.m.Ready())
		if !ok || quiet.Left <= 5*time.Second || quiet.Left > 7*time.Second {
			t.Errorf("ready: %v", r.m.Ready())
		}
		r.st.setQuiet(0)
		after(readiness.Interval)
		if r.m.Ready() != nil {
			t.Errorf("not ready after it: %v", r.m.Ready())
		}
	})
}

// TestQuietTimeIsNamedBeforeTheFirstProbe: the store has heard of it before the first probe has its answer.
// Proves: rule quiet time
func TestQuietTimeIsNamedBeforeTheFirstProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.NewSpace()
		st := newDouble(space.Open(store.Identity{Namespace: "test", Instance: "a", Pod: "pod-a"}))
		st.setQuiet(7 * time.Second)
		st.set("OpenLeases", fault{before: time.Second})
		r := newRigWith(t, space, st, "a", probing)
		if quiet, ok := errors.AsType[*QuietError](r.m.Ready()); !ok || quiet.Left != 7*time.Second {
			t.Errorf("ready: %v", r.m.Ready())
		}
	})
}

// TestProbesLeaveNothing: neither leases nor locks, also if a probe was under way at the stop, or its lease could not be revoked.
// Proves: rule readiness
func TestProbesLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.NewSpace()
		st := newDouble(space.Open(store.Identity{Namespace: "test", Instance: "a", Pod: "pod-a"}))
		st.set("Revoke", fault{refuse: true, times: 1})
		r := newRigWith(t, space, st, "a", probing)
		synctest.Wait()
		if n := r.held(); n != 1 {
			t.Fatalf("%d locks of a probe that was not revoked, want 1", n)
		}
		after(readiness.Interval)
		if n := r.held(); n != 0 {
			t.Errorf("%d locks are left by probes, though nothing else fails", n)
		}
		r.st.set("Revoke", fault{refuse: true})
		r.m.judge.Doubt()
		after(3 * readiness.Interval)
		if n := r.held(); n != 1 || !errors.Is(r.m.Ready(), errBroken) {
			t.Errorf("%d locks of probes that cannot be revoked, want 1; ready: %v", n, r.m.Ready())
		}
		r.st.lift("Revoke")
		after(readiness.Interval)
		if n := r.held(); n != 0 || r.m.Ready() != nil {
			t.Errorf("%d locks are left by probes; ready: %v", n, r.m.Ready())
		}
		goOn := r.st.holdAnswer("Acquire")
		r.m.judge.Doubt()
		after(readiness.Interval)
		stopped := make(chan struct{})
		go func() {
			r.m.Stop()
			close(stopped)
		}()
		synctest.Wait()
		goOn()
		<-stopped
		if n := r.held(); n != 0 {
			t.Errorf("%d locks are left by a probe during the stop", n)
		}
	})
}

// held counts the locks in the store.
func (r *rig) held() int {
	locks, err := r.st.Store.List(context.Background(), store.Query{Limit: 10})
	r.must(err)
	return len(locks)
}
