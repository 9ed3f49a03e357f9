package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func refusedFor(err error) types.NotHolderReason {
	if refused, ok := errors.AsType[*types.NotHolderError](err); ok {
		return refused.Reason
	}
	return ""
}

// tryRelease returns the error of a release.
func (r *rig) tryRelease(s *holdings.Session, key string, token int64) error {
	_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: key, Token: token})
	return err
}

// A release that fails returns an error, and is retried until the lock is free.
func TestAReleaseHealsByItself(t *testing.T) {
	for name, f := range map[string]fault{"refused": {refuse: true}, "lost": {lose: true}, "forgotten": {forget: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				g := r.lock(s, "k")
				r.st.set("Release", f)
				if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) {
					t.Fatalf("error %v", err)
				}
				time.Sleep(time.Minute) // the lock keeps its lease renewed
				if s.Held() != 0 {
					t.Error("the session still holds it")
				}
				r.st.lift("Release")
				time.Sleep(time.Second)
				r.nothingLeft()
				if reason := refusedFor(r.tryRelease(s, "k", g.Token)); reason != types.ReasonReleased {
					t.Errorf("the second release: %q", reason)
				}
			})
		})
	}
}

// A release is reported only if the store has confirmed it. If the lease ends before that, the lock has ended
// with its lease, and the first call says that the store is unavailable. A store can keep a lease for longer than
// its owner trusts it.
// Proves: promise 4
func TestReleaseIsNotConfirmedByTheEndOfItsLease(t *testing.T) {
	for name, wait := range map[string]time.Duration{"after the first try": time.Second, "during the first try": 13 * time.Second} {
		for fails, f := range outages {
			t.Run(fails+", "+name, func(t *testing.T) {
				whereHeld(t, "Release", func(t *testing.T, opt option) {
					r := newRig(t, opt)
					s := r.eitherSession()
					g := r.lock(s, "k")
					r.st.setAll(f)
					time.Sleep(wait)
					if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) {
						t.Errorf("error %v", err)
					}
					time.Sleep(time.Minute)
					lost, is := errors.AsType[*types.LostError](r.tryRelease(s, "k", g.Token))
					if !is || lost.Lost.Reason != types.LostStore {
						t.Errorf("the second release: %+v", lost)
					}
					r.st.lift(everyOp...)
					time.Sleep(time.Minute)
					r.nothingLeft()
				})
			})
		}
	}
}

// A repeat during the first try waits for it, because the store has confirmed nothing yet.
// Proves: promise 4
func TestARepeatDuringTheFirstTryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "k")
		proceed := r.st.hold("Release")
		first := make(chan error, 1)
		go func() { first <- r.tryRelease(s, "k", g.Token) }()
		synctest.Wait()
		began := time.Now()
		second := make(chan error, 1)
		go func() { second <- r.tryRelease(s, "k", g.Token) }()
		synctest.Wait()
		select {
		case err := <-second:
			t.Errorf("after %v the repeat is told %q, and the store has confirmed nothing", time.Since(began), refusedFor(err))
		default:
		}
		proceed()
		r.must(<-first)
	})
}

// A release by request id waits for an unconfirmed release of the key. If the lock then ends with its lease, the id has
// nothing, which is no error.
func TestNothingIsLeftOnceTheLeaseEnds(t *testing.T) {
	whereHeld(t, "Release", func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		req := types.Request{Key: "k", RequestID: uuid.New()}
		g := r.get(s, req)
		r.st.setAll(fault{refuse: true})
		r.st.lift("Cancel")
		time.Sleep(11 * time.Second)
		if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) {
			t.Errorf("error %v", err)
		}
		if under := len(s.ReleasesOf("k")); under != 1 {
			t.Fatalf("%d releases are under way", under)
		}
		r.nothingUnder(s, req)
		r.st.lift(everyOp...)
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A caller that repeats a release while the sidecar stops is told that the stop ended the lock, if the store did not
// confirm the release.
func TestAStopEndsAnUnconfirmedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.st.setAll(fault{refuse: true})
		if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) {
			t.Errorf("error %v", err)
		}
		repeat := make(chan error, 1)
		go func() { repeat <- r.tryRelease(s, "k", g.Token) }()
		synctest.Wait()
		r.m.Stop()
		lost, is := errors.AsType[*types.LostError](<-repeat)
		if !is || lost.Lost.Reason != types.LostShutdown {
			t.Errorf("the repeat: %+v", lost)
		}
	})
}

