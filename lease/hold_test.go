package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// A lock is released, and lost, when its MaxHold is over. Later claims get this reason for as long
// as the session lives.
func TestMaxHold(t *testing.T) {
	for name, wait := range map[string]time.Duration{"free key": 0, "hand-off": types.WaitForever} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s, o := r.eitherSession(), r.eitherSession()
				before := r.lockTTL("k", 5*time.Second)
				if wait == 0 {
					r.release(nil, before)
				}
				a := r.ask(context.Background(), s, types.Request{Key: "k", Wait: wait, MaxHold: 10 * time.Second, Owner: "o"})
				g := a.granted(t)
				if g.ExpiresIn > 10*time.Second {
					t.Errorf("guaranteed for %s", g.ExpiresIn)
				}
				r.get(s, as("o", "k", 0))
				granted := a.at
				next := r.wait(o, "k", types.WaitForever)
				got := next.granted(t)
				if held := next.at.Sub(granted); held > 10*time.Second || held < 9*time.Second {
					t.Errorf("held for %s", held)
				}
				if l := r.losses(); len(l) != 1 || l[0] != (types.Lost{Key: "k", Token: g.Token, Reason: types.LostMaxHold}) {
					t.Errorf("got %+v", l)
				}
				time.Sleep(time.Hour)
				if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostMaxHold {
					t.Errorf("claim: %q", reason)
				}
				r.release(o, got)
				r.nothingLeft()
			})
		})
	}
}

// Every read checks MaxHold itself, because a timer may be late.
// Proves: promise 11
func TestMaxHoldIsCheckedOnEveryRead(t *testing.T) {
	ctx := context.Background()
	for name, read := range map[string]func(*rig, *holdings.Session, types.Grant) bool{
		"amend": func(r *rig, s *holdings.Session, g types.Grant) bool {
			return lostReason(r.amend(s, g)) == types.LostMaxHold
		},
		"release": func(r *rig, s *holdings.Session, g types.Grant) bool {
			return lostReason(r.tryRelease(s, "k", g.Token)) == types.LostMaxHold
		},
		"get": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			v, _ := r.m.Get(ctx, s, "k", false)
			return !v.Mine
		},
		"fresh": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			v, _ := r.m.Get(ctx, s, "k", true)
			return !v.Mine
		},
		"list": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			p, _ := r.m.List(ctx, s, types.ListRequest{Scope: types.ScopeSession, Limit: 1})
			return len(p.Locks) == 0
		},
		"enter": func(r *rig, s *holdings.Session, _ types.Grant) bool {
			_, err := r.m.Acquire(ctx, s, as("o", "k", 0))
			return err != nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				g := r.get(s, types.Request{Key: "k", MaxHold: 2 * time.Second, Owner: "o"})
				r.st.set("Release", fault{refuse: true})
				r.clk.stop(2 * time.Second)
				if !read(r, s, g) {
					t.Error("read as held")
				}
				r.st.lift("Release") // the release is retried until it is confirmed
				time.Sleep(3 * time.Second)
				r.nothingLeft()
			})
		})
	}
}

// MaxHold counts from the call to the store. If it is over before the answer, the lock is not
// reported as held.
func TestMaxHoldOverBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.lock(s, "other")
		r.st.set("Acquire", fault{after: time.Second})
		if g := r.get(s, types.Request{Key: "k", MaxHold: 3 * time.Second, NoCache: true}); g.ExpiresIn != 2*time.Second {
			t.Errorf("guaranteed for %s", g.ExpiresIn)
		}
		if _, err := r.m.Acquire(context.Background(), s, types.Request{Key: "l", MaxHold: time.Second}); !store.Unavailable(err) {
			t.Errorf("error %v", err)
		}
		s.End(types.EndDropped)
		time.Sleep(time.Second)
		r.nothingLeft()
	})
}

// A lock that is released in time is not reported as lost at the end of its MaxHold.
func TestReleasedBeforeMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.release(s, r.get(s, types.Request{Key: "k", MaxHold: time.Second}))
		g := r.get(s, types.Request{Key: "k"})
		time.Sleep(time.Minute)
		if l := r.losses(); len(l) != 0 {
			t.Errorf("got %+v", l)
		}
		r.release(s, g)
	})
}

