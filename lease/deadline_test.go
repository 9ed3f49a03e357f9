package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func (r *rig) amend(s *holdings.Session, g types.Grant) error {
	_, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: g.Key, Token: g.Token})
	return err
}

func lostReason(err error) types.LostReason {
	if lost, ok := errors.AsType[*types.LostError](err); ok {
		return lost.Lost.Reason
	}
	return ""
}

// The deadline is the TTL less the margin after the opening was sent, not after its answer. The app
// is notified before the store grants the lock to another session.
// Proves: promise 2, A1
func TestDeadline(t *testing.T) {
	for ttl, margin := range map[time.Duration]time.Duration{
		500 * time.Millisecond: 50 * time.Millisecond,
		time.Second:            50 * time.Millisecond,
		15 * time.Second:       750 * time.Millisecond,
		time.Hour:              3 * time.Minute,
	} {
		for _, slow := range []fault{{before: 100 * time.Millisecond}, {after: 100 * time.Millisecond}} {
			t.Run(fmt.Sprint(ttl, slow.before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					s := r.eitherSession()
					r.st.set("OpenLeases", slow)
					r.st.set("Renew", fault{refuse: true})
					sent := time.Now()
					g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: ttl})
					r.must(err)
					if want := ttl - margin - 100*time.Millisecond; g.ExpiresIn != want {
						t.Errorf("expires in %s, want %s", g.ExpiresIn, want)
					}
					expiry := time.Now().Add(r.stored("k").Holder.ExpiresIn)
					time.Sleep(time.Until(sent.Add(ttl - margin - 1)))
					r.must(r.amend(s, g))
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					if reason := lostReason(r.amend(s, g)); reason != types.LostStore {
						t.Errorf("lost with reason %q", reason)
					}
					if len(r.losses()) != 1 || !r.at[0].Equal(sent.Add(ttl-margin)) || !r.at[0].Before(expiry) {
						t.Errorf("notified of %v at %v; the lease expires in the store at %s", r.losses(), r.at, expiry)
					}
				})
			})
		}
	}
}

// A renewal counts from the time at which it was sent.
// Proves: promise 2
func TestSlowRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.st.set("Renew", fault{times: 1, after: 4 * time.Second})
		time.Sleep(4400 * time.Millisecond) // the renewal is sent after 4.5 to 5 s
		var sent time.Time
		for sent = time.Now(); r.st.count("Renew") == 0; sent = time.Now() {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		r.st.set("Renew", fault{refuse: true})
		time.Sleep(time.Until(sent.Add(14250*time.Millisecond - 2*time.Millisecond)))
		r.must(r.amend(s, g))
		time.Sleep(3 * time.Millisecond)
		if r.amend(s, g) == nil {
			t.Error("still held after the deadline")
		}
	})
}

// A renewal that is confirmed after the deadline does not revive a lease, even if the store has
// extended it.
// Proves: promise 2
func TestNoRevival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.StoreTimeout = time.Minute }))
		s := r.eitherSession()
		g := r.lock(s, "k")
		proceed := r.st.holdAnswer("Renew")
		time.Sleep(14249 * time.Millisecond)
		r.must(r.amend(s, g))
		r.clk.stop(2 * time.Millisecond) // past the deadline, before any timer fires
		proceed()
		synctest.Wait()
		if r.amend(s, g) == nil {
			t.Error("revived")
		}
		if s.Held() != 0 || len(r.losses()) != 1 {
			t.Errorf("lost %v", r.losses())
		}
		time.Sleep(time.Second)
		r.lock(s, "k") // under a fresh lease
	})
}

// Proves: promise 2, promise 10
func TestReasons(t *testing.T) {
	for name, c := range map[string]struct {
		broken  func(*rig)
		outcome types.LostReason
	}{
		"the store refuses": {func(r *rig) { r.st.set("Renew", fault{refuse: true}) }, types.LostStore},
		"the store hangs":   {func(r *rig) { r.st.hold("Renew") }, types.LostStore},
		"the store says dead": {func(r *rig) {
			r.must(r.st.Store.Revoke(context.Background(), []store.LeaseID{r.stored("k").Holder.Lease}))
		}, types.LostStore},
		"the process was stopped":   {func(r *rig) { r.clk.stop(time.Hour) }, types.LostExpired},
		"the machine was suspended": {func(r *rig) { r.clk.suspended.Add(int64(clock.SuspensionLimit)) }, types.LostExpired},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := r.eitherSession()
				g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: time.Second})
				r.must(err)
				c.broken(r)
				time.Sleep(time.Second)
				if reason := lostReason(r.amend(s, g)); reason != c.outcome {
					t.Errorf("reason %q, want %q", reason, c.outcome)
				}
				if l := r.losses(); len(l) != 1 || l[0].Reason != c.outcome {
					t.Errorf("got %v", l)
				}
			})
		})
	}
}

