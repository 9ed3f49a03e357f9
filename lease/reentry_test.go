package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// as returns a request of an owner that may reenter.
func as(owner, key string, wait time.Duration) types.Request {
	return types.Request{Key: key, Wait: wait, Owner: owner, Reentrant: true, NoCache: true}
}

func (r *rig) get(s *holdings.Session, req types.Request) types.Grant {
	r.t.Helper()
	g, err := r.m.Acquire(context.Background(), s, req)
	r.must(err)
	return g
}

// exit releases one entry. The entry's number is sent unless it is 0.
func (r *rig) exit(s *holdings.Session, g types.Grant, reentry int) (types.Released, error) {
	return r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token, Reentry: reentry})
}

// An owner reenters its lock without a call to the store. Each release removes one entry, and the
// last one frees the lock.
func TestReentry(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		first := r.get(s, types.Request{Key: "k", Owner: "o", NoCache: true}) // the first request need not be reentrant
		if first.Reentry != 1 {
			t.Errorf("got %d entries", first.Reentry)
		}
		time.Sleep(time.Second)
		before := r.st.total()
		for _, wait := range []time.Duration{0, time.Second, types.WaitForever} {
			g := r.get(s, as("o", "k", wait))
			want := first
			want.Reentry, want.Entry, want.ExpiresIn, want.Waited = g.Reentry, g.Entry, g.ExpiresIn, 0
			if g != want {
				t.Errorf("reentered as %+v, want %+v", g, want)
			}
		}
		if got, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: "k", Token: first.Token}); err != nil || got.Reentry != 4 {
			t.Errorf("amended: %+v, %v", got, err)
		}
		for left := 3; left > 0; left-- {
			got, err := r.exit(s, first, 0)
			if err != nil || got.Reentry != left || got.HeldFor != time.Second {
				t.Errorf("released: %+v, %v, want %d left", got, err, left)
			}
		}
		if n := r.st.total() - before; n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		if !r.stored("k").Held || r.stored("k").Holder.Owner != "o" {
			t.Errorf("the store has %+v", r.stored("k"))
		}
		if got, err := r.exit(s, first, 0); err != nil || got.Reentry != 0 {
			t.Errorf("released: %+v, %v", got, err)
		}
		r.nothingLeft()
	})
}

// These callers wait or are denied like any other: another owner, another session, and an owner
// whose request is not reentrant.
// Proves: promise 13, trap second thread
func TestStrangersDoNotEnter(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		anonymous := r.get(s, types.Request{Key: "anonymous"})
		for name, c := range map[string]struct {
			s   *holdings.Session
			req types.Request
		}{
			"other owner":     {s, as("p", "k", 0)},
			"other session":   {r.eitherSession(), as("o", "k", 0)},
			"not reentrant":   {s, types.Request{Key: "k", Owner: "o"}},
			"no owner at all": {s, as("", "anonymous", 0)},
		} {
			var held *types.HeldError
			if _, err := r.m.Acquire(context.Background(), c.s, c.req); !errors.As(err, &held) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		r.release(s, anonymous)
		r.release(s, g)
		r.nothingLeft()
	})
}

// A repeated release with the number of an entry removes only this entry.
func TestNamedEntries(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		var wrong *types.ReentryError
		if _, err := r.exit(s, g, 2); !errors.As(err, &wrong) || wrong.Have != 3 {
			t.Errorf("too low: %v", err)
		}
		for n := 3; n > 0; n-- {
			if _, err := r.exit(s, g, n+1); !errors.As(err, &wrong) || wrong.Have != n {
				t.Errorf("entry %d: %v", n+1, err)
			}
			if got, err := r.exit(s, g, n); err != nil || got.Reentry != n-1 {
				t.Errorf("entry %d: %+v, %v", n, got, err)
			}
		}
		if _, err := r.exit(s, g, 1); refusedFor(err) != types.ReasonReleased {
			t.Errorf("all released: %v", err)
		}
		ttl := r.lockTTL("ttl", time.Minute)
		if _, err := r.exit(nil, ttl, 2); refusedFor(err) != types.ReasonReleased {
			t.Errorf("bind:ttl: %v", err)
		}
		if _, err := r.exit(nil, types.Grant{Key: "ttl", Token: ttl.Token + 1}, 2); refusedFor(err) != types.ReasonUnknownToken {
			t.Errorf("bind:ttl, unknown: %v", err)
		}
		if _, err := r.exit(nil, ttl, 1); err != nil {
			t.Errorf("bind:ttl: %v", err)
		}
		r.nothingLeft()
	})
}