// A repeated release joins the release in progress, and returns its result.
func TestARepeatedReleaseJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.st.set("Release", fault{refuse: true})
		if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) {
			t.Fatalf("error %v", err)
		}
		if err := r.tryRelease(s, "k", g.Token); !store.Unavailable(err) { // after the store's timeout
			t.Fatalf("repeated: error %v", err)
		}
		again := make(chan error, 1)
		go func() { again <- r.tryRelease(s, "k", g.Token) }()
		time.Sleep(time.Second)
		r.st.lift("Release")
		r.must(<-again)
		r.nothingLeft()
	})
}

// A release continues when its caller leaves.
func TestALeftReleaseGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		proceed := r.st.hold("Release")
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error, 1)
		go func() {
			_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token})
			left <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		proceed()
		if err := <-left; err != nil && !errors.Is(err, types.ErrCallerLeft) {
			t.Errorf("error %v", err)
		}
		r.nothingLeft()
	})
}

func TestRefusedClaims(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		g := r.lock(s, "k")
		ttl := r.lockTTL("ttl", time.Minute)
		for name, c := range map[string]struct {
			err  error
			want types.NotHolderReason
		}{
			"another session":      {r.tryRelease(r.eitherSession(), "k", g.Token), types.ReasonOtherSession},
			"no session":           {r.tryRelease(nil, "k", g.Token), types.ReasonOtherSession},
			"another pod":          {other.tryRelease(o, "k", g.Token), types.ReasonOtherSession},
			"amend by another":     {r.amend(r.eitherSession(), g), types.ReasonOtherSession},
			"another token":        {r.tryRelease(s, "k", g.Token+1), types.ReasonUnknownToken},
			"another key":          {r.tryRelease(s, "other", g.Token), types.ReasonUnknownToken},
			"another ttl token":    {r.tryRelease(nil, "ttl", ttl.Token+1), types.ReasonUnknownToken},
			"amend of another key": {r.amend(s, types.Grant{Key: "other", Token: g.Token}), types.ReasonUnknownToken},
		} {
			if got := refusedFor(c.err); got != c.want {
				t.Errorf("%s: %v, want %q", name, c.err, c.want)
			}
		}
		r.must(r.amend(s, g)) // the refused claims changed nothing
		r.release(s, g)
		r.release(nil, ttl)
		for name, err := range map[string]error{
			"session": r.tryRelease(s, "k", g.Token), "another": r.tryRelease(r.eitherSession(), "k", g.Token), "amend": r.amend(s, g),
			"ttl": r.tryRelease(nil, "ttl", ttl.Token), "ttl elsewhere": other.tryRelease(nil, "ttl", ttl.Token),
		} {
			if refusedFor(err) != types.ReasonReleased {
				t.Errorf("released %s: %v", name, err)
			}
		}
		r.nothingLeft()
	})
}

func TestWhatWasLostIsRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*rig, *holdings.Session)
		want types.LostReason
	}{
		"disconnected": {func(_ *rig, s *holdings.Session) { <-s.End(types.EndDropped) }, types.LostDisconnected},
		"shutdown":     {func(_ *rig, s *holdings.Session) { <-s.End(types.EndShutdown) }, types.LostShutdown},
		"expired":      {func(r *rig, _ *holdings.Session) { r.clk.stop(time.Minute) }, types.LostExpired},
		"store_lost": {func(r *rig, _ *holdings.Session) {
			r.st.set("Renew", fault{lose: true})
			time.Sleep(time.Minute)
		}, types.LostStore},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				g := r.lock(s, "k")
				c.end(r, s)
				for _, claimant := range []*holdings.Session{s, r.eitherSession(), nil} {
					if got := lostReason(r.tryRelease(claimant, "k", g.Token)); got != c.want && claimant != nil {
						t.Errorf("release: reason %q, want %q", got, c.want)
					}
					if claimant == s {
						if got := lostReason(r.amend(s, g)); got != c.want {
							t.Errorf("amend: reason %q, want %q", got, c.want)
						}
					}
				}
			})
		})
	}
}