// A key is not granted again before its MinHold is over, even if the holder is dead. A waiter gets
// the key just then.
func TestMinHold(t *testing.T) {
	for name, end := range map[string]func(*rig, *holdings.Session, types.Grant){
		"released":      func(r *rig, s *holdings.Session, g types.Grant) { r.release(s, g) },
		"session ended": func(_ *rig, s *holdings.Session, _ types.Grant) { s.End(types.EndDropped) },
		"kept":          func(*rig, *holdings.Session, types.Grant) {},
		"lease lost":    func(r *rig, _ *holdings.Session, _ types.Grant) { r.clk.stop(time.Minute) },
		"stopped":       func(r *rig, _ *holdings.Session, _ types.Grant) { r.m.Stop() },
		"max_hold":      func(*rig, *holdings.Session, types.Grant) { time.Sleep(25 * time.Second) },
	} {
		for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
			if bind == types.BindTTL && name != "released" {
				continue
			}
			t.Run(name+" "+bind.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T, opt option) {
					r := newRig(t, opt)
					other := r.another(opt)
					s, o := r.eitherSession(), other.eitherSession()
					req := types.Request{Key: "k", MinHold: 30 * time.Second, TTL: 2 * time.Second, Bind: bind}
					if name == "max_hold" {
						req.MinHold, req.MaxHold = 25*time.Second, 25*time.Second
					}
					g := r.get(s, req)
					hold := req.MinHold
					a := other.wait(o, "k", types.WaitForever)
					time.Sleep(time.Second)
					switch end(r, s, g); name {
					case "kept":
						time.Sleep(time.Minute)
						if a.isOver() {
							t.Fatalf("got %+v, %v", a.g, a.err)
						}
						r.release(s, g)
						hold = time.Minute + time.Second
					case "released":
						if reason := refusedFor(r.tryRelease(s, "k", g.Token)); reason != types.ReasonReleased {
							t.Errorf("second release: %q", reason)
						}
					}
					got := a.granted(t)
					if a.after < hold || a.after > hold+2*attempt.CheckPause {
						t.Errorf("granted after %s", a.after)
					}
					other.release(o, got)
					s.End(types.EndDropped)
					time.Sleep(time.Minute)
					r.nothingLeft()
				})
			})
		}
	}
}

// Locks with a MinHold share a lease with other locks. Their release does not end the lease.
func TestMinHoldUnderASharedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		var held []types.Grant
		for i := range 30 {
			held = append(held, r.get(s, types.Request{Key: string(rune('a' + i)), MinHold: time.Minute}))
		}
		plain := r.lock(s, "plain")
		for _, g := range held {
			r.release(s, g)
		}
		if n := r.st.asked("OpenLeases"); n != 1 {
			t.Errorf("%d leases opened", n)
		}
		time.Sleep(50 * time.Second)
		r.release(s, plain)
		time.Sleep(15 * time.Second)
		r.nothingLeft()
	})
}

// A lock that was not delivered is freed at once, without its MinHold.
func TestMinHoldUndelivered(t *testing.T) {
	minute := types.Request{Key: "k", MinHold: time.Hour, NoCache: true}
	for name, lose := range map[string]func(*rig, *holdings.Session){
		"answer lost": func(r *rig, s *holdings.Session) {
			r.st.set("Acquire", fault{times: 1, forget: true})
			r.st.set("Withdraw", fault{times: 2, lose: true})
			_, _ = r.m.Acquire(context.Background(), s, minute)
		},
		"call left": func(r *rig, s *holdings.Session) {
			r.st.set("Acquire", fault{after: time.Second, times: 1})
			r.st.set("Release", fault{times: 2, lose: true})
			ctx, cancel := context.WithCancel(context.Background())
			a := r.ask(ctx, s, minute)
			synctest.Wait()
			cancel()
			<-a.done
		},
		"lease lost before the answer": func(r *rig, s *holdings.Session) {
			r.st.set("Acquire", fault{after: 2 * time.Second, times: 1})
			ctx, cancel := context.WithCancel(context.Background())
			a := r.ask(ctx, s, minute)
			time.Sleep(time.Second)
			r.revokeLeases()
			cancel()
			<-a.done
		},
		"lease lost before it is handed back": func(r *rig, s *holdings.Session) {
			g := r.get(s, minute)
			r.st.set("Release", fault{refuse: true, times: 2})
			r.revokeLeases()
			r.m.HandBack(s, g)
		},
		"discarded": func(r *rig, s *holdings.Session) { r.m.HandBack(s, r.get(s, minute)) },
		"discarded bind:ttl": func(r *rig, _ *holdings.Session) {
			req := minute
			req.Bind, req.TTL = types.BindTTL, time.Minute
			r.m.HandBack(nil, r.get(nil, req))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := r.eitherSession()
				lose(r, s)
				time.Sleep(20 * time.Second)
				r.nothingLeft()
			})
		})
	}
}