// A repeat of the release of an earlier entry does not join the failing release of the last one.
func TestAnEarlierEntryIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		if _, err := r.exit(s, g, 2); err != nil {
			t.Fatal(err)
		}
		r.st.set("Release", fault{refuse: true})
		if _, err := r.exit(s, g, 1); err == nil {
			t.Fatal("released")
		}
		if _, err := r.exit(s, g, 2); refusedFor(err) != types.ReasonReleased {
			t.Errorf("error %v", err)
		}
		r.st.lift("Release")
		time.Sleep(time.Second)
		r.nothingLeft()
	})
}

// When an owner gets the lock, its waiting calls reenter and leave the queue. Other calls of the
// session still wait.
func TestWaitingCallsEnter(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o, s := other.eitherSession(), r.eitherSession()
		g := other.lock(o, "k")
		var owners, others []*answer
		for range 3 {
			owners = append(owners, r.ask(context.Background(), s, as("o", "k", types.WaitForever)))
			synctest.Wait()
			others = append(others, r.ask(context.Background(), s, as("p", "k", types.WaitForever)),
				r.ask(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever, Owner: "o"}))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		other.release(o, g)
		synctest.Wait()
		seen := map[int]bool{}
		for _, a := range owners {
			got := a.granted(t)
			if seen[got.Reentry] = true; got.Waited != time.Second {
				t.Errorf("waited %s", got.Waited)
			}
		}
		if !seen[1] || !seen[2] || !seen[3] {
			t.Errorf("reentered as %v", seen)
		}
		for _, a := range others {
			if a.isOver() {
				t.Errorf("another call reentered: %+v, %v", a.g, a.err)
			}
		}
		if n := r.stored("k").QueueLength; n != len(others) {
			t.Errorf("%d queued", n)
		}
		s.End(types.EndDropped)
		time.Sleep(time.Second)
		r.nothingLeft()
	})
}

// A call that does not wait reenters if its owner is being granted the lock.
func TestEnterInsteadOfBeingDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		proceed := r.st.holdAnswer("Acquire")
		first := r.ask(context.Background(), s, as("o", "k", 0))
		synctest.Wait()
		second := r.ask(context.Background(), s, as("o", "k", 0)) // calls the store after the first
		synctest.Wait()
		proceed()
		if got := first.granted(t); got.Reentry != 1 {
			t.Errorf("first: %+v", got)
		}
		got := second.granted(t)
		if got.Reentry != 2 {
			t.Errorf("second: %+v", got)
		}
		// The owner may get the lock between the call's own check and that of the cache.
		req := as("o", "k", 0)
		req.NoCache = false
		if _, denied := r.m.acquirer.HeldInCache(s, &req); denied {
			t.Error("denied although it may reenter")
		}
		r.release(s, got)
		r.release(s, got)
		r.nothingLeft()
	})
}

