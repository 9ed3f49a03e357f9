package lease

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
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
