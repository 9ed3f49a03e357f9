package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func (r *rig) stops() []types.Stop {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]types.Stop(nil), r.told...)
}

// A holder is asked to stop on its sidecar. It is asked again only with another reason.
// Proves: promise 17
func TestAskToStop(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		ctx := context.Background()
		r := newRig(t, opt)
		other := r.another(opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		for i, asker := range []*rig{r, other, other, r} {
			r.must(asker.m.AskToStop(ctx, "k", 0, new("one")))
			time.Sleep(time.Second)
			if n := len(r.stops()); n != 1 {
				t.Fatalf("asked %d times after %d stops", n, i+1)
			}
		}
		first := time.Now().Add(-4 * time.Second)
		r.must(other.m.AskToStop(ctx, "k", 0, nil))
		told := r.stops()
		if len(told) != 2 || told[0].Token != g.Token || *told[0].Reason != "one" || told[1] != (types.Stop{Key: "k", Token: g.Token, Reason: nil}) {
			t.Errorf("got %+v", told)
		}
		amended, err := r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token})
		r.must(err)
		near, err := r.m.Get(ctx, s, "k", false)
		r.must(err)
		far, err := other.m.Get(ctx, nil, "k", true)
		r.must(err)
		for name, got := range map[string]*store.Stopping{"amended": amended.Stopping, "here": near.Stopping, "there": far.Stopping} {
			if got == nil || got.Reason != nil || got.At.Sub(first).Abs() > time.Second/2 {
				t.Errorf("%s: %+v, asked first at %s", name, got, first)
			}
		}
		r.release(s, g)
		if g = r.lock(s, "k"); len(r.stops()) != 2 {
			t.Error("a later holder was asked to stop")
		}
		if got, _ := r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token}); got.Stopping != nil {
			t.Errorf("a later holder is shown as asked: %+v", got.Stopping)
		}
		r.release(s, g)
		var free *types.NotHeldError
		if err := r.m.AskToStop(ctx, "k", 0, nil); !errors.As(err, &free) {
			t.Errorf("a free key: %v", err)
		}
		ttl := r.lockTTL("ttl", time.Minute)
		r.must(other.m.AskToStop(ctx, "ttl", 0, new("two")))
		if got, err := r.m.Amend(ctx, nil, types.AmendRequest{Key: "ttl", Token: ttl.Token}); err != nil || got.Stopping == nil || *got.Stopping.Reason != "two" {
			t.Errorf("bind:ttl: %+v, %v", got, err)
		}
		r.release(nil, ttl)
		r.nothingLeft()
	})
}

// News may be lost. Then the next renewal brings the signal.
// Proves: promise 17
func TestASignalIsHeardWithTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.eitherSession()
		r.lock(s, "k")
		r.st.dropNews = true
		r.must(other.m.AskToStop(context.Background(), "k", 0, nil))
		r.st.set("Signals", fault{times: 2, refuse: true})
		r.st.set("Acknowledge", fault{times: 2, lose: true}) // so the signals are read again
		time.Sleep(6 * time.Second)
		if n := len(r.stops()); n != 1 {
			t.Errorf("notified %d times", n)
		}
		before := r.st.count("Signals")
		time.Sleep(time.Minute)
		if n := r.st.count("Signals"); n != before {
			t.Errorf("%d reads after the signal was acknowledged", n-before)
		}
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A broken lock is lost for its holder. When Break returns, the key is free or has its next holder.
func TestBreak(t *testing.T) {
	for name, acquire := range map[string]func(*rig, *holdings.Session) types.Grant{
		"session": func(r *rig, s *holdings.Session) types.Grant { return r.lock(s, "k") },
		"entered twice": func(r *rig, s *holdings.Session) types.Grant {
			r.get(s, as("o", "k", 0))
			return r.get(s, as("o", "k", 0))
		},
		"bind:ttl": func(r *rig, _ *holdings.Session) types.Grant { return r.lockTTL("k", time.Hour) },
		"min_hold": func(r *rig, s *holdings.Session) types.Grant {
			return r.get(s, types.Request{Key: "k", MinHold: time.Hour})
		},
		"standing": func(r *rig, s *holdings.Session) types.Grant {
			g := r.get(s, types.Request{Key: "k", MinHold: time.Hour})
			r.release(s, g)
			return g
		},
	} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a waiter %v", name, waits), func(t *testing.T) {
				bubble(t, func(t *testing.T, opt option) {
					ctx := context.Background()
					r := newRig(t, opt)
					other := r.another(opt)
					s, o := r.eitherSession(), other.eitherSession()
					g := acquire(r, s)
					var a *answer
					if waits {
						a = other.wait(o, "k", types.WaitForever)
					}
					began := time.Now()
					r.must(other.m.Break(ctx, other.stored("k"), 0))
					if d := time.Since(began); d > 10*time.Millisecond {
						t.Errorf("it took %s", d)
					}
					if l := r.stored("k"); l.Held && l.Token == g.Token {
						t.Errorf("not broken: %+v", l)
					}
					if name != "bind:ttl" && name != "standing" {
						if l := r.losses(); len(l) != 1 || l[0] != (types.Lost{Key: "k", Token: g.Token, Reason: types.LostForced}) {
							t.Errorf("got %+v", l)
						}
						if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostForced {
							t.Errorf("claim: %q", reason)
						}
					}
					if waits {
						other.release(o, a.granted(t))
					}
					var free *types.NotHeldError
					if err := other.m.Break(ctx, other.stored("k"), 0); !errors.As(err, &free) {
						t.Errorf("a free key: %v", err)
					}
					time.Sleep(time.Second)
					r.nothingLeft()
				})
			})
		}
	}
}

