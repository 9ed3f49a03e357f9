package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Another goroutine is losing the lease and has not reached this lock. A claim at this moment
// reports the loss. The store would report an unknown token, because the key may have another
// holder.
func TestClaimWhileLosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		gate := make(chan struct{})
		var sessions [2]*holdings.Session
		var losing atomic.Int64 // number of the session that loses its lock first, from 1
		var grants [2]types.Grant
		for i := range sessions {
			s, err := r.m.OpenSession(types.SessionOptions{OnLost: func(types.Lost) {
				if losing.CompareAndSwap(0, int64(i)+1) {
					<-gate
				}
			}})
			r.must(err)
			sessions[i], grants[i] = s, r.lock(s, fmt.Sprint(i))
		}
		go r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		synctest.Wait()
		other := 2 - losing.Load()
		s, g := sessions[other], grants[other]

		_, err := r.m.Release(t.Context(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		var lost *types.LostError
		if !errors.As(err, &lost) || lost.Lost.Reason != types.LostExpired {
			t.Errorf("the release: %v, want lost, expired", err)
		}
		if v, err := r.m.Get(t.Context(), s, g.Key, false); err != nil || v.Mine {
			t.Errorf("GET: own lock %v, %v", v.Mine, err)
		}
		close(gate)
	})
}

// TestALostLeaseIsRevokedAtItsDeadline: an app may believe in its lock until then, if it hears of no loss. Of a store with several
// servers, one may have lost the lease in a failover, and another one still has the lock.
// Proves: A9
func TestALostLeaseIsRevokedAtItsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		asked := time.Now()
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		if v, err := r.m.Get(t.Context(), s, "k", false); err != nil || v.Mine || len(r.losses()) != 1 {
			t.Errorf("the sidecar believes in a lost lock: %v, %v, losses %v", v.Mine, err, r.losses())
		}
		_, err := other.m.Acquire(t.Context(), other.eitherSession(), types.Request{Key: "k", Wait: time.Minute})
		if took := time.Since(asked); err != nil || took < g.ExpiresIn || took > r.m.cfg.TTL {
			t.Errorf("granted to another after %s, and the app may believe in it for %s: %v", took, g.ExpiresIn, err)
		}
	})
}

// TestALostLeaseKeepsNoKeyForItsWaiters: the store may still have the lost lease, and with it the former queue position of a call that has
// begun again. A key that is handed to this position is handed on at once.
func TestALostLeaseKeepsNoKeyForItsWaiters(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault // of the enqueue, which has no outcome yet when the lease is lost
		then  func(r *rig)
	}{
		"queued":                       {fault{}, func(*rig) {}},
		"queued after the loss":        {fault{times: 1, before: time.Second}, func(*rig) {}},
		"queued, and answered later":   {fault{times: 1, after: time.Second}, func(*rig) {}},
		"queued later, and not told":   {fault{times: 1, before: time.Second, forget: true}, func(*rig) {}},
		"the first withdrawal fails":   {fault{}, func(r *rig) { r.st.set("Withdraw", fault{times: 1, refuse: true}) }},
		"after the machine was paused": {fault{}, func(r *rig) { r.clk.suspended.Add(int64(time.Second)) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				holder := other.eitherSession()
				g := other.lock(holder, "k")
				r.st.set("Enqueue", c.fault)
				a := r.wait(r.eitherSession(), "k", time.Hour)
				c.then(r)
				r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
				time.Sleep(3 * time.Second)
				synctest.Wait()
				released := time.Now()
				other.release(holder, g)
				a.granted(t)
				if took := time.Since(released); took > time.Second {
					t.Errorf("granted %s after the release", took)
				}
			})
		})
	}
}

// TestALateEnqueueUnderALostLeaseIsWithdrawn: the enqueue was in a buffer, and is carried out after the sidecar has given it up, and after
// both withdrawals. A further withdrawal follows when no other can come, so the position does not keep the key until the lease's deadline.
func TestALateEnqueueUnderALostLeaseIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.TTL, c.RenewInterval = time.Hour, time.Minute }))
		other := r.another()
		o := other.eitherSession()
		g := other.lock(o, "k")
		r.st.set("Enqueue", fault{times: 1, before: time.Second, lose: true})
		a := r.wait(r.eitherSession(), "k", types.WaitForever)
		l, late := r.m.leases.Get(r.m.cfg.TTL), r.m.acquirer.Queue.Waiting()[0].Ref()
		r.m.leases.Lose(l, types.LostExpired)
		time.Sleep(2 * time.Second)
		if n := r.st.count("Withdraw"); n != 2 {
			t.Fatalf("%d withdrawals", n)
		}
		_, err := r.st.Store.Enqueue(context.Background(), []store.Ask{{Attempt: late, Lease: l.ID()}})
		r.must(err)
		other.release(o, g)
		r.release(a.s, a.granted(t)) // now the late one has the key
		began := time.Now()
		other.release(o, other.ask(context.Background(), o, types.Request{Key: "k", Wait: types.WaitForever}).granted(t))
		if took := time.Since(began); took > 2*r.m.cfg.StoreTimeout {
			t.Errorf("granted %s after the last holder's release", took)
		}
	})
}

