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

// once returns a session's request with an id.
func once(wait time.Duration) types.Request {
	return types.Request{Key: "k", Wait: wait, NoCache: true, RequestID: uuid.New()}
}

// releaseBy releases the grant of a request.
func (r *rig) releaseBy(s *holdings.Session, req types.Request) types.Released {
	r.t.Helper()
	out, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: req.Key, RequestID: req.RequestID})
	r.must(err)
	return out
}

// releasing releases, beside the test, the present or future grant of a request.
func (r *rig) releasing(s *holdings.Session, req types.Request) (over func() types.Released) {
	done := make(chan struct{})
	var out types.Released
	var err error
	go func() {
		defer close(done)
		out, err = r.m.Release(context.Background(), s, types.ReleaseRequest{Key: req.Key, RequestID: req.RequestID})
	}()
	synctest.Wait()
	return func() types.Released {
		<-done
		r.must(err)
		return out
	}
}

// nothingUnder checks that a request has no grant.
func (r *rig) nothingUnder(s *holdings.Session, req types.Request) {
	r.t.Helper()
	if out := r.releaseBy(s, req); !out.Nothing {
		r.t.Errorf("released %+v", out)
	}
}

// Proves: promise 9
func TestRepeatInASessionGetsTheSameGrant(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.explicitSession(), r.eitherSession()
		req := once(0)
		first := r.get(s, req)
		asked := r.st.count("Acquire")
		again := req
		again.Wait, again.Data, again.TTL = time.Second, []byte(`1`), time.Minute // ignored in a repeat
		time.Sleep(time.Second)
		second := r.get(s, again)
		if second.Token != first.Token || second.Reentry != 1 || !second.AcquiredAt.Equal(first.AcquiredAt) {
			t.Errorf("got %+v, then %+v", first, second)
		}
		if n := r.st.count("Acquire"); n != asked {
			t.Errorf("%d further calls to the store", n-asked)
		}
		if second.Waited != 0 || r.stored("k").Holder.Data != nil {
			t.Errorf("got %+v", second)
		}

		var held *types.HeldError
		if _, err := r.m.Acquire(context.Background(), other, req); !errors.As(err, &held) { // the same id in another session is another request
			t.Errorf("another session: error %v", err)
		}
		if _, err := r.try(s, "k"); !errors.As(err, &held) {
			t.Errorf("without an id: error %v", err)
		}
		r.release(s, first) // one release, however often the grant was returned
		if r.stored("k").Held {
			t.Error("still held")
		}
		third := r.get(s, req)
		if third.Token <= first.Token {
			t.Error("a grant that was released was given again")
		}
		r.release(s, third)
		r.nothingLeft()
	})
}

// A repeat arrives in each state of the first call.
// Proves: promise 9
func TestRepeatWaitsForTheFirstCall(t *testing.T) {
	for _, op := range []string{"", "Acquire", "Enqueue", "OpenLeases"} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s, o := r.explicitSession(), r.eitherSession()
			g := r.lock(o, "k")
			proceed := func() {}
			if op != "" {
				proceed = r.st.holdAnswer(op)
			}
			req := once(types.WaitForever)
			req.TTL = 20 * time.Second // a lease with this TTL must be opened
			var asked []*answer
			for range 5 {
				asked = append(asked, r.ask(context.Background(), s, req))
			}
			synctest.Wait()
			proceed()
			r.release(o, g)
			first := asked[0].granted(t)
			for _, a := range asked {
				if got := a.granted(t); got.Token != first.Token || got.Reentry != 1 {
					t.Errorf("got %+v and %+v", first, got)
				}
			}
			r.mustBe(first)
			r.release(s, first)
			r.nothingLeft()
		})
	}
}

// A repeat of a call that has left gets the lock itself, after the possible grant of the first call
// is withdrawn.
func TestRepeatAfterTheFirstCallHasLeft(t *testing.T) {
	for _, op := range []string{"Acquire", "Enqueue"} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s, o := r.explicitSession(), r.eitherSession()
			g := r.lock(o, "k")
			proceed := r.st.holdAnswer(op)
			req := once(time.Minute)
			ctx, leave := context.WithCancel(context.Background())
			first := r.ask(ctx, s, req)
			synctest.Wait()
			leave()
			synctest.Wait()
			second := r.ask(context.Background(), s, req)
			synctest.Wait()
			proceed()
			r.release(o, g)
			<-first.done
			if first.err == nil {
				r.m.HandBack(s, first.g) // the answer of the first was not delivered; the second call may have the same grant
			}
			got := second.granted(t)
			time.Sleep(time.Second)
			r.mustBe(got)
			r.release(s, got)
			r.nothingLeft()
		})
	}
}