// The grant may end before its break reaches the store. Then the next holder keeps the key.
// Proves: promise 17
func TestBreakSparesTheNextHolder(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		answer := other.st.hold("Signal")
		broken := make(chan error, 1)
		go func() { broken <- other.m.Break(context.Background(), other.stored("k"), 0) }()
		synctest.Wait()
		r.release(s, g)
		next := r.lock(s, "k")
		answer()
		r.must(<-broken)
		synctest.Wait()
		if l := r.stored("k"); !l.Held || l.Token != next.Token || len(r.losses()) != 0 {
			t.Errorf("lost %+v, now %+v", r.losses(), l)
		}
	})
}

// A lock that is broken while its lease is lost does not keep its hold.
func TestBreakInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		r.get(r.eitherSession(), hour("k"))
		r.st.set("Release", fault{lose: true})
		r.st.set("Renew", fault{lose: true})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		r.must(other.m.Break(ctx, other.stored("k"), 0))
		r.st.lift("Release", "Renew")
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// If the holder's sidecar does not answer, the break waits until the lease ends or the caller
// leaves.
func TestBreakOfADeadHolder(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		r.lock(r.eitherSession(), "k")
		r.st.setAll(fault{lose: true})
		r.st.dropNews = true
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := other.m.Break(ctx, other.stored("k"), 0); !errors.Is(err, types.ErrCallerLeft) {
			t.Errorf("error %v", err)
		}
		before := other.st.count("Get")
		r.must(other.m.Break(context.Background(), other.stored("k"), 0))
		if n := other.st.count("Get") - before; n > 60 {
			t.Errorf("read %d times in 10 s", n)
		}
		if other.stored("k").Held {
			t.Error("still held")
		}
	})
}

// A lock that is released during its break does not keep its MinHold.
func TestBreakMeetsARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.eitherSession()
		g := r.get(s, types.Request{Key: "k", MinHold: time.Hour})
		r.st.dropNews = true
		broken := make(chan error, 1)
		go func() { broken <- other.m.Break(context.Background(), other.stored("k"), 0) }()
		time.Sleep(time.Second)
		r.release(s, g)
		time.Sleep(time.Second)
		select {
		case err := <-broken:
			r.must(err)
		default:
			t.Error("the hold still keeps the key")
		}
	})
}

// A signal may arrive before the sidecar knows the grant that it names. The sidecar obeys it when
// the grant arrives.
func TestASignalOvertakesItsGrant(t *testing.T) {
	for name, others := range map[string]int{"nothing else held": 0, "something held": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				s := r.eitherSession()
				for range others {
					r.lock(s, "other")
				}
				r.lock(s, "opens the lease")
				r.must(r.tryRelease(s, "opens the lease", r.stored("opens the lease").Token))
				proceed := r.st.holdAnswer("Acquire")
				a := r.ask(context.Background(), s, types.Request{Key: "k"})
				synctest.Wait()
				r.must(other.m.AskToStop(context.Background(), "k", 0, nil))
				time.Sleep(time.Second)
				if n := len(r.stops()); n != 0 || a.isOver() {
					t.Fatalf("notified %d times, %v", n, a.err)
				}
				proceed()
				a.granted(t)
				time.Sleep(2 * attempt.HintPause)
				if n := len(r.stops()); n != 1 {
					t.Errorf("notified %d times", n)
				}
			})
		})
	}
}
