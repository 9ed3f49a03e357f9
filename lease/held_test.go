package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Rarely used members of locks are stored apart, and locks without them share one empty value. A
// lock must not show the members of another.
func TestLocksShareNothing(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		with := r.get(s, types.Request{Key: "with", Data: []byte(`"a"`)})
		amended, without := r.lock(s, "amended"), r.lock(s, "without")
		_, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: "amended", Token: amended.Token, SetData: true, Data: []byte(`"b"`)})
		r.must(err)
		for key, want := range map[string]string{"with": `"a"`, "amended": `"b"`, "without": ""} {
			if v, err := r.m.Get(context.Background(), s, key, false); err != nil || string(v.Holder.Data) != want {
				t.Errorf("%s has the data %q (%v), want %q", key, v.Holder.Data, err, want)
			}
		}
		for _, g := range []types.Grant{with, amended, without} {
			r.release(s, g)
		}
	})
}

// The held time of a lock does not depend on the uptime of the sidecar.
func TestHeldForOnALongRunningSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		time.Sleep(time.Hour)
		first := r.lock(s, "first")
		time.Sleep(time.Second)
		g := r.lock(s, "k")
		time.Sleep(time.Second)
		v, err := r.m.Get(context.Background(), s, "k", false)
		r.must(err)
		if v.Holder.HeldFor != time.Second || !v.Holder.AcquiredAt.Equal(g.AcquiredAt) {
			t.Errorf("held for %s since %s, want 1s since %s", v.Holder.HeldFor, v.Holder.AcquiredAt, g.AcquiredAt)
		}
		if st := r.m.state(); st.OldestHold != 2*time.Second {
			t.Errorf("the oldest is held for %s, want 2s", st.OldestHold)
		}
		released, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: "k", Token: g.Token})
		r.must(err)
		if released.HeldFor != time.Second {
			t.Errorf("was held for %s, want 1s", released.HeldFor)
		}
		r.release(s, first)
	})
}
