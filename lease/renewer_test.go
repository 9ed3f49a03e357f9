package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// One call in each interval renews many locks under one lease.
func TestOneRenewalForManyLocks(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		for i := range 10_000 {
			r.lock(s, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if n := r.st.count("Renew"); n < 12 || n > 14 || r.st.largest("Renew") != 1 {
			t.Errorf("%d renewals in a minute, of up to %d leases", n, r.st.largest("Renew"))
		}
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Leases with different TTLs share the renewal calls.
func TestRenewalsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		for i := range 20 {
			ttl := 15*time.Second + time.Duration(i)*time.Second
			_, err := r.m.Acquire(context.Background(), s, types.Request{Key: fmt.Sprint(i), TTL: ttl})
			r.must(err)
			time.Sleep(101 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		before, items := r.st.count("Renew"), r.st.asked("Renew")
		time.Sleep(time.Minute)
		if n := r.st.count("Renew") - before; n > 16 {
			t.Errorf("%d calls in a minute", n)
		}
		if n := r.st.asked("Renew") - items; n > 16*20 {
			t.Errorf("%d leases renewed in a minute", n)
		}
	})
}

// A short TTL is renewed in time, but not more often than necessary.
func TestShortTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: 500 * time.Millisecond})
		r.must(err)
		r.lock(s, "long")
		time.Sleep(10 * time.Second)
		r.must(r.amend(s, g))
		if n := r.st.count("Renew"); n < 60 || n > 70 {
			t.Errorf("%d renewals in 10 s", n)
		}
	})
}

// A lease whose TTL is too short for a slow store does not affect other leases.
func TestShortTTLOnASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.lock(s, "long")
		r.st.set("Renew", fault{before: 300 * time.Millisecond, after: 100 * time.Millisecond})
		end := time.Now().Add(2 * time.Minute)
		for time.Now().Before(end) {
			_, err := r.m.Acquire(context.Background(), s, types.Request{Key: time.Now().String(), TTL: 500 * time.Millisecond})
			r.must(err)
			time.Sleep(60 * time.Millisecond)
		}
		r.must(r.amend(s, g))
		time.Sleep(time.Second)
		r.release(s, g)
		r.nothingLeft()
	})
}

// A lease may pass its deadline during a renewal call for other leases. It is reported as lost at
// that time.
func TestShortTTLInALongRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "short", TTL: 500 * time.Millisecond})
		r.must(err)
		r.lock(s, "long")
		r.st.set("Renew", fault{items: 2, gate: make(chan struct{})})
		for r.st.largest("Renew") < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		began := time.Now()
		_, err = r.m.Acquire(context.Background(), s, types.Request{Key: "third", TTL: time.Hour}) // wakes the renewer
		r.must(err)
		time.Sleep(time.Second)
		if l := r.losses(); len(l) != 1 || l[0].Key != "short" || r.at[0].Sub(began) > 450*time.Millisecond {
			t.Errorf("lost %v at %v", l, r.at)
		}
	})
}

func TestAnIdleSidecarAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.release(s, r.lock(s, "k"))
		time.Sleep(time.Minute)
		if r.st.count("Revoke") != 1 || len(r.m.leases.All()) != 0 {
			t.Error("the lease is not closed")
		}
		time.Sleep(3 * sweepInterval) // the last grant's leftovers are swept
		before := r.st.total()
		time.Sleep(24 * time.Hour)
		if n := r.st.total() - before; n != 0 {
			t.Errorf("%d calls on an idle day", n)
		}
	})
}

// Locks with many different TTLs share few leases. A lease's TTL is at least the longest of its
// locks, and at most twice as long. An answer does not promise a longer TTL than the requested one.
func TestDifferentTTLsShareLeases(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.TTL, c.RenewInterval = 17*time.Second, 5*time.Second }))
		s := r.eitherSession()
		asked := []time.Duration{500 * time.Millisecond, 17 * time.Second, 24 * time.Hour}
		for i := range 300 {
			asked = append(asked, time.Duration(600+37*i)*time.Millisecond, time.Duration(7+17*i)*time.Second, time.Duration(2+4*i)*time.Minute)
		}
		for i, ttl := range asked {
			g, err := r.m.Acquire(context.Background(), s, types.Request{Key: fmt.Sprint(i), TTL: ttl})
			r.must(err)
			h := s.Find(g.Key, g.Token)
			v, err := r.m.Get(context.Background(), s, g.Key, false)
			r.must(err)
			if kept := h.Lease().TTL(); kept < ttl || kept > 2*ttl || max(g.ExpiresIn, v.Holder.ExpiresIn) > heartbeat.Reliable(ttl) || g.ExpiresIn <= 0 {
				t.Fatalf("for a TTL of %s: the lease has %s, the answers promised %s and %s", ttl, kept, g.ExpiresIn, v.Holder.ExpiresIn)
			}
			if ttl == r.m.cfg.TTL && h.Lease().TTL() != ttl {
				t.Errorf("the configured TTL became %s", h.Lease().TTL())
			}
		}
		if n := r.st.asked("OpenLeases"); n > 22 { // heartbeat's TestStepsOfTTLs says how many
			t.Errorf("%d leases", n)
		}
		explicit, err := r.m.OpenSession(types.SessionOptions{TTL: 7 * time.Second, Explicit: true})
		r.must(err)
		if ttl, left := explicit.TTL(), explicit.ExpiresIn(); ttl != 7*time.Second || left > heartbeat.Reliable(ttl) {
			t.Errorf("a session with a TTL of 7s: %s, %s", ttl, left)
		}
		explicit.End(types.EndDeleted)
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Renewals that fail are retried in time, and the locks stay held.
// Proves: promise 10
func TestRenewalOutage(t *testing.T) {
	for name, f := range map[string]fault{
		"refused": {refuse: true}, "lost": {lose: true}, "forgotten": {forget: true}, "slow": {before: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := r.eitherSession()
				g := r.lock(s, "k")
				r.st.set("Renew", f)
				time.Sleep(9 * time.Second)
				r.st.lift("Renew")
				time.Sleep(time.Minute)
				r.must(r.amend(s, g))
				if n := r.st.count("Renew"); n > 60 {
					t.Errorf("%d renewals", n)
				}
			})
		})
	}
}
