package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// After a release by the id, no call has the grant, even if late events arrive for calls that had
// it. A grant of the next call whose answer is lost is withdrawn.
func TestReleaseByRequestForgetsTheGrant(t *testing.T) {
	for name, release := range map[string]func(r *rig, req types.Request, g types.Grant){
		"released": func(r *rig, req types.Request, _ types.Grant) { r.releaseBy(nil, req) },
		"released before its answer was found undelivered": func(r *rig, req types.Request, g types.Grant) {
			r.releaseBy(nil, req)
			r.m.HandBack(nil, g)
		},
		"released by token before": func(r *rig, req types.Request, g types.Grant) {
			r.release(nil, g)
			r.nothingUnder(nil, req)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				req := repeatable(0)
				req.TTL = time.Hour
				release(r, req, r.get(nil, req))
				synctest.Wait()
				r.st.set("Acquire", fault{times: 1, forget: true})
				_, err := r.m.Acquire(context.Background(), nil, req)
				if !store.OutcomeUnknown(err) {
					t.Fatalf("error %v", err)
				}
				time.Sleep(time.Minute)
				if r.stored("k").Held {
					t.Errorf("not delivered, but still held a minute later (%d withdrawals)", r.st.count("Withdraw"))
				}
			})
		})
	}
}

// A release by the id for any key ends all calls for several keys with that id, also a call that
// waits for its turn.
func TestReleaseByRequestEndsAGroupThatWaitsForItsTurn(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		for _, key := range []string{"a", "b", "c"} {
			t.Run(bind.String()+" "+key, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					s, o := r.explicitSession(), r.eitherSession()
					b := r.lock(o, "b")
					req := once(types.WaitForever)
					req.Bind = bind
					first := r.askAll(context.Background(), s, req, "a", "b", "c")
					second := r.askAll(context.Background(), s, req, "a", "b", "c")
					req.Key = key
					r.nothingUnder(s, req)
					synctest.Wait()
					if !first.isOver() || !second.isOver() {
						t.Fatalf("over: %t and %t", first.isOver(), second.isOver())
					}
					if !errors.Is(first.err, types.ErrWithdrawn) || !errors.Is(second.err, types.ErrWithdrawn) {
						t.Errorf("errors %v and %v", first.err, second.err)
					}
					r.release(o, b)
				})
			})
		}
	}
}

// A repeat does not get a grant whose release may still be carried out, because its caller has left
// or its answer was lost.
func TestRepeatWaitsForAReleaseThatMayCome(t *testing.T) {
	t.Run("the caller has left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			req := repeatable(0)
			r.get(nil, req)
			proceed := r.st.hold("Release")
			ctx, leave := context.WithCancel(context.Background())
			done := make(chan error)
			go func() {
				_, err := r.m.Release(ctx, nil, types.ReleaseRequest{Key: "k", RequestID: req.RequestID})
				done <- err
			}()
			synctest.Wait()
			leave()
			if err := <-done; !errors.Is(err, types.ErrCallerLeft) {
				t.Fatalf("error %v", err)
			}
			again := r.ask(context.Background(), nil, req)
			synctest.Wait()
			proceed()
			g := again.granted(t)
			synctest.Wait()
			if l := r.stored("k"); !l.Held || l.Token != g.Token {
				t.Errorf("the call got token %d, the store has %+v", g.Token, l)
			}
		})
	})
	t.Run("the answer was lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			req := repeatable(0)
			first := r.get(nil, req)
			r.st.set("Release", fault{times: 1, lose: true})
			_, err := r.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", RequestID: req.RequestID})
			if !store.OutcomeUnknown(err) {
				t.Fatal(err)
			}
			g := r.get(nil, req)
			if g.Token == first.Token {
				t.Error("got the grant that is being released")
			}
		})
	})
}

// A lock that was lost before its delivery does not keep its key for its MinHold, even if its
// session ends at that moment.
func TestLostBeforeDeliveryInAnEndedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		c, b := r.won(s, types.Request{Key: "k", TTL: 15 * time.Second, MinHold: time.Hour})
		h := r.m.holdings.Get("k")
		r.m.leases.Lose(h.Lease(), types.LostStore)
		s.End(types.EndDropped)
		if _, err := c.Await(b); !errors.Is(err, types.ErrSessionEnded) {
			t.Errorf("error %v", err)
		}
		s.Leave(&c.Admission)
		time.Sleep(time.Minute)
		if l := r.stored("k"); l.Held {
			t.Errorf("the key is kept for another %s", l.Holder.ExpiresIn)
		}
	})
}

// A release by the id that fails at one sidecar does not count as a delivery. Another sidecar,
// whose grant was not delivered, still hands it back.
func TestFailedReleaseByRequestDoesNotDeliverAGrant(t *testing.T) {
	for name, f := range map[string]fault{"refused": {refuse: true}, "lost": {lose: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				req := repeatable(0)
				req.TTL = time.Hour
				g := r.get(nil, req)
				other.st.set("Release", f)
				if _, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", RequestID: req.RequestID}); err == nil {
					t.Fatal("released")
				}
				r.m.HandBack(nil, g)
				time.Sleep(time.Second)
				if r.stored("k").Held {
					t.Error("not delivered, but still held")
				}
				other.st.lift("Release")
				time.Sleep(time.Minute)
				r.nothingLeft()
				other.nothingRemembered()
			})
		})
	}
}

// A release by the id does not report that there is no grant while a release by token is in
// progress.
func TestReleaseByIDMeetsAReleaseByToken(t *testing.T) {
	for moment := range 12 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			synctest.Wait() // what runs by itself does not read the clock then
			s := r.explicitSession()
			req := once(0)
			g := r.get(s, req)
			proceed := r.st.hold("Release")
			byToken, byID, began := make(chan struct{}), make(chan struct{}), false
			r.clk.atRead(moment, func() {
				began = true
				go func() {
					defer close(byToken)
					_, _ = r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token})
				}()
				time.Sleep(time.Millisecond) // the release is in progress
			})
			go func() {
				defer close(byID)
				_, _ = r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", RequestID: req.RequestID})
			}()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			r.clk.next.Store(nil)
			select {
			case <-byID:
				if r.stored("k").Held {
					t.Errorf("moment %d: returned while the key is held", moment)
				}
			default:
			}
			proceed()
			<-byID
			if began {
				<-byToken
			}
		})
	}
}

// A release by the id keeps its turn until the store has answered, even if its caller has left. So
// its cancel does not end a later call.
func TestLateCancelOfAReleaseByID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		o := r.eitherSession()
		g := r.lock(o, "k")
		req := repeatable(types.WaitForever)
		proceed := r.st.hold("Cancel")
		ctx, leave := context.WithCancel(context.Background())
		released := make(chan struct{})
		go func() {
			defer close(released)
			_, _ = r.m.Release(ctx, nil, types.ReleaseRequest{Key: "k", RequestID: req.RequestID})
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		first := r.ask(context.Background(), nil, req)
		synctest.Wait()
		proceed()
		<-released
		synctest.Wait()
		second := r.wait(r.eitherSession(), "k", types.WaitForever)
		r.release(o, g)
		synctest.Wait()
		if !first.isOver() || second.isOver() {
			t.Errorf("first over: %t, second over: %t", first.isOver(), second.isOver())
		}
	})
}