// A group whose lease is lost begins again. The keys that it had are not kept until the lease is revoked, because no app knows of them.
func TestALostLeaseKeepsNoKeyForAGroup(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		holder := other.eitherSession()
		g := other.lock(holder, "b")
		a := r.waitAll(r.eitherSession(), "a", "b")
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		time.Sleep(3 * time.Second)
		released := time.Now()
		other.release(holder, g)
		a.granted(t, "a", "b")
		if took := time.Since(released); took > time.Second {
			t.Errorf("granted %s after the release", took)
		}
	})
}

// The store knows the first holder of a cohort. A later one that no app knows of is freed all the same when its lease is lost.
func TestALostLeaseKeepsNoKeyForACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o := other.eitherSession()
		a, b := other.lock(o, "a"), other.lock(o, "b")
		first := r.wait(r.eitherSession(), "a", types.WaitForever)
		group := r.waitAll(r.eitherSession(), "a", "b")
		other.release(o, a)
		r.release(first.s, first.granted(t)) // so the group has it, and waits for the other key
		synctest.Wait()
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		released := time.Now()
		other.release(o, b)
		group.granted(t, "a", "b")
		if took := time.Since(released); took > time.Second {
			t.Errorf("granted %s after the release", took)
		}
	})
}

// A lost lease is revoked only at its deadline, because an app may believe in its lock. When the app gives the lock up, it is free at once.
func TestALostLockThatIsGivenUpIsFree(t *testing.T) {
	for name, gives := range map[string]func(r *rig, s *holdings.Session, g types.Grant){
		"released": func(r *rig, s *holdings.Session, g types.Grant) {
			if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostExpired {
				t.Errorf("told %q", reason)
			}
		},
		"the session ends": func(_ *rig, s *holdings.Session, _ types.Grant) { <-s.End(types.EndDropped) },
		"released by its request": func(r *rig, s *holdings.Session, _ types.Grant) {
			out, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", RequestID: theRequest})
			if r.must(err); !out.Nothing {
				t.Errorf("told %+v", out)
			}
		},
		"broken": func(r *rig, _ *holdings.Session, _ types.Grant) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			r.must(r.m.Break(ctx, r.stored("k"), 0))
		},
		"its answer is not delivered": func(r *rig, s *holdings.Session, g types.Grant) { r.m.HandBack(s, g) },
		"released, and the first try fails": func(r *rig, s *holdings.Session, g types.Grant) {
			r.st.set("Release", fault{times: 1, refuse: true})
			_ = r.tryRelease(s, "k", g.Token)
			time.Sleep(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s := r.eitherSession()
				g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", RequestID: theRequest})
				r.must(err)
				a := other.wait(other.eitherSession(), "k", time.Hour)
				r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
				gives(r, s, g)
				given := time.Now()
				a.granted(t)
				if took := time.Since(given); took > time.Second {
					t.Errorf("granted %s later", took)
				}
			})
		})
	}
}

var theRequest = uuid.New()

// The app may believe in a lost lock until it has given up each entry.
func TestALostLockIsFreeAfterItsLastEntry(t *testing.T) {
	for name, gives := range map[string]func(r *rig, s *holdings.Session, g types.Grant){
		"released":                func(r *rig, s *holdings.Session, g types.Grant) { _ = r.tryRelease(s, "k", g.Token) },
		"released by its request": func(r *rig, s *holdings.Session, _ types.Grant) { r.releaseRequest(s, theRequest) },
		"the wrong number, and released": func(r *rig, s *holdings.Session, g types.Grant) {
			_, _ = r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token, Reentry: 1})
			_ = r.tryRelease(s, "k", g.Token)
		},
		"the answer of the second is not delivered": func(r *rig, s *holdings.Session, g types.Grant) { r.m.HandBack(s, g) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s := r.eitherSession()
				req := types.Request{Key: "k", Owner: "o", Reentrant: true}
				_, err := r.m.Acquire(context.Background(), s, req)
				r.must(err)
				req.RequestID = theRequest
				g, err := r.m.Acquire(context.Background(), s, req)
				r.must(err)
				a := other.wait(other.eitherSession(), "k", time.Hour)
				r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
				gives(r, s, g)
				time.Sleep(time.Second)
				if a.isOver() {
					t.Error("another has the lock, and the app may believe in its first entry")
				}
				if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostExpired {
					t.Errorf("told %q", reason)
				}
				given := time.Now()
				a.granted(t)
				if took := time.Since(given); took > time.Second {
					t.Errorf("granted %s later", took)
				}
			})
		})
	}
}