// A call that does not wait reenters a lock that the store has granted to another call of its
// owner. The other call may not know of its grant yet.
// Proves: promise 13
func TestEnterWhileTheOwnerIsBeingGranted(t *testing.T) {
	for name, noCache := range map[string]bool{"cached": false, "not cached": true} {
		req := as("o", "k", 0)
		req.NoCache = noCache
		t.Run("the first answer is late, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, inline)
				s := r.eitherSession()
				proceed := r.st.holdAnswer("Acquire")
				first := r.ask(context.Background(), s, as("o", "k", 0))
				synctest.Wait()
				r.st.lift("Acquire")
				second, third := r.ask(context.Background(), s, req), r.ask(context.Background(), s, req)
				synctest.Wait()
				if second.isOver() || third.isOver() {
					t.Errorf("errors %v, %v", second.err, third.err)
				}
				proceed()
				r.exitAll(s, first, second, third)
			})
		})
		t.Run("news is lost, "+name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other, s := r.another(opt), r.eitherSession()
				g := other.lockTTL("k", time.Hour)
				first := r.ask(context.Background(), s, as("o", "k", types.WaitForever))
				synctest.Wait()
				time.Sleep(time.Second)
				r.handOver(other, "k", g.Token)
				second := r.ask(context.Background(), s, req)
				if second.granted(t); second.after != 0 {
					t.Errorf("reentered after %s", second.after)
				}
				r.exitAll(s, first, second)
			})
		})
		t.Run("the first call has not returned, "+name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other, s := r.another(opt), r.eitherSession()
				g := other.lockTTL("k", time.Hour)
				first := r.ask(context.Background(), s, as("o", "k", types.WaitForever))
				synctest.Wait()
				time.Sleep(time.Second)
				var second *answer
				r.counts.onHandOff = func() {
					second = r.ask(context.Background(), s, req)
					synctest.Wait()
				}
				r.handOver(other, "k", g.Token)
				r.hint("k")
				first.granted(t)
				r.exitAll(s, first, second)
			})
		})
	}
}

// exitAll checks that all calls of an owner have reentered its lock, and releases it.
func (r *rig) exitAll(s *holdings.Session, entered ...*answer) {
	r.t.Helper()
	var g types.Grant
	for _, a := range entered {
		if g = a.granted(r.t); g.Token != entered[0].g.Token {
			r.t.Errorf("token %d, want %d", g.Token, entered[0].g.Token)
		}
	}
	for left := range slices.Backward(entered) {
		if got, err := r.exit(s, g, 0); err != nil || got.Reentry != left {
			r.t.Errorf("released: %+v, %v, want %d left", got, err, left)
		}
	}
	time.Sleep(time.Second)
	r.nothingLeft()
}

// A call that does not wait may still pause for at most two seconds: if the store has granted the
// key to another call of its owner in the same session, and this call is about to get the answer.
func TestCallWithoutAWaitMayPause(t *testing.T) {
	for name, c := range map[string]struct {
		hold func(*rig, *holdings.Session)
		wait time.Duration
	}{
		"by a session of the same name": {hold: func(r *rig, s *holdings.Session) {
			same, err := r.m.OpenSession(types.SessionOptions{Name: s.Name()})
			r.must(err)
			r.get(same, as("o", "k", 0))
		}},
		"by a group that is incomplete": {hold: func(r *rig, s *holdings.Session) {
			r.lockTTL("z", time.Hour)
			go func() {
				_, _ = r.m.AcquireAll(context.Background(), s, []string{"k", "z"}, types.Request{Owner: "o", Wait: types.WaitForever})
			}()
		}},
		"the lock is being released": {hold: func(r *rig, s *holdings.Session) {
			g := r.get(s, as("o", "k", 0))
			r.st.set("Release", fault{refuse: true})
			if _, err := r.exit(s, g, 0); err == nil {
				r.t.Error("released")
			}
		}},
		"the answer of the grant is lost": {hold: func(r *rig, s *holdings.Session) {
			r.st.set("Acquire", fault{forget: true, times: 1})
			r.st.set("Withdraw", fault{refuse: true})
			if _, err := r.m.Acquire(context.Background(), s, as("o", "k", 0)); err == nil {
				r.t.Error("granted")
			}
		}, wait: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, inline)
				s := r.eitherSession()
				c.hold(r, s)
				synctest.Wait()
				began := time.Now()
				_, err := r.m.Acquire(context.Background(), s, as("o", "k", 0))
				if _, denied := errors.AsType[*types.HeldError](err); !denied || time.Since(began) != c.wait {
					t.Errorf("error %v after %s, want after %s", err, time.Since(began), c.wait)
				}
				r.st.lift("Release", "Withdraw")
				s.End(types.EndDropped)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A waiting call reenters a lock that its owner got after the call's first check. It does not wait
// for news.
func TestEnterBeforeWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		synctest.Wait() // only the test reads the clock now
		r.clk.atRead(0, func() { r.get(s, as("o", "k", 0)) })
		a := r.ask(context.Background(), s, as("o", "k", time.Minute))
		if got := a.granted(t); got.Reentry != 2 || a.after != 0 {
			t.Errorf("got %+v after %s", got, a.after)
		}
	})
}

