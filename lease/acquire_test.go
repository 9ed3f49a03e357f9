package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

func TestAcquireAndRelease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		var last int64
		began := time.Now() // a lower bound of the lease's start
		for range 3 {
			g := r.lock(s, "k")
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			if g.Session != s.Name() || g.ExpiresIn != (14250*time.Millisecond-time.Since(began)) || g.Bind != types.BindSession {
				t.Errorf("granted %+v", g)
			}
			time.Sleep(time.Second)
			released, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token})
			r.must(err)
			if released.HeldFor != time.Second {
				t.Errorf("held for %s", released.HeldFor)
			}
		}
		r.nothingLeft()
	})
}

// Proves: trap second thread
func TestThreadsOfASessionExcludeEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		g := r.lock(s, "k")
		var held *types.HeldError
		if _, err := r.try(s, "k"); !errors.As(err, &held) {
			t.Fatalf("the second thread error %v", err)
		}
		second := r.wait(s, "k", types.WaitForever)
		if second.isOver() {
			t.Fatalf("the second thread error %v", second.err)
		}
		r.release(s, g)
		if got := second.granted(t); got.Token <= g.Token {
			t.Errorf("token %d after %d", got.Token, g.Token)
		}
		r.release(s, second.g)
		r.nothingLeft()
	})
}

func TestFirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.explicitSession(), other.explicitSession()
		g := r.lock(s, "k")
		var line []*answer
		for i := range 10 {
			if i%2 == 0 {
				line = append(line, r.wait(s, "k", types.WaitForever))
			} else {
				line = append(line, other.wait(o, "k", types.WaitForever))
			}
		}
		r.release(s, g)
		for i, a := range line {
			g := a.granted(t)
			synctest.Wait()
			for _, later := range line[i+1:] {
				if later.isOver() {
					t.Fatal("overtaken")
				}
			}
			if i%2 == 0 {
				r.release(s, g)
			} else {
				other.release(o, g)
			}
		}
		r.nothingLeft()
		other.nothingLeft()
	})
}

func TestWaitTimesOut(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		g := r.lock(s, "k")
		first := r.wait(s, "k", types.WaitForever)
		a := r.wait(s, "k", 10*time.Second)
		<-a.done
		var timeout *types.TimeoutError
		if !errors.As(a.err, &timeout) {
			t.Fatalf("error %v", a.err)
		}
		if a.after != 10*time.Second || timeout.Waited != a.after || timeout.Position != 2 || timeout.Lock.Token != g.Token {
			t.Errorf("after %s: %+v", a.after, timeout)
		}
		r.release(s, g)
		r.release(s, first.granted(t))
		r.nothingLeft()
	})
}

// The wait ends at the moment of the grant. Both results are right, but the call and the store must
// agree.
// Proves: trap give-up at the grant
func TestTimeoutMeetsGrant(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		for i := range 200 {
			r := newRig(t, opt)
			s := r.eitherSession()
			g := r.lock(s, "k")
			if i%2 == 0 {
				r.st.set("Cancel", fault{before: time.Millisecond})
			}
			a := r.wait(s, "k", time.Second)
			time.Sleep(time.Second)
			r.release(s, g)
			<-a.done
			synctest.Wait()
			if a.err == nil {
				if got := r.stored("k").Token; got != a.g.Token {
					t.Fatalf("the call got token %d, the store has %d", a.g.Token, got)
				}
				r.release(s, a.g)
			}
			time.Sleep(10 * time.Millisecond)
			r.nothingLeft()
			r.m.Stop()
		}
	})
}

// Proves: promise 12
func TestBindTTLLockHasNoSession(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g := r.lockTTL("k", time.Minute)
		if g.Session != "" || g.Bind != types.BindTTL || g.ExpiresIn != 57*time.Second {
			t.Errorf("granted %+v", g)
		}
		waiting := other.ask(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Second, Wait: types.WaitForever})
		synctest.Wait()
		amended, err := other.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token, TTL: time.Hour})
		r.must(err)
		if amended.ExpiresIn != 57*time.Minute {
			t.Errorf("amended %+v", amended)
		}
		if _, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
			t.Fatal(err)
		}
		if got := waiting.granted(t); got.ExpiresIn != 950*time.Millisecond {
			t.Errorf("granted %+v", got)
		}
		time.Sleep(time.Second)
		r.nothingLeft()
		other.nothingLeft()
	})
}

func TestLimits(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxSessions, c.MaxLocksPerSession, c.MaxWaiters = 2, 3, 2 }))
		limited := func(err error, setting string) {
			t.Helper()
			var limit *LimitError
			if !errors.As(err, &limit) || limit.Setting != setting {
				t.Errorf("error %v, want %s", err, setting)
			}
		}
		s, o := r.eitherSession(), r.eitherSession()
		_, err := r.m.OpenSession(types.SessionOptions{})
		limited(err, "LOCKSIDECAR_MAX_SESSIONS")
		o.End(types.EndDeleted)
		o = r.eitherSession()

		for i := range 3 {
			r.lock(s, fmt.Sprint(i))
		}
		_, err = r.try(s, "more")
		limited(err, "LOCKSIDECAR_MAX_LOCKS_PER_SESSION")
		r.wait(o, "0", types.WaitForever)
		r.wait(o, "1", types.WaitForever)
		third := r.wait(o, "2", types.WaitForever)
		<-third.done
		limited(third.err, "LOCKSIDECAR_MAX_WAITERS")

		s.End(types.EndDropped)
		o.End(types.EndDropped)
		r.nothingLeft()
		s, o = r.eitherSession(), r.eitherSession()
		for i := range 3 {
			r.lock(s, fmt.Sprint(i))
			r.lock(o, fmt.Sprint("other", i))
		}
		s.End(types.EndDropped)
		o.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A session can hold as many locks as its limit. A lock counts once, also at the moment of its
// grant.
func TestTheLimitCountsALockOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, inline, with(func(c *types.Config) { c.MaxLocksPerSession = 2 }))
	for range 300 {
		s := r.eitherSession()
		results := make(chan error, 2)
		for i := range 2 {
			go func() {
				_, err := r.m.Acquire(context.Background(), s, types.Request{Key: fmt.Sprint(i), NoCache: true, Wait: time.Minute})
				results <- err
			}()
		}
		for range 2 {
			r.must(<-results)
		}
		<-s.End(types.EndDeleted)
	}
}