// Every read checks the clock itself, because a timer may be late.
// Proves: promise 2
func TestReadsSeeTheDeadline(t *testing.T) {
	stopped := map[string]func(*rig){
		"process stopped":   func(r *rig) { r.clk.stop(14250 * time.Millisecond) },
		"machine suspended": func(r *rig) { r.clk.suspended.Add(int64(clock.SuspensionLimit)) },
	}
	reads := map[string]func(*rig, *holdings.Session, types.Grant) bool{
		"Get": func(r *rig, s *holdings.Session, g types.Grant) bool {
			v, err := r.m.Get(context.Background(), s, g.Key, false)
			r.must(err)
			return v.Mine
		},
		"Get no-cache": func(r *rig, s *holdings.Session, g types.Grant) bool {
			v, err := r.m.Get(context.Background(), s, g.Key, true)
			r.must(err)
			return v.Mine
		},
		"List pod": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			p, err := r.m.List(context.Background(), s, types.ListRequest{Limit: 10})
			r.must(err)
			return len(p.Locks) > 0 && p.Locks[0].Mine
		},
		"List session": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			p, err := r.m.List(context.Background(), s, types.ListRequest{Limit: 10, Scope: types.ScopeSession})
			r.must(err)
			return len(p.Locks) > 0
		},
		"Amend": func(r *rig, s *holdings.Session, g types.Grant) bool { return r.amend(s, g) == nil },
		"Release": func(r *rig, s *holdings.Session, g types.Grant) bool {
			_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
			return err == nil
		},
	}
	for stop, happens := range stopped {
		for read, holds := range reads {
			t.Run(read+" "+stop, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					s := r.eitherSession()
					g := r.lock(s, "k")
					happens(r)
					if holds(r, s, g) {
						t.Error("reported as held after the deadline")
					}
				})
			})
		}
	}
}

// A suspension during the opening or renewal of a lease counts, before and after the store's work.
// Proves: promise 2
func TestSuspendedWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		proceed := r.st.holdAnswer("OpenLeases")
		a := r.wait(s, "k", types.WaitForever)
		r.clk.suspended.Add(int64(clock.SuspensionLimit))
		proceed()
		<-a.done
		if !store.Unavailable(a.err) {
			t.Errorf("error %v", a.err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "k")
		proceed := r.st.holdAnswer("Renew")
		time.Sleep(5 * time.Second)
		r.clk.suspended.Add(int64(clock.SuspensionLimit - 1))
		proceed()
		synctest.Wait()
		r.must(r.amend(s, g))
		r.clk.suspended.Add(1)
		if r.amend(s, g) == nil {
			t.Error("the lease survived")
		}
	})
}