// One of several answers with the same grant does not arrive. The other calls keep the grant.
func TestRepeatKeepsAGrantThatWasNotDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		req := once(0)
		first, second := r.get(s, req), r.get(s, req)
		r.m.HandBack(s, first)
		synctest.Wait()
		r.mustBe(second)
		r.m.HandBack(s, second)
		synctest.Wait()
		if r.stored("k").Held {
			t.Error("held although no call has the grant")
		}
		r.nothingLeft()
	})
}

// An unknown outcome is resolved before a repeat calls the store.
func TestRepeatAfterAnUnknownOutcome(t *testing.T) {
	for _, f := range []fault{{times: 1, lose: true}, {times: 1, forget: true}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			s := r.explicitSession()
			r.st.set("Acquire", f)
			r.st.set("Withdraw", fault{before: time.Second})
			req := once(0)
			if _, err := r.m.Acquire(context.Background(), s, req); !store.OutcomeUnknown(err) {
				t.Fatalf("error %v", err)
			}
			if _, err := r.m.Acquire(context.Background(), s, req); !store.Unavailable(err) { // the error must not be that the request's own grant holds the key
				t.Errorf("error %v", err)
			}
			time.Sleep(20 * time.Second)
			g := r.get(s, req)
			time.Sleep(20 * time.Second)
			r.mustBe(g)
			r.release(s, g)
			r.nothingLeft()
		})
	}
}

// Proves: promise 9
func TestRepeatOfAReentryCountsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		enter := func() types.Request {
			req := once(0)
			req.Owner, req.Reentrant = "o", true
			return req
		}
		outer, inner, innermost := enter(), enter(), enter()
		r.get(s, outer)
		for range 3 {
			if g := r.get(s, inner); g.Reentry != 2 {
				t.Errorf("got %d entries", g.Reentry)
			}
		}
		if g := r.get(s, outer); g.Reentry != 1 {
			t.Errorf("entry %d", g.Reentry)
		}
		lost := r.get(s, innermost)
		if out := r.releaseBy(s, innermost); out.Reentry != 2 {
			t.Errorf("released %+v", out)
		}
		r.m.HandBack(s, lost) // the lost answer of an entry that is over
		r.nothingUnder(s, innermost)
		if g := r.get(s, innermost); g.Reentry != 3 {
			t.Errorf("entry %d", g.Reentry)
		}
		r.m.HandBack(s, lost) // the same id now has a later entry
		for _, req := range []types.Request{outer, inner} {
			if out := r.releaseBy(s, req); out.Reentry != 3 || out.Nothing { // the newest entry keeps its number
				t.Errorf("released %+v", out)
			}
			r.nothingUnder(s, req)
		}
		if out := r.releaseBy(s, innermost); out.Reentry != 0 || out.Nothing {
			t.Errorf("released %+v", out)
		}
		r.nothingLeft()
	})
}

// A release by the id of a request removes the entry of this request. Another entry, whose answer
// was lost, can still be released by its own id.
func TestReleaseOfOneEntry(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		enter := func() types.Request {
			req := once(0)
			req.Owner, req.Reentrant = "o", true
			return req
		}
		outer, inner := enter(), enter()
		g := r.get(s, outer)
		r.get(s, inner) // this answer is lost
		for range 2 {   // a release and a repeat
			out, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token, RequestID: outer.RequestID})
			if err != nil || out.Reentry != 2 {
				t.Errorf("released %+v, %v", out, err)
			}
		}
		if out := r.releaseBy(s, inner); out.Nothing || out.Reentry != 0 {
			t.Errorf("released %+v", out)
		}
		r.nothingLeft()
	})
}

// Entries that are over are not remembered.
func TestEntriesThatAreOverAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, inline)
		s := r.explicitSession()
		last := once(0)
		last.Owner, last.Reentrant = "o", true
		r.get(s, last)
		for range 1000 { // each entry before the release of the one before
			next := last
			next.RequestID = uuid.New()
			r.get(s, next)
			r.releaseBy(s, last)
			last = next
		}
		if n := r.m.holdings.Remembered()["entries"]; n != 1 {
			t.Errorf("%d entries are remembered", n)
		}
		r.releaseBy(s, last)
		r.nothingLeft()
	})
}

