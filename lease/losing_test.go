package lease

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A claim that comes while another goroutine is losing the lease, and has not come
// to this lock yet, hears that the lock is lost: the store, which may have given
// the key to somebody else by now, would call the token unknown.
func TestClaimWhileLosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.session()
		g := r.lock(s, "k")
		h := s.find("k", g.Token)
		h.lease().lost.Store(true) // as lose does first

		_, err := r.m.Release(t.Context(), s, types.ReleaseRequest{Key: "k", Token: g.Token})
		var lost *types.LostError
		if !errors.As(err, &lost) || lost.Lost.Reason != types.LostExpired {
			t.Errorf("the release: %v, want lost, expired", err)
		}
		if v, err := r.m.Get(t.Context(), s, "k", false); err != nil || v.Mine {
			t.Errorf("GET: mine is %v, %v", v.Mine, err)
		}
	})
}
