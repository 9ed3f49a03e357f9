package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// stage brings a call into one state of its attempt. The call stays there until proceed is called.
type stage struct {
	name    string
	request types.Request
	// occupied: another sidecar holds the key meanwhile.
	occupied bool
	// held is the operation that hangs, before or after it is carried out.
	held  string
	after bool
}

func stages() []stage {
	var all []stage
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		for _, after := range []bool{false, true} {
			suffix := " " + bind.String() + map[bool]string{true: " answer"}[after]
			forever := types.Request{Key: "k", Wait: types.WaitForever, Bind: bind, TTL: time.Hour}
			once := forever
			once.Wait = 0
			all = append(all,
				stage{"opening" + suffix, forever, false, "OpenLeases", after},
				stage{"asking once" + suffix, once, false, "Acquire", after},
				stage{"asking" + suffix, forever, false, "Acquire", after},
				stage{"asking for a held key" + suffix, forever, true, "Acquire", after},
				stage{"enqueuing" + suffix, forever, true, "Enqueue", after},
				stage{"queued" + suffix, forever, true, "", after},
				stage{"cancelling" + suffix, types.Request{Key: "k", Wait: time.Millisecond, Bind: bind, TTL: time.Hour}, true, "Cancel", after},
			)
		}
	}
	return all
}

// eachStage runs a test in every state of an attempt. The test ends the call. Then all operations
// that hang proceed and the holder releases. Nothing may be left.
func eachStage(t *testing.T, leave func(r *rig, s *holdings.Session, cancel context.CancelFunc), want error) {
	for _, st := range stages() {
		for _, freed := range []string{"released late", "released early"} {
			t.Run(st.name+" "+freed, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					// Another sidecar holds the key, so that the waiter passes through all states.
					other := r.another()
					o, s := other.eitherSession(), r.eitherSession()
					var g types.Grant
					if st.occupied {
						g = other.lock(o, "k")
					}
					proceed := func() {}
					switch {
					case st.held != "" && st.after:
						proceed = r.st.holdAnswer(st.held)
					case st.held != "":
						proceed = r.st.hold(st.held)
					}
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					a := r.ask(ctx, s, st.request)
					time.Sleep(2 * time.Millisecond)
					synctest.Wait()
					leave(r, s, cancel)
					if st.occupied && freed == "released early" {
						other.release(o, g)
					}
					synctest.Wait()
					proceed()
					synctest.Wait()
					r.m.Drain() // bind:ttl waits do not end with a session
					<-a.done
					synctest.Wait()
					if n := r.stored("k").QueueLength; n != 0 {
						t.Errorf("%d calls are still queued", n)
					}
					if a.err == nil { // a call that does not wait may finish
						r.m.HandBack(s, a.g)
					} else if !errors.Is(a.err, want) && st.request.Bind == types.BindSession {
						t.Errorf("the call's error is %v", a.err)
					}
					if st.occupied && freed == "released late" {
						other.release(o, g)
					}
					s.End(types.EndDropped)
					r.nothingLeft()
					other.nothingLeft()
				})
			})
		}
	}
}

// Proves: promise 7, trap drop during an enqueue
func TestSessionEndsInEveryState(t *testing.T) {
	eachStage(t, func(_ *rig, s *holdings.Session, _ context.CancelFunc) { s.End(types.EndDropped) }, types.ErrSessionEnded)
}

// Proves: trap drop during an enqueue
func TestCallerLeavesInEveryState(t *testing.T) {
	eachStage(t, func(_ *rig, _ *holdings.Session, cancel context.CancelFunc) { cancel() }, types.ErrCallerLeft)
}

func TestDrainInEveryState(t *testing.T) {
	eachStage(t, func(r *rig, _ *holdings.Session, _ context.CancelFunc) { r.m.Drain() }, types.ErrDraining)
}

func TestSessionEndsWhileItsLeaseIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		proceed := r.st.hold("OpenLeases")
		a := r.wait(s, "k", types.WaitForever)
		s.End(types.EndDropped)
		<-a.done
		if !errors.Is(a.err, types.ErrSessionEnded) || a.after != 0 {
			t.Errorf("error %v after %s", a.err, a.after)
		}
		proceed()
		r.nothingLeft()
	})
}