// A release by the id reports that there is no grant only if no release is in progress.
func TestReleaseByRequestIDWaitsForOtherReleases(t *testing.T) {
	releases := map[string]func(r *rig, s *holdings.Session, g types.Grant){
		"by token": func(r *rig, s *holdings.Session, g types.Grant) {
			if _, err := r.exit(s, g, 0); !store.Unavailable(err) {
				r.t.Errorf("error %v", err)
			}
		},
		"not delivered": func(r *rig, s *holdings.Session, g types.Grant) { r.m.HandBack(s, g) },
		"max_hold":      func(*rig, *holdings.Session, types.Grant) { time.Sleep(time.Minute) },
	}
	for name, release := range releases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := r.explicitSession()
				req := once(0)
				req.MaxHold = time.Minute
				g := r.get(s, req)
				r.st.set("Release", fault{lose: true, forget: true})
				release(r, s, g)
				synctest.Wait()
				if out, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", RequestID: req.RequestID}); !store.Unavailable(err) {
					t.Errorf("got %+v, %v", out, err)
				}
				r.st.lift("Release")
				r.nothingUnder(s, req)
				r.nothingLeft()
			})
		})
	}
}

// Proves: promise 9
func TestReleaseByRequestID(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s, other := r.explicitSession(), r.eitherSession()
			req := once(0)
			req.Bind = bind
			r.nothingUnder(s, req)
			r.get(s, req)
			time.Sleep(time.Second)
			if bind == types.BindSession {
				r.nothingUnder(other, req)
				r.nothingUnder(nil, req)
				r.mustBe(r.get(s, req))
			}
			if out := r.releaseBy(s, req); out.Nothing || out.Reentry != 0 || out.HeldFor != time.Second {
				t.Errorf("released %+v", out)
			}
			if r.stored("k").Held {
				t.Error("still held")
			}
			r.nothingUnder(s, req)
			r.release(other, r.lock(other, "k"))
			r.nothingLeft()
		})
	}
}

// A release by the id ends calls in every state. When it returns, they hold nothing and wait for
// nothing.
// Proves: promise 9
func TestReleaseByRequestIDEndsCalls(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		for _, op := range []string{"", "Acquire", "Enqueue", "OpenLeases"} {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s, o := r.explicitSession(), r.eitherSession()
				g := r.lock(o, "k")
				proceed := func() {}
				if op != "" {
					proceed = r.st.holdAnswer(op)
				}
				req := once(types.WaitForever)
				req.Bind, req.TTL = bind, 20*time.Second
				first, second := r.ask(context.Background(), s, req), r.ask(context.Background(), s, req)
				synctest.Wait()
				released := r.releasing(s, req)
				proceed()
				if out := released(); !out.Nothing {
					t.Errorf("released %+v", out)
				}
				for _, a := range []*answer{first, second} {
					if <-a.done; !errors.Is(a.err, types.ErrWithdrawn) {
						t.Errorf("error %v", a.err)
					}
				}
				if n := r.stored("k").QueueLength; n != 0 {
					t.Errorf("%d calls still wait", n)
				}
				r.release(o, g)
				r.nothingLeft()
			})
		}
	}
}

// The lock is granted during a release by the id.
// Proves: promise 9
func TestReleaseByRequestIDMeetsTheGrant(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s := r.explicitSession()
			req := once(0)
			req.Bind = bind
			proceed := r.st.holdAnswer("Acquire")
			a := r.ask(context.Background(), s, req)
			synctest.Wait()
			released := r.releasing(s, req)
			proceed()
			released()
			<-a.done
			if r.stored("k").Held {
				t.Errorf("held; the call's error is %v", a.err)
			}
			r.nothingUnder(s, req)
			r.nothingLeft()
		})
	}
}

// A release by the id that the store does not confirm is retried, and repeats wait for it.
func TestReleaseByRequestIDGoesOnInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.explicitSession()
		req := once(0)
		r.get(s, req)
		r.st.set("Release", fault{lose: true})
		release := types.ReleaseRequest{Key: "k", RequestID: req.RequestID}
		for range 2 {
			if _, err := r.m.Release(context.Background(), s, release); !store.Unavailable(err) {
				t.Errorf("error %v", err)
			}
		}
		if _, err := r.m.Acquire(context.Background(), s, req); !store.Unavailable(err) {
			t.Errorf("error %v", err)
		}
		r.st.lift("Release")
		time.Sleep(time.Second)
		r.nothingUnder(s, req)
		r.nothingLeft()
	})
}