func (r *rig) releaseRequest(s *holdings.Session, id uuid.UUID) {
	r.t.Helper()
	_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", RequestID: id})
	r.must(err)
}

// A pause of the machine ends the trust in a lease before anybody notices. A release whose first try fails then is repeated.
func TestAReleaseIsRepeatedAfterAPause(t *testing.T) {
	for name, gives := range map[string]func(r *rig, s *holdings.Session, g types.Grant){
		"released":         func(r *rig, s *holdings.Session, g types.Grant) { _ = r.tryRelease(s, "k", g.Token) },
		"the session ends": func(_ *rig, s *holdings.Session, _ types.Grant) { s.End(types.EndDropped) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s := r.eitherSession()
				g := r.lock(s, "k")
				a := other.wait(other.eitherSession(), "k", time.Hour)
				r.st.set("Release", fault{times: 1, refuse: true, before: 100 * time.Millisecond})
				go gives(r, s, g)
				synctest.Wait()
				r.clk.suspended.Add(int64(time.Second))
				given := time.Now()
				a.granted(t)
				if took := time.Since(given); took > 2*time.Second {
					t.Errorf("granted %s later", took)
				}
			})
		})
	}
}

// A repeat of a bind:ttl request has the same attempt id, so a late answer to an attempt that is over withdraws nothing.
func TestALateAnswerDoesNotEndTheGrantOfARepeat(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		holder := other.eitherSession()
		g := other.lock(holder, "k")
		a := r.ask(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour, Wait: time.Hour, RequestID: theRequest})
		synctest.Wait()
		proceed := r.st.hold("Check")
		r.m.acquirer.Queue.LookAgain()
		time.Sleep(time.Second)
		if n := r.st.count("Check"); n != 1 {
			t.Fatalf("%d checks are under way", n)
		}
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		time.Sleep(time.Second) // the call is queued again, under another lease
		other.release(holder, g)
		got := a.granted(t)
		proceed()
		time.Sleep(2 * time.Second)
		if l := r.stored("k"); !l.Held || l.Token != got.Token {
			t.Errorf("the app has token %d, and the store %+v", got.Token, l)
		}
	})
}

// The release of a lost lock is repeated until its deadline, and counts once, however often the lock is given up.
func TestALostLockIsGivenUpOnce(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		others := []types.Grant{r.lock(s, "k"), r.lock(s, "l")}
		defer func() {
			for _, g := range others {
				if reason := lostReason(r.tryRelease(s, g.Key, g.Token)); reason != types.LostExpired {
					t.Errorf("told %q afterwards", reason)
				}
			}
		}()
		g := r.lock(s, "m")
		l := r.m.leases.Get(r.m.cfg.TTL)
		r.m.leases.Lose(l, types.LostExpired)
		r.st.setAll(fault{refuse: true})
		_ = r.tryRelease(s, "m", g.Token)
		_ = r.tryRelease(s, "m", g.Token)
		began := time.Now()
		if n := r.st.asked("Release"); n > 1 {
			t.Errorf("%d releases of one lock", n)
		}
		<-s.End(types.EndDeleted)
		<-s.End(types.EndDropped)
		if took := time.Since(began); took < 14*time.Second || took > 16*time.Second {
			t.Errorf("the session was released after %s", took)
		}
		if n := l.Users(); n != 0 {
			t.Errorf("the lost lease has %d users", n)
		}
		r.st.lift(everyOp...)
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// Stop does not wait until the deadline of a lost lease.
func TestStopDoesNotWaitForALostLock(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		r.lock(r.eitherSession(), "k")
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		r.st.setAll(fault{refuse: true})
		began := time.Now()
		r.m.Stop()
		if took := time.Since(began); took > 3*r.m.cfg.StoreTimeout {
			t.Errorf("took %s", took)
		}
		n := r.st.total()
		time.Sleep(time.Hour)
		if later := r.st.total(); later != n {
			t.Errorf("%d calls of the store after Stop", later-n)
		}
	})
}

// A session that has lost as many locks as it may have still notices a further loss.
func TestALateLossIsNoted(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxLocksPerSession = 1 }))
		other := r.another(opt)
		s := r.eitherSession()
		var g types.Grant
		for _, key := range []string{"earlier", "k"} {
			g = r.lock(s, key)
			r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		}
		a := other.wait(other.eitherSession(), "k", time.Hour)
		if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostExpired {
			t.Errorf("told %q", reason)
		}
		given := time.Now()
		a.granted(t)
		if took := time.Since(given); took > time.Second {
			t.Errorf("granted %s later", took)
		}
	})
}