// The lock is handed to a waiter, the news is lost, and the session ends. The cancel finds the
// grant and hands it back.
// Proves: promise 7, trap waiter cancels
func TestACancelFindsAGrant(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			other := r.another(opt)
			o, s := other.eitherSession(), r.eitherSession()
			r.lock(s, "anchor") // keeps the lease in use
			g := other.lock(o, "k")
			r.st.dropNews = true
			ctx, leave := context.WithCancel(context.Background())
			a := r.ask(ctx, s, types.Request{Key: "k", Wait: types.WaitForever, Bind: bind, TTL: time.Hour})
			synctest.Wait()
			other.release(o, g)
			leave()
			<-a.done
			synctest.Wait()
			if r.stored("k").Held {
				t.Error("still held")
			}
			s.End(types.EndDropped)
			r.nothingLeft()
		})
	}
}

// The lease is lost at any moment between the statement and its answer. The goroutine that handles
// the loss may not have seen the attempt or the lock.
// Proves: promise 2
func TestLeaseLostWhileALockIsKept(t *testing.T) {
	for moment := range 15 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, inline)
			s := r.eitherSession()
			c := r.m.acquirer.NewCall(context.Background(), s, &types.Request{Key: "k", TTL: time.Minute})
			b, err := c.NewAttempt(nil)
			r.must(err)
			synctest.Wait()
			r.clk.atRead(moment, func() {
				stack := debug.Stack()
				if bytes.Contains(stack, []byte("(*Session).")) && !bytes.Contains(stack, []byte("(*Session).Add")) {
					// The clock is read under the session's mutex.
					go r.m.leases.Lose(b.Lease(), types.LostExpired)
					return
				}
				r.m.leases.Lose(b.Lease(), types.LostExpired)
			})
			b.Start(context.Background(), r.clk.Now())
			_, err = c.Await(b)
			r.clk.next.Store(nil)
			synctest.Wait()
			if err == nil && s.Held() == 0 && len(r.losses()) == 0 {
				t.Errorf("moment %d: granted, and the loss was not reported", moment)
			}
			if s.Held() > 0 && !r.m.holdings.Get("k").Lease().Alive(clock.Read(r.clk)) {
				t.Errorf("moment %d: the lock is held under a lost lease", moment)
			}
			s.End(types.EndDropped)
			time.Sleep(time.Minute) // a lost lease is revoked at its deadline
			synctest.Wait()
			r.nothingLeft()
		})
	}
}

// hook is a log handler that calls a function at a certain message.
type hook struct {
	slog.Handler
	on  string
	run func()
}

func (h hook) Enabled(context.Context, slog.Level) bool { return true }

func (h hook) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.on) {
		h.run()
	}
	return nil
}

// The enqueue was carried out and its answer is lost. At this moment the lock is handed to the
// waiter. The lock is either held or withdrawn, and never delivered and then withdrawn.
// Proves: promise 9
func TestUnknownOutcomeMeetsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handOff func()
		log := slog.New(hook{Handler: slog.DiscardHandler, on: "outcome", run: func() { handOff() }})
		r := newRig(t, with(func(c *types.Config) { c.Logger = log }))
		holder, s := r.eitherSession(), r.eitherSession()
		g := r.lock(holder, "k")
		handOff = func() {
			_, err := r.st.Store.Release(context.Background(), []store.Claim{{Key: "k", Token: g.Token, Lease: r.stored("k").Holder.Lease}})
			r.must(err)
		}
		r.st.set("Enqueue", fault{times: 1, forget: true})
		a := r.wait(s, "k", types.WaitForever)
		<-a.done
		time.Sleep(time.Minute)
		if a.err == nil {
			if stored := r.stored("k"); !stored.Held || stored.Token != a.g.Token {
				t.Fatalf("the call got token %d, but the store has %+v", a.g.Token, stored)
			}
		} else if r.stored("k").Held {
			t.Fatalf("the call's error is %v, but the lock is held", a.err)
		}
	})
}

