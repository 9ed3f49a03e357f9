package lease

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// The locks of a dead sidecar are free when its successor is ready.
func TestReapPredecessors(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		dead := newRig(t, opt)
		next := dead.another(opt)
		s := dead.eitherSession()
		dead.lock(s, "k")
		kept := dead.lockTTL("ttl", time.Hour)
		dead.st.setAll(fault{lose: true}) // the first sidecar is dead
		next.st.set("ReapInstance", fault{refuse: true})
		done := false
		next.m.ReapPredecessors([]string{"unknown", "a"}, func() { done = true })
		if err := next.m.Ready(); err == nil || !strings.Contains(err.Error(), "the sidecar that ran here before") {
			t.Errorf("ready: %v", err)
		}
		o := next.eitherSession()
		g := next.lock(o, "other") // other keys are granted meanwhile
		next.release(o, g)
		time.Sleep(500 * time.Millisecond)
		if done || next.m.Ready() == nil {
			t.Error("ready, but the predecessor's lease is not revoked")
		}
		time.Sleep(5 * time.Second) // leases that cannot be revoked expire
		if done || next.m.Ready() != nil {
			t.Errorf("done: %v, ready: %v after many tries", done, next.m.Ready())
		}
		next.st.lift("ReapInstance")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !done || next.m.Ready() != nil {
			t.Errorf("done: %v, ready: %v", done, next.m.Ready())
		}
		next.lock(o, "k")
		next.mustBe(kept)
		next.m.Stop()
		if !next.m.LeftNothing() {
			t.Error("the successor has left a lease")
		}
	})
}

func TestReapWithoutPredecessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		done := false
		r.m.ReapPredecessors(nil, func() { done = true })
		if !done || r.m.Ready() != nil || r.st.count("ReapInstance") != 0 {
			t.Errorf("done: %v, ready: %v", done, r.m.Ready())
		}
	})
}

// Stop reports whether a successor has leases to revoke.
func TestLeftNothing(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*rig)
		want   bool
	}{
		"nothing used": {func(*rig) {}, true},
		"all revoked":  {func(r *rig) { r.lock(r.eitherSession(), "k") }, true},
		"not revoked":  {func(r *rig) { r.lock(r.eitherSession(), "k"); r.st.set("Revoke", fault{refuse: true}) }, false},
		"lost before, and revoked at last": {func(r *rig) {
			r.lock(r.eitherSession(), "k")
			r.st.set("Revoke", fault{times: 3, refuse: true})
			r.clk.stop(time.Minute)
			time.Sleep(20 * time.Second)
		}, true},
		"lost, still not revoked": {func(r *rig) {
			r.lock(r.eitherSession(), "k")
			r.st.set("Revoke", fault{refuse: true})
			r.clk.stop(time.Minute)
			time.Sleep(20 * time.Second)
		}, false},
		"lost before its deadline": {func(r *rig) {
			r.lock(r.eitherSession(), "k")
			r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		}, true},
		"lost before its deadline, not revoked": {func(r *rig) {
			r.lock(r.eitherSession(), "k")
			r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
			r.st.set("Revoke", fault{refuse: true})
		}, false},
		"opening, who knows": {func(r *rig) {
			r.st.set("OpenLeases", fault{forget: true})
			r.st.set("Revoke", fault{refuse: true})
			_, err := r.try(r.eitherSession(), "k")
			if !store.OutcomeUnknown(err) {
				r.t.Errorf("error %v", err)
			}
		}, false},
		"predecessors": {func(r *rig) {
			r.st.set("ReapInstance", fault{refuse: true})
			r.m.ReapPredecessors([]string{"x"}, func() { r.t.Error("done") })
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				c.before(r)
				r.m.Stop()
				if got := r.m.LeftNothing(); got != c.want {
					t.Errorf("left nothing: %v", got)
				}
			})
		})
	}
}

// A bind:ttl grant that was not delivered is handed back, unless another sidecar has delivered it.
func TestUndeliveredElsewhere(t *testing.T) {
	for name, elsewhere := range map[string]bool{"delivered elsewhere": true, "not delivered": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				req := repeatable(0)
				first, err := r.m.Acquire(context.Background(), nil, req)
				r.must(err)
				if elsewhere {
					second, err := other.m.Acquire(context.Background(), nil, req)
					r.must(err)
					if second.Token != first.Token {
						t.Fatalf("tokens %d and %d", first.Token, second.Token)
					}
				}
				r.m.HandBack(nil, first)
				time.Sleep(time.Second)
				if held := r.stored("k").Held; held != elsewhere {
					t.Errorf("held: %v", held)
				}
			})
		})
	}
}

// The same holds if the call has left before its attempt won, and if the outcome of the first
// attempt is unknown and it is withdrawn.
func TestUndeliveredAttemptElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		leave bool
	}{
		"left":    {fault{times: 1, after: time.Second}, true},
		"unknown": {fault{times: 1, forget: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				req := repeatable(0)
				r.st.set("Acquire", c.fault)
				r.st.set("Withdraw", fault{before: time.Second})
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				a := r.ask(ctx, nil, req)
				synctest.Wait()
				if c.leave {
					leave()
				}
				<-a.done
				got, err := other.m.Acquire(context.Background(), nil, req)
				r.must(err)
				time.Sleep(30 * time.Second)
				r.mustBe(got)
			})
		})
	}
}
