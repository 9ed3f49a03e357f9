package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// succeed releases a lock with a success and a result.
func (r *rig) succeed(s *holdings.Session, g types.Grant) {
	r.t.Helper()
	_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token, Outcome: store.Success, Result: []byte(`1`)})
	r.must(err)
}

func (a *answer) skipped(t tester) {
	t.Helper()
	<-a.done
	if skip, ok := errors.AsType[*types.SkippedError](a.err); !ok || string(skip.Result) != "1" || skip.Key != "k" {
		t.Errorf("got %+v, %v", a.g, a.err)
	}
}

var skipping = types.Request{Key: "k", Wait: types.WaitForever, Skip: true, TTL: time.Hour}

// nobodyIsSkipped checks that the store has forgotten all skipped waiters.
func (r *rig) nobodyIsSkipped() {
	r.t.Helper()
	for a := range r.st.attempts {
		answers, err := r.st.Store.Check(context.Background(), []store.Attempt{a})
		if r.must(err); answers[0].Outcome == store.Skipped {
			r.t.Errorf("a skipped waiter of %q is stored", a.Key)
		}
	}
}

// A success ends the waits of all skip-waiters on all sidecars, in each way that the news can come.
// The other waiters stay queued.
func TestSkip(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"by news":            func(*rig) {},
		"by a check":         func(r *rig) { r.st.dropNews = true },
		"forgetting fails":   func(r *rig) { r.st.set("Cancel", fault{times: 3, lose: true}) },
		"forgetting unheard": func(r *rig) { r.st.set("Cancel", fault{times: 3, forget: true}) },
		"row locked":         func(r *rig) { r.st.lockRows("k"); time.AfterFunc(8*time.Second, func() { r.st.lockRows() }) },
	} {
		for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
			t.Run(name+" "+bind.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T, opt option) {
					r := newRig(t, opt)
					other := r.another(opt)
					o, s := other.eitherSession(), r.eitherSession()
					g := other.lock(o, "k")
					req := skipping
					req.Bind = bind
					ctx, ttl := context.Background(), time.Duration(0)
					if bind == types.BindSession {
						ttl = req.TTL
					}
					first := r.ask(ctx, s, req)
					synctest.Wait()
					// This call keeps the lease of the skipped waiters open.
					next := r.ask(ctx, s, types.Request{Key: "k", Wait: types.WaitForever, TTL: ttl})
					synctest.Wait()
					second := r.ask(ctx, s, req)
					synctest.Wait()
					change(r)
					released := time.Now()
					other.succeed(o, g)
					first.skipped(t)
					second.skipped(t)
					if late := first.at.Sub(released); name != "by a check" && late != 0 || late > 5*time.Second {
						t.Errorf("skipped %s after the release", late)
					}
					got := next.granted(t)
					time.Sleep(20 * time.Second)
					r.nobodyIsSkipped()
					r.release(s, got)
					time.Sleep(20 * time.Second)
					r.nothingLeft()
				})
			})
		}
	}
}

// After a failure, or without an outcome, skip-waiters get the lock.
func TestNoSkipAfterAFailure(t *testing.T) {
	for _, outcome := range []store.ReleaseOutcome{store.NoOutcome, store.Failure} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s := r.explicitSession()
			g := r.lock(s, "k")
			a := r.ask(context.Background(), s, skipping)
			synctest.Wait()
			_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token, Outcome: outcome})
			r.must(err)
			r.release(s, a.granted(t))
			r.nothingLeft()
		})
	}
}

// The outcome of a bind:ttl lock counts, too.
func TestABindTTLLockSucceeds(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		g := r.lockTTL("k", time.Hour)
		a := r.ask(context.Background(), r.eitherSession(), skipping)
		synctest.Wait()
		r.succeed(nil, g)
		a.skipped(t)
		r.nothingLeft()
	})
}

// The outcome is that of the release that frees the lock.
func TestOutcomeOfAnEntry(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		g := r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		a := r.ask(context.Background(), s, skipping)
		synctest.Wait()
		r.succeed(s, g)
		synctest.Wait()
		if a.isOver() {
			t.Fatalf("got %+v, %v", a.g, a.err)
		}
		r.succeed(s, g)
		a.skipped(t)
		r.nothingLeft()
	})
}

// The timeout of one call ends while the call is being skipped, and another call leaves then. The first one is
// answered as skipped. Neither leaves anything behind.
func TestSkippedInTheLastMoment(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o, s := other.eitherSession(), r.eitherSession()
		g := other.lock(o, "k")
		r.st.dropNews = true
		req := skipping
		req.Wait = 2 * time.Second
		timed := r.ask(context.Background(), s, req)
		ctx, cancel := context.WithCancel(context.Background())
		left := r.ask(ctx, s, skipping)
		time.Sleep(time.Second)
		other.succeed(o, g)
		cancel()
		timed.skipped(t)
		if timed.after != 2*time.Second {
			t.Errorf("after %s", timed.after)
		}
		if <-left.done; !errors.Is(left.err, types.ErrCallerLeft) {
			t.Errorf("error %v", left.err)
		}
		before := r.st.count("Cancel")
		time.Sleep(10 * time.Second)
		if n := r.st.count("Cancel"); n != before {
			t.Errorf("forgotten %d more times", n-before)
		}
		r.nothingLeft()
	})
}

// A skip that overtakes the answer of the enqueue ends the call.
func TestSkippedWhileEnqueueing(t *testing.T) {
	for name, f := range map[string]fault{"answer late": {after: 2 * time.Second}, "answer lost": {forget: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				o, s := other.eitherSession(), r.eitherSession()
				g := other.lock(o, "k")
				f.then = func() { other.succeed(o, g) }
				f.times = 1
				r.st.dropNews = name == "answer late"
				r.st.set("Enqueue", f)
				a := r.ask(context.Background(), s, skipping)
				a.skipped(t)
				time.Sleep(20 * time.Second)
				r.nothingLeft()
			})
		})
	}
}

// A request that is repeated at another sidecar after its skip returns the skip.
func TestASkippedRequestIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s := r.explicitSession()
		g := r.lock(s, "k")
		other.st.dropNews = true
		req := skipping
		req.Bind, req.RequestID = types.BindTTL, uuid.New()
		first := other.ask(context.Background(), nil, req)
		synctest.Wait()
		next := r.wait(s, "k", types.WaitForever)
		r.succeed(s, g)
		got := next.granted(t)
		again := r.ask(context.Background(), nil, req)
		again.skipped(t)
		if again.after != 0 {
			t.Errorf("skipped after %s", again.after)
		}
		first.skipped(t)
		r.release(s, got)
		time.Sleep(time.Second)
		r.nothingLeft()
	})
}
