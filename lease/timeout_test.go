package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// inVain returns the error of a wait that ended without the lock, which must have ended within 100 ms of its time.
func (a *answer) inVain(t *testing.T, wait time.Duration) *TimeoutError {
	t.Helper()
	<-a.done
	e, ok := errors.AsType[*TimeoutError](a.err)
	if !ok || a.after < wait || a.after > wait+holderPatience {
		t.Fatalf("error %v after %s", a.err, a.after)
	}
	return e
}

// A wait in vain names who holds the key when it ends, not who held it when it began.
// Proves: trap old holder
func TestAWaitInVainNamesTheHolderOfNow(t *testing.T) {
	for name, several := range map[string]bool{"one key": false, "several": true} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			other := r.another(opt)
			s, before, after := r.eitherSession(), other.eitherSession(), other.eitherSession()
			g := other.lock(before, "k")
			next := other.wait(after, "k", types.WaitForever)
			waits := &answer{done: make(chan struct{})}
			began := time.Now()
			go func() {
				defer close(waits.done)
				req := types.Request{Key: "k", Wait: 3 * time.Second}
				if several {
					_, waits.err = r.m.AcquireAll(context.Background(), s, []string{"j", "k"}, req)
				} else {
					_, waits.err = r.m.Acquire(context.Background(), s, req)
				}
				waits.after = time.Since(began)
			}()
			time.Sleep(time.Second)
			other.release(before, g)
			now := next.granted(t)
			e := waits.inVain(t, 3*time.Second)
			if h := e.Lock.Holder; e.Lock.Token != now.Token || h.Session != after.Name() || h.HeldFor != 2*time.Second || h.ExpiresIn != 12*time.Second || e.Age != 0 {
				t.Errorf("%s: named %+v, %s old", name, e.Lock, e.Age)
			}
		})
	}
}

// The store is not asked who holds the key if this sidecar knows it: it holds the key itself, or had an answer a moment ago.
// Proves: trap old holder
func TestAWaitInVainAsksOnlyWhatIsNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		own, s := r.eitherSession(), r.explicitSession()
		g := r.lock(own, "own")
		other.lock(other.eitherSession(), "k")
		time.Sleep(time.Second)
		e := r.wait(s, "own", time.Minute).inVain(t, time.Minute)
		if h := e.Lock.Holder; e.Lock.Token != g.Token || h.HeldFor != 61*time.Second || h.ExpiresIn <= 0 {
			t.Errorf("named %+v", e.Lock)
		}
		brief := r.m.cfg.CacheTTL / 2
		e = r.wait(s, "k", brief).inVain(t, brief)
		if h := e.Lock.Holder; !e.Lock.Held || h.HeldFor != 61*time.Second+brief || e.Age != brief {
			t.Errorf("named %+v, %s old", e.Lock, e.Age)
		}
		if n := r.st.count("Get"); n != 0 {
			t.Errorf("%d questions", n)
		}
	})
}

// Calls of which the waits end together ask once.
// Proves: trap old holder
func TestWaitsThatEndTogetherAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		g := other.lock(other.eitherSession(), "k")
		r.st.set("Get", fault{after: 10 * time.Millisecond})
		var calls []*answer
		for range 100 {
			calls = append(calls, r.ask(context.Background(), r.explicitSession(), types.Request{Key: "k", Wait: time.Minute}))
		}
		for _, c := range calls {
			if e := c.inVain(t, time.Minute); e.Lock.Token != g.Token || e.Age != 0 {
				t.Errorf("named %+v, %s old", e.Lock, e.Age)
			}
		}
		if n := r.st.asked("Get"); n > 3 {
			t.Errorf("%d questions", n)
		}
	})
}

// If the store does not answer, the wait ends in its time, with the last known holder and the times of now.
// Proves: trap old holder
func TestAWaitInVainWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.RenewInterval = time.Hour }))
		other := r.another()
		g := other.lockTTL("k", time.Minute)
		r.st.set("Get", fault{gate: make(chan struct{})})
		defer r.st.lift("Get")
		e := r.wait(r.explicitSession(), "k", 10*time.Second).inVain(t, 10*time.Second)
		if h := e.Lock.Holder; e.Lock.Token != g.Token || h.HeldFor != 10*time.Second || h.ExpiresIn != 50*time.Second || e.Age == 0 {
			t.Errorf("named %+v, %s old", e.Lock, e.Age)
		}
	})
}