// An acquire of unknown outcome is withdrawn for as long as its lease is renewed, because its lock
// could live as long.
// Proves: promise 9
func TestUnknownOutcomeIsWithdrawn(t *testing.T) {
	for _, f := range []fault{{times: 1, forget: true}, {times: 1, lose: true}} {
		for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				anchor := r.lock(s, "anchor") // keeps the lease in use
				r.st.set("Acquire", f)
				r.st.set("Withdraw", fault{refuse: true})
				_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", Bind: bind, TTL: 15 * time.Second, NoCache: true})
				if !store.OutcomeUnknown(err) {
					t.Fatalf("error %v", err)
				}
				time.Sleep(5 * time.Minute)
				r.st.lift("Withdraw")
				time.Sleep(time.Second)
				if r.stored("k").Held {
					t.Error("still held")
				}
				r.release(s, anchor)
				r.nothingLeft()
			})
		}
	}
}

// A wait whose cancel failed is withdrawn, too.
// Proves: promise 9
func TestAFailedCancelIsWithdrawn(t *testing.T) {
	for _, f := range []fault{{times: 1, refuse: true}, {times: 1, lose: true}, {times: 1, forget: true}} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s := r.explicitSession()
			g := r.lock(s, "k")
			r.st.set("Cancel", f)
			a := r.wait(s, "k", time.Second)
			if <-a.done; !store.Unavailable(a.err) {
				t.Errorf("error %v", a.err)
			}
			synctest.Wait()
			if n := r.stored("k").QueueLength; n != 0 {
				t.Errorf("%d calls are still queued", n)
			}
			r.release(s, g)
			r.nothingLeft()
		})
	}
}

// A grant whose call has left is handed back, however long the store fails, if it renews the lease
// meanwhile.
// Proves: promise 7, trap give-up at the grant
func TestUnwantedGrantIsHandedBackInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, other := r.eitherSession(), r.eitherSession()
		anchor := r.lock(other, "anchor")
		proceed := r.st.holdAnswer("Acquire")
		a := r.wait(s, "k", types.WaitForever)
		s.End(types.EndDropped)
		<-a.done
		r.st.set("Release", fault{refuse: true})
		proceed()
		time.Sleep(5 * time.Minute)
		r.st.lift("Release")
		time.Sleep(time.Second)
		if r.stored("k").Held {
			t.Error("still held")
		}
		r.release(other, anchor)
		r.nothingLeft()
	})
}

// Attempts of unknown outcome are withdrawn in batches.
func TestWithdrawalsAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.st.set("Acquire", fault{lose: true})
		r.st.set("Withdraw", fault{refuse: true})
		var asked []*answer
		for range 500 {
			asked = append(asked, r.ask(context.Background(), nil, types.Request{Key: uuid.NewString(), Bind: types.BindTTL, TTL: time.Hour}))
		}
		for _, a := range asked {
			<-a.done
		}
		time.Sleep(10 * time.Second)
		r.st.lift("Acquire")
		r.st.set("Withdraw", fault{before: 5 * time.Millisecond})
		before := r.st.count("Withdraw")
		time.Sleep(10 * time.Second)
		if n := r.st.count("Withdraw") - before; n > 100 {
			t.Errorf("500 withdrawals took %d statements", n)
		}
		r.nothingLeft()
	})
}

// A sidecar believes to hold a lock, and the store grants this lock again. The store is right,
// because an asynchronous failover may have lost the first grant.
func TestTheStoreIsRight(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		first := r.lock(s, "k")
		forget := func(g types.Grant) {
			claim := store.Claim{Key: "k", Token: g.Token, Lease: r.stored("k").Holder.Lease}
			_, err := r.st.Store.Release(context.Background(), []store.Claim{claim})
			r.must(err)
		}
		forget(first)
		second := r.lock(other, "k")
		if h := r.m.holdings.Get("k"); h == nil || h.Token != second.Token {
			t.Errorf("in the sidecar: %+v", h)
		}
		view, err := r.m.Get(context.Background(), s, "k", false)
		r.must(err)
		if view.Mine || len(r.losses()) != 1 {
			t.Errorf("got %+v, lost %v", view, r.losses())
		}
		forget(second)
		third := r.lock(other, "k") // the same session
		if len(r.losses()) != 2 || other.Held() != 1 {
			t.Errorf("lost %v, holds %d", r.losses(), other.Held())
		}
		r.release(other, third)
		r.nothingLeft()
	})
}