// A release by the id works while the sidecar drains. For a lost lock it reports that there is no
// grant.
func TestReleaseByRequestIDInADrain(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		req, lost := once(0), once(0)
		lost.Key, lost.MaxHold = "lost", time.Second
		r.get(s, lost)
		r.get(s, req)
		time.Sleep(2 * time.Second)
		r.nothingUnder(s, lost)
		if g := r.get(s, lost); g.Reentry != 1 { // a new grant
			t.Errorf("got %+v", g)
		}
		r.m.Drain()
		for _, one := range []types.Request{req, lost} {
			if out := r.releaseBy(s, one); out.Nothing {
				t.Errorf("no grant for %q", one.Key)
			}
		}
		r.nothingLeft()
	})
}

// Proves: promise 9
func TestRepeatOfSeveralKeys(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s, o := r.explicitSession(), r.eitherSession()
			b := r.lock(o, "b")
			req := once(types.WaitForever)
			req.Bind = bind
			first := r.askAll(context.Background(), s, req, "b", "a")
			second := r.askAll(context.Background(), s, req, "b", "a")
			r.release(o, b)
			got := first.granted(t, "b", "a")
			for i, g := range second.granted(t, "b", "a") {
				if g.Token != got[i].Token || g.ExpiresIn <= 0 {
					t.Errorf("got %+v and %+v", got[i], g)
				}
			}
			for i, g := range got {
				r.mustBe(g)
				if bind == types.BindSession {
					r.m.HandBack(s, g) // the second call has this grant
					synctest.Wait()
					r.mustBe(g)
				}
				one := req
				one.Key = got[i].Key
				if out := r.releaseBy(s, one); out.Nothing {
					t.Errorf("no grant for %q", one.Key)
				}
			}
			r.nothingLeft()
		})
	}
}

// A release by the id for one of the keys ends the whole call for several keys.
func TestReleaseByRequestIDEndsAGroup(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		for _, key := range []string{"a", "b", "c"} {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s, o := r.explicitSession(), r.eitherSession()
				b := r.lock(o, "b")
				req := once(types.WaitForever)
				req.Bind = bind
				group := r.askAll(context.Background(), s, req, "a", "b", "c")
				req.Key = key
				r.nothingUnder(s, req)
				if <-group.done; !errors.Is(group.err, types.ErrWithdrawn) {
					t.Errorf("error %v", group.err)
				}
				synctest.Wait()
				if r.stored("a").Held {
					t.Error("a part is still held")
				}
				r.release(o, b)
				r.nothingLeft()
			})
		}
	}
}

// A bind:ttl grant is released by its id from any sidecar, even if both sidecars returned it.
func TestReleaseByRequestIDFromAnotherSidecar(t *testing.T) {
	for _, told := range []bool{false, true} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			other := r.another(opt)
			req := repeatable(0)
			r.get(nil, req)
			if told {
				other.get(nil, req)
			}
			if out := other.releaseBy(nil, req); out.Nothing {
				t.Error("no grant was found")
			}
			if r.stored("k").Held {
				t.Error("still held")
			}
			r.nothingUnder(nil, req)
			r.nothingLeft()
			other.nothingRemembered()
		})
	}
}

// Sessions forget requests that are over.
func TestRequestsOfASessionAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, inline)
		s := r.explicitSession()
		for range 1000 {
			req := once(0)
			g := r.get(s, req)
			r.get(s, req)
			r.nothingUnder(s, once(0))
			r.release(s, g)
		}
		r.nothingLeft()
		if n := s.Requests.Count(); n != 0 {
			t.Errorf("%d requests are remembered", n)
		}
	})
}

// The end of the session ends repeats that wait for their turn.
func TestRepeatEndsWithItsSession(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.explicitSession(), r.eitherSession()
		g := r.lock(o, "k")
		req := once(types.WaitForever)
		first, second := r.ask(context.Background(), s, req), r.ask(context.Background(), s, req)
		synctest.Wait()
		s.End(types.EndDropped)
		for _, a := range []*answer{first, second} {
			if <-a.done; !errors.Is(a.err, types.ErrSessionEnded) {
				t.Errorf("error %v", a.err)
			}
		}
		r.release(o, g)
		r.nothingLeft()
	})
}