// The deadline may pass between any two reads of the clock. A lock that is reported as held has
// time left.
// Proves: promise 2
func TestDeadlinePassesDuringTheAnswer(t *testing.T) {
	both := []string{"x", "y"}
	least := func(g []types.Grant, err error) (bool, time.Duration) {
		if err != nil {
			return false, 0
		}
		return true, min(g[0].ExpiresIn, g[1].ExpiresIn)
	}
	for moment := range 60 {
		synctest.Test(t, func(t *testing.T) {
			for name, told := range map[string]func(*rig, *holdings.Session, types.Grant) (held bool, left time.Duration){
				"Amend": func(r *rig, s *holdings.Session, g types.Grant) (bool, time.Duration) {
					g, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: g.Key, Token: g.Token})
					return err == nil, g.ExpiresIn
				},
				"Get": func(r *rig, s *holdings.Session, g types.Grant) (bool, time.Duration) {
					v, err := r.m.Get(context.Background(), s, g.Key, false)
					r.must(err)
					return v.Mine, v.Holder.ExpiresIn
				},
				"Acquire": func(r *rig, s *holdings.Session, _ types.Grant) (bool, time.Duration) {
					g, err := r.try(s, "another")
					return err == nil, g.ExpiresIn
				},
				"enter": func(r *rig, s *holdings.Session, _ types.Grant) (bool, time.Duration) {
					g, err := r.m.Acquire(context.Background(), s, as("o", "k", 0))
					return err == nil, g.ExpiresIn
				},
				"AcquireAll": func(r *rig, s *holdings.Session, _ types.Grant) (bool, time.Duration) {
					return least(r.m.AcquireAll(context.Background(), s, both, types.Request{}))
				},
				"AcquireAll with MaxHold": func(r *rig, s *holdings.Session, _ types.Grant) (bool, time.Duration) {
					return least(r.m.AcquireAll(context.Background(), s, both, types.Request{MaxHold: 15 * time.Second}))
				},
				"AcquireAll bind:ttl": func(r *rig, _ *holdings.Session, _ types.Grant) (bool, time.Duration) {
					return least(r.m.AcquireAll(context.Background(), nil, both, types.Request{Bind: types.BindTTL, TTL: 15 * time.Second}))
				},
			} {
				r := newRig(t, inline)
				s := r.eitherSession()
				g := r.get(s, as("o", "k", 0))
				synctest.Wait()
				r.clk.atRead(moment, func() { r.clk.stop(15 * time.Second) })
				held, left := told(r, s, g)
				r.clk.next.Store(nil)
				if held && left <= 0 {
					t.Errorf("%s, moment %d: reported as held, with %s left", name, moment, left)
				}
			}
		})
	}
}

// A change of data that is confirmed after the deadline reports the loss.
func TestAmendAcrossTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: time.Second})
		r.must(err)
		r.st.set("Renew", fault{refuse: true})
		r.st.set("Amend", fault{after: 2 * time.Second})
		_, err = r.m.Amend(context.Background(), s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true, Data: []byte("1")})
		if lostReason(err) != types.LostStore {
			t.Errorf("error %v", err)
		}
	})
}

// A bind:ttl lock that the store keeps is not reported as lost because an amend waited long before the store carried it out.
func TestASlowAmendOfALivingLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		g := r.lockTTL("k", 6*time.Second)
		r.st.set("Amend", fault{before: 4 * time.Second, times: 1})
		amended, err := r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token, SetData: true, Data: []byte("1")})
		r.must(err)
		if amended.ExpiresIn != 1900*time.Millisecond { // of 2 s that were left
			t.Errorf("amended %+v", amended)
		}
		r.st.set("Amend", fault{before: 4 * time.Second, times: 1})
		if _, err := r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token}); lostReason(err) != types.LostExpired {
			t.Errorf("error %v", err)
		}
	})
}

// The remaining time of a bind:ttl lock counts from the time of the call to the store. It ends
// before the lock does in the store, by 50 ms or by 5% if that is longer.
// Proves: promise 2, promise 12
func TestRemainingTimeOfBindTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.st.set("Acquire", fault{times: 1, after: 400 * time.Millisecond})
		g, err := r.m.Acquire(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Second})
		r.must(err)
		if g.ExpiresIn != 550*time.Millisecond {
			t.Errorf("acquired: %s", g.ExpiresIn)
		}
		r.st.set("Amend", fault{after: 400 * time.Millisecond})
		g, err = r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token, TTL: 500 * time.Millisecond})
		r.must(err)
		if g.ExpiresIn != 50*time.Millisecond {
			t.Errorf("amended: %s", g.ExpiresIn)
		}
		r.st.set("Amend", fault{after: 400 * time.Millisecond})
		g, err = r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token, TTL: 10 * time.Second})
		r.must(err)
		if g.ExpiresIn != 9100*time.Millisecond {
			t.Errorf("amended for longer: %s", g.ExpiresIn)
		}
		time.Sleep(9100*time.Millisecond - 1)
		r.st.set("Amend", fault{})
		g, err = r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token})
		if left := r.stored("k").Holder.ExpiresIn; err != nil || g.ExpiresIn > heartbeat.Reliable(left) {
			t.Errorf("%s before its end in the store: reported %s, %v", left, g.ExpiresIn, err)
		}
		r.st.set("Amend", fault{after: 500 * time.Millisecond})
		if _, err = r.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: g.Token}); lostReason(err) != types.LostExpired {
			t.Errorf("error %v", err)
		}
	})
}

