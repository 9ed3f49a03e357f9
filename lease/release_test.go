package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

func (r *rig) free(s *holdings.Session, key string, token int64) error {
	_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: key, Token: token})
	return err
}

// A release that fails is answered so, goes on, and the lock is free in the end.
func TestAReleaseHealsByItself(t *testing.T) {
	for name, f := range map[string]fault{"refused": {refuse: true}, "lost": {lose: true}, "forgotten": {forget: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.session()
				g := r.lock(s, "k")
				r.st.set("Release", f)
				if err := r.free(s, "k", g.Token); !store.Unavailable(err) {
					t.Fatalf("told %v", err)
				}
				time.Sleep(time.Minute) // the lease is kept alive by it
				if s.Held() != 0 {
					t.Error("the session still holds it")
				}
				r.st.lift("Release")
				time.Sleep(time.Second)
				r.nothingLeft()
				if reason := refusedFor(r.free(s, "k", g.Token)); reason != types.ReasonReleased {
					t.Errorf("then: %q", reason)
				}
			})
		})
	}
}

// A repeated release joins the one that goes on, and hears how it ends.
func TestARepeatedReleaseJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
		g := r.lock(s, "k")
		r.st.set("Release", fault{refuse: true})
		if err := r.free(s, "k", g.Token); !store.Unavailable(err) {
			t.Fatalf("told %v", err)
		}
		if err := r.free(s, "k", g.Token); !store.Unavailable(err) { // after the store's timeout
			t.Fatalf("repeated: told %v", err)
		}
		again := make(chan error, 1)
		go func() { again <- r.free(s, "k", g.Token) }()
		time.Sleep(time.Second)
		r.st.lift("Release")
		r.must(<-again)
		r.nothingLeft()
	})
}

// A caller that leaves does not stop its release.
func TestALeftReleaseGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
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
			t.Errorf("told %v", err)
		}
		r.nothingLeft()
	})
}

func TestRefusedClaims(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		g := r.lock(s, "k")
		ttl := r.lockTTL("ttl", time.Minute)
		for name, c := range map[string]struct {
			err  error
			want types.NotHolderReason
		}{
			"another session":      {r.free(r.session(), "k", g.Token), types.ReasonOtherSession},
			"no session":           {r.free(nil, "k", g.Token), types.ReasonOtherSession},
			"another pod":          {other.free(o, "k", g.Token), types.ReasonOtherSession},
			"amend by another":     {r.amend(r.session(), g), types.ReasonOtherSession},
			"another token":        {r.free(s, "k", g.Token+1), types.ReasonUnknownToken},
			"another key":          {r.free(s, "other", g.Token), types.ReasonUnknownToken},
			"another ttl token":    {r.free(nil, "ttl", ttl.Token+1), types.ReasonUnknownToken},
			"amend of another key": {r.amend(s, types.Grant{Key: "other", Token: g.Token}), types.ReasonUnknownToken},
		} {
			if got := refusedFor(c.err); got != c.want {
				t.Errorf("%s: %v, want %q", name, c.err, c.want)
			}
		}
		r.must(r.amend(s, g)) // nothing has changed
		r.release(s, g)
		r.release(nil, ttl)
		for name, err := range map[string]error{
			"session": r.free(s, "k", g.Token), "another": r.free(r.session(), "k", g.Token), "amend": r.amend(s, g),
			"ttl": r.free(nil, "ttl", ttl.Token), "ttl elsewhere": other.free(nil, "ttl", ttl.Token),
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
				s := r.session()
				g := r.lock(s, "k")
				c.end(r, s)
				for _, claimant := range []*holdings.Session{s, r.session(), nil} {
					if got := lostReason(r.free(claimant, "k", g.Token)); got != c.want && claimant != nil {
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

// A session that was ended by its app has released its locks.
func TestADeletedSessionReleased(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		g := r.lock(s, "k")
		<-s.End(types.EndDeleted)
		if reason := refusedFor(r.free(s, "k", g.Token)); reason != types.ReasonReleased {
			t.Errorf("told %q", reason)
		}
		r.nothingLeft()
	})
}

// Losses are remembered for the life of the session, and for the last grants of
// the sidecar.
func TestHowLongLossesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, inline)
		s, gone, busy := r.session(), r.session(), r.session()
		g, first, second := r.lock(s, "k"), r.lock(gone, "first"), r.lock(gone, "second")
		r.clk.stop(time.Minute)
		r.lock(busy, "busy") // finds the lease lost
		gone.End(types.EndDropped)
		for i := range holdings.Remembered - 3 { // s's grant and gone's two are remembered before
			r.release(busy, r.lock(busy, fmt.Sprint(i)))
		}
		if reason := lostReason(r.free(busy, "first", first.Token)); reason != types.LostExpired {
			t.Errorf("within the last grants: %q", reason)
		}
		r.release(busy, r.lock(busy, "one more"))
		r.release(busy, r.lock(busy, "two more"))
		r.release(busy, r.lock(busy, "three more"))
		if err := r.free(busy, "second", second.Token); refusedFor(err) == types.ReasonReleased {
			t.Errorf("forgotten: %v", err)
		}
		if reason := lostReason(r.free(s, "k", g.Token)); reason != types.LostExpired {
			t.Errorf("the session's own: %q", reason)
		}
	})
}

func TestHandBack(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		for _, f := range []fault{{}, {times: 3, lose: true}, {times: 3, forget: true}} {
			g, ttl := r.lock(s, "k"), r.lockTTL("ttl", time.Hour)
			r.st.set("Release", f)
			r.m.HandBack(s, g)
			r.m.HandBack(s, g) // twice does no harm
			r.m.HandBack(nil, ttl)
			time.Sleep(5 * time.Second)
			r.nothingLeft()
		}
	})
}

// A discarded grant does not free what somebody else got since.
func TestALateHandBack(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
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

// The end of a session is confirmed when the store has confirmed the releases.
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
			t.Errorf("told %v", err)
		}
		if _, err := r.m.Session(s.ID()); !errors.Is(err, types.ErrSessionEnded) {
			t.Errorf("told %v", err)
		}
		proceed()
		<-released
		if len(ends) != 1 || ends[0] != types.EndDeleted {
			t.Errorf("told %v", ends)
		}
		if n := r.st.count("Release"); n > 11 { // perhaps the first alone, then 100 at a time
			t.Errorf("took %d calls", n)
		}
		r.nothingLeft()
	})
}

// TestWhatIsReleasedIsNotKept: once the store has confirmed a release, only what became of
// the grant is remembered.
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
		t.Errorf("remembered as %+v, %v", end, ok)
	}
}