// An app that deletes its session has released its locks, so later claims are reported as released.
func TestADeletedSessionReleased(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		<-s.End(types.EndDeleted)
		if reason := refusedFor(r.tryRelease(s, "k", g.Token)); reason != types.ReasonReleased {
			t.Errorf("got %q", reason)
		}
		r.nothingLeft()
	})
}

// A session remembers its losses until it ends. The sidecar remembers those of the last grants.
// Proves: promise 10
func TestHowLongLossesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, inline)
		s, gone, busy := r.eitherSession(), r.eitherSession(), r.eitherSession()
		g, first, second := r.lock(s, "k"), r.lock(gone, "first"), r.lock(gone, "second")
		r.clk.stop(time.Minute)
		r.lock(busy, "busy") // notices the loss of the lease
		gone.End(types.EndDropped)
		for i := range holdings.Remembered - 3 { // the grants of s and gone came before
			r.release(busy, r.lock(busy, fmt.Sprint(i)))
		}
		if reason := lostReason(r.tryRelease(busy, "first", first.Token)); reason != types.LostExpired {
			t.Errorf("within the last grants: %q", reason)
		}
		r.release(busy, r.lock(busy, "one more"))
		r.release(busy, r.lock(busy, "two more"))
		r.release(busy, r.lock(busy, "three more"))
		if err := r.tryRelease(busy, "second", second.Token); refusedFor(err) == types.ReasonReleased {
			t.Errorf("forgotten: %v", err)
		}
		if reason := lostReason(r.tryRelease(s, "k", g.Token)); reason != types.LostExpired {
			t.Errorf("by the session: %q", reason)
		}
	})
}

func TestHandBack(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		for _, f := range []fault{{}, {times: 3, lose: true}, {times: 3, forget: true}} {
			g, ttl := r.lock(s, "k"), r.lockTTL("ttl", time.Hour)
			r.st.set("Release", f)
			r.m.HandBack(s, g)
			r.m.HandBack(s, g) // a repeat has no effect
			r.m.HandBack(nil, ttl)
			time.Sleep(5 * time.Second)
			r.nothingLeft()
		}
	})
}

// A late hand-back does not free the grant of the next holder.
func TestALateHandBack(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.release(s, g)
		again := r.lock(s, "k")
		r.m.HandBack(s, g)
		synctest.Wait()
		r.must(r.amend(s, again))
		r.release(s, again)
		r.nothingLeft()
	})
}

// The end of a session is confirmed after the store has confirmed the releases.
func TestEndIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var ends []types.EndReason
		s, err := r.m.OpenSession(types.SessionOptions{OnEnd: func(e types.EndReason) { ends = append(ends, e) }})
		r.must(err)
		for i := range 1000 {
			r.lock(s, fmt.Sprint(i))
		}
		proceed := r.st.holdAnswer("Release")
		released := s.End(types.EndDeleted)
		s.End(types.EndDropped)
		synctest.Wait()
		select {
		case <-released:
			t.Error("confirmed too early")
		default:
		}
		if _, err := r.try(s, "more"); !errors.Is(err, types.ErrSessionEnded) {
			t.Errorf("error %v", err)
		}
		if _, err := r.m.Session(s.ID()); !errors.Is(err, types.ErrSessionEnded) {
			t.Errorf("error %v", err)
		}
		proceed()
		<-released
		if len(ends) != 1 || ends[0] != types.EndDeleted {
			t.Errorf("got %v", ends)
		}
		if n := r.st.count("Release"); n > 11 { // at most one alone, then 100 at a time
			t.Errorf("it took %d calls", n)
		}
		r.nothingLeft()
	})
}

// TestWhatIsReleasedIsNotKept: after the store has confirmed a release, only its status is
// remembered.
func TestWhatIsReleasedIsNotKept(t *testing.T) {
	t.Parallel()
	m := benchManager(t)
	s := benchSession(t, m)
	g, err := m.Acquire(context.Background(), s, types.Request{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
		t.Fatal(err)
	}
	if end, ok := m.holdings.Ended("k", g.Token); !ok || end != (holdings.End{}) {
		t.Errorf("status %+v, %v", end, ok)
	}
}
