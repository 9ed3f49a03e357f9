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

// Many locks are renewed by one call for one lease, once in an interval.
func TestOneRenewalForManyLocks(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		for i := range 10_000 {
			r.lock(s, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if n := r.st.count("Renew"); n < 12 || n > 14 || r.st.largest("Renew") != 1 {
			t.Errorf("a minute took %d renewals, of up to %d leases", n, r.st.largest("Renew"))
		}
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Leases with different TTLs share the calls.
func TestRenewalsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
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
			t.Errorf("a minute took %d calls", n)
		}
		if n := r.st.asked("Renew") - items; n > 16*20 {
			t.Errorf("a minute took %d renewals of leases", n)
		}
	})
}

// A short TTL is renewed in time, and no busier than it must be.
func TestShortTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
		g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", TTL: 500 * time.Millisecond})
		r.must(err)
		r.lock(s, "long")
		time.Sleep(10 * time.Second)
		r.must(r.amend(s, g))
		if n := r.st.count("Renew"); n < 60 || n > 70 {
			t.Errorf("10 s took %d renewals", n)
		}
	})
}

// A lease that is too short for a slow store costs the others nothing.
func TestShortTTLOnASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
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

// A lease that passes its deadline in the middle of a renewal for others, too, is
// told as lost then.
func TestShortTTLInALongRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "short", TTL: 500 * time.Millisecond})
		r.must(err)
		r.lock(s, "long")
		r.st.set("Renew", fault{items: 2, gate: make(chan struct{})})
		for r.st.largest("Renew") < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		began := time.Now()
		_, err = r.m.Acquire(context.Background(), s, types.Request{Key: "third", TTL: time.Hour}) // the renewer looks again
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
		s := r.session()
		r.release(s, r.lock(s, "k"))
		time.Sleep(time.Minute)
		if r.st.count("Revoke") != 1 || len(r.m.leases.All()) != 0 {
			t.Error("the lease is not closed")
		}
		time.Sleep(3 * sweepInterval) // what the last grant left is swept
		before := r.st.total()
		time.Sleep(24 * time.Hour)
		if n := r.st.total() - before; n != 0 {
			t.Errorf("an idle day took %d calls", n)
		}
	})
}

// However many different TTLs are asked for, there are few leases: each lasts as long as
// the longest of its locks needs, and at most twice as long. The app is told to rely on
// a lock for no longer than it asked for.
func TestDifferentTTLsShareLeases(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.TTL, c.RenewInterval = 17*time.Second, 5*time.Second }))
		s := r.session()
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
			if kept := h.Lease().TTL(); kept < ttl || kept > 2*ttl || g.ExpiresIn > ttl-heartbeat.Margin(ttl) || v.Holder.ExpiresIn > ttl-heartbeat.Margin(ttl) || g.ExpiresIn <= 0 {
				t.Fatalf("asked for %s: the lease has %s; told %s, then %s", ttl, kept, g.ExpiresIn, v.Holder.ExpiresIn)
			}
			if ttl == r.m.cfg.TTL && h.Lease().TTL() != ttl {
				t.Errorf("the configured TTL became %s", h.Lease().TTL())
			}
		}
		if n := r.st.asked("OpenLeases"); n > heartbeat.MaxLeases {
			t.Errorf("%d leases", n)
		}
		explicit, err := r.m.OpenSession(types.SessionOptions{TTL: 7 * time.Second, Explicit: true})
		r.must(err)
		if ttl, left := explicit.TTL(), explicit.ExpiresIn(); ttl != 7*time.Second || left > ttl-heartbeat.Margin(ttl) {
			t.Errorf("a session with 7s: %s, %s", ttl, left)
		}
		explicit.End(types.EndDeleted)
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Renewals that fail are repeated while there is time, and held locks live on.
func TestRenewalOutage(t *testing.T) {
	for name, f := range map[string]fault{
		"refused": {refuse: true}, "lost": {lose: true}, "forgotten": {forget: true}, "slow": {before: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s := r.session()
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