// The end of a lock ends all its entries. It cannot be reentered afterwards.
func TestAllEntriesEndTogether(t *testing.T) {
	for name, end := range map[string]func(*rig, *holdings.Session){
		"lease lost":    func(r *rig, _ *holdings.Session) { r.clk.stop(time.Minute) },
		"session ended": func(_ *rig, s *holdings.Session) { s.End(types.EndDropped) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				g := r.get(s, as("o", "k", 0))
				r.get(s, as("o", "k", 0))
				end(r, s)
				if name == "lease lost" {
					if got := r.get(s, as("o", "k", types.WaitForever)); got.Token == g.Token || got.Reentry != 1 {
						t.Errorf("reentered a lost lock: %+v", got)
					}
				}
				if _, err := r.exit(s, g, 0); lostReason(err) == "" {
					t.Errorf("error %v", err)
				}
				s.End(types.EndDropped)
				if _, err := r.m.Acquire(context.Background(), s, as("o", "k", 0)); !errors.Is(err, types.ErrSessionEnded) {
					t.Errorf("reentered: %v", err)
				}
				time.Sleep(time.Second)
				r.nothingLeft()
			})
		})
	}
}

// An undelivered entry ends with the entry above it, which keeps its number. The last entry ends at
// once if it is undelivered, together with the undelivered entries directly below it.
func TestHandBackedEntries(t *testing.T) {
	for name, c := range map[string]struct {
		discarded []int
		left      int
	}{
		"below":           {[]int{1}, 3},
		"last":            {[]int{3}, 2},
		"last but one":    {[]int{2, 3}, 1},
		"last first":      {[]int{3, 2}, 1},
		"last, not below": {[]int{1, 3}, 2},
		"all":             {[]int{1, 2, 3}, 0},
		"all, last first": {[]int{3, 2, 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				var g []types.Grant
				for range 3 {
					g = append(g, r.get(s, as("o", "k", 0)))
				}
				for _, n := range c.discarded {
					r.m.HandBack(s, g[n-1])
				}
				synctest.Wait()
				if c.left > 0 {
					got, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: "k", Token: g[0].Token})
					if err != nil || got.Reentry != c.left {
						t.Errorf("got %+v, %v, want entry %d", got, err, c.left)
					}
					s.End(types.EndDropped)
				}
				r.nothingLeft()
			})
		})
	}
}

// A release of the highest delivered entry also frees the undelivered entries below it.
func TestReleaseAboveHandBackedEntries(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		first := r.get(s, as("o", "k", 0))
		second := r.get(s, as("o", "k", 0))
		third := r.get(s, as("o", "k", 0))
		r.m.HandBack(s, second)
		if got, err := r.exit(s, third, third.Reentry); err != nil || got.Reentry != 1 {
			t.Errorf("released: %+v, %v", got, err)
		}
		second = r.get(s, as("o", "k", 0)) // is delivered; an earlier entry had the same number
		third = r.get(s, as("o", "k", 0))
		if got, err := r.exit(s, third, third.Reentry); err != nil || got.Reentry != 2 {
			t.Errorf("released: %+v, %v", got, err)
		}
		r.m.HandBack(s, first)
		if got, err := r.exit(s, second, second.Reentry); err != nil || got.Reentry != 0 {
			t.Errorf("released: %+v, %v", got, err)
		}
		r.nothingLeft()
	})
}

// A session at its limit of locks may reenter.
func TestAFullSessionEnters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.MaxLocksPerSession = 1 }))
		s := r.eitherSession()
		r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		var limit *LimitError
		if _, err := r.try(s, "more"); !errors.As(err, &limit) {
			t.Errorf("error %v", err)
		}
		r.m.Drain()
		if _, err := r.m.Acquire(context.Background(), s, as("o", "k", 0)); !errors.Is(err, types.ErrDraining) {
			t.Errorf("while draining: %v", err)
		}
	})
}