// The same holds if a check or a cancel finds the grant and its answer is late.
// Proves: promise 2
func TestRemainingTimeOfBindTTLThatWaited(t *testing.T) {
	for _, op := range []string{"Check", "Cancel"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			s := r.eitherSession()
			g := r.lock(s, "k")
			r.st.dropNews = true
			wait := map[string]time.Duration{"Check": types.WaitForever, "Cancel": time.Second}[op]
			a := r.ask(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Minute, Wait: wait})
			synctest.Wait()
			r.release(s, g)
			granted := time.Now()
			r.st.set(op, fault{after: 3 * time.Second})
			got := a.granted(t)
			if left := time.Until(granted.Add(time.Minute)); got.ExpiresIn > heartbeat.Reliable(left) {
				t.Errorf("%s: reported as expiring in %s, but it expires in %s", op, got.ExpiresIn, left)
			}
		})
	}
}

// A lease whose opening was answered after its deadline is not used, and is revoked.
func TestOpeningAnsweredTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.st.set("OpenLeases", fault{times: 1, after: time.Second})
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: time.Second})
		if !store.Unavailable(err) {
			t.Errorf("error %v", err)
		}
		synctest.Wait()
		if r.st.count("Revoke") != 1 {
			t.Error("the lease is not revoked")
		}
	})
}

// A client adds the waited time and the remaining time to the time of its call. However long the
// process is stopped between reads of the clock, this sum does not exceed the lock's true end.
// Proves: promise 2
func TestStoppedDuringTheAnswer(t *testing.T) {
	const ttl = 15 * time.Second
	all := func(r *rig, s *holdings.Session, req types.Request) ([]types.Grant, error) {
		return r.m.AcquireAll(context.Background(), s, []string{"x", "y"}, req)
	}
	for moment := range 60 {
		synctest.Test(t, func(t *testing.T) {
			for name, ask := range map[string]func(*rig, *holdings.Session) ([]types.Grant, error){
				"Acquire": func(r *rig, s *holdings.Session) ([]types.Grant, error) {
					g, err := r.try(s, "x")
					return []types.Grant{g}, err
				},
				"bind:ttl": func(r *rig, _ *holdings.Session) ([]types.Grant, error) {
					g, err := r.m.Acquire(context.Background(), nil, types.Request{Key: "x", Bind: types.BindTTL, TTL: ttl})
					return []types.Grant{g}, err
				},
				"wait and enter": func(r *rig, s *holdings.Session) ([]types.Grant, error) {
					one, two := r.ask(context.Background(), s, as("o", "k", types.WaitForever)), r.ask(context.Background(), s, as("o", "k", types.WaitForever))
					synctest.Wait()
					_, err := r.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: r.stored("k").Token})
					r.must(err)
					return []types.Grant{one.granted(t), two.granted(t)}, nil
				},
				"AcquireAll": func(r *rig, s *holdings.Session) ([]types.Grant, error) { return all(r, s, types.Request{}) },
				"AcquireAll bind:ttl": func(r *rig, _ *holdings.Session) ([]types.Grant, error) {
					return all(r, nil, types.Request{Bind: types.BindTTL, TTL: ttl})
				},
			} {
				r := newRig(t, inline)
				s := r.eitherSession()
				r.lock(s, "lease")
				r.lockTTL("k", ttl)
				synctest.Wait()
				var began atomic.Int64 // when the store's time began
				for _, op := range []string{"Acquire", "Amend"} {
					r.st.set(op, fault{then: func() { began.Store(r.clk.ahead.Load()) }})
				}
				r.clk.atRead(moment, func() { r.clk.stop(time.Second) })
				grants, err := ask(r, s)
				r.clk.next.Store(nil)
				r.must(err)
				for _, g := range grants {
					margin := g.ExpiresIn - heartbeat.Reliable(g.ExpiresIn)
					most := ttl - margin // the lease of its session begins now
					if g.Bind == types.BindTTL {
						most += time.Duration(began.Load())
					}
					if sum := g.Waited + g.ExpiresIn; g.Token == 0 || sum > most {
						t.Errorf("%s, moment %d: waited %s, %s left", name, moment, g.Waited, g.ExpiresIn)
					}
				}
			}
		})
	}
}
