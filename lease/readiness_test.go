package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

var probing = with(func(c *types.Config) { c.Probes = true })

// after lets virtual time pass, and all that follows happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
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
		after(2 * time.Second)
		if r.m.Ready() != nil {
			t.Errorf("not ready again: %v", r.m.Ready())
		}
	})
}
