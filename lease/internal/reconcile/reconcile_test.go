package reconcile

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/roomtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// TestFewLocksAreVerifiedFirst: a lease with more locks than one read returns is not trusted before all are read. A lease with few locks
// does not wait for that. Each lock is read once.
// Proves: A3, trap failover
func TestFewLocksAreVerifiedFirst(t *testing.T) {
	for name, reads := range map[string]int{"all are read": 0, "the second read fails": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				many, few := r.locks(verifyMax+500, 10*time.Second), r.locks(2, roomtest.LeaseTTL)
				r.st.failover()
				r.st.unread = reads
				trusted, err := r.verify(many, few)
				want := []*heartbeat.Lease{few, many}
				if reads > 0 {
					want = want[:1]
				}
				if !slices.Equal(trusted, want) || (err == nil) != (reads == 0) {
					t.Errorf("trusted %d leases, want %d, the one with few locks first; error %v", len(trusted), len(want), err)
				}
				if !slices.Equal(r.st.reads, []int{verifyMax, 502}) {
					t.Errorf("read %v at a time", r.st.reads)
				}
				if n := len(r.lost()); n != 0 {
					t.Errorf("%d lost", n)
				}
			})
		})
	}
}

// TestWhatTheStoreDoesNotHaveIsLost: each lock is read once in a history. A later verification in it reads only locks that were added since.
// Proves: A3, trap failover
func TestWhatTheStoreDoesNotHaveIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		l := r.locks(3, roomtest.LeaseTTL)
		gone := r.aq.Holdings().Get("15s/1")
		r.forget(gone.Key, gone.Token, l)
		r.st.failover()
		verify := func(reads ...int) {
			t.Helper()
			if trusted, err := r.verify(l); err != nil || len(trusted) != 1 {
				t.Errorf("trusted %d, error %v", len(trusted), err)
			}
			if got := r.lost(); !slices.Equal(got, []string{"15s/1"}) {
				t.Errorf("lost %q", got)
			}
			if !slices.Equal(r.st.reads, reads) {
				t.Errorf("read %v at a time, want %v", r.st.reads, reads)
			}
		}
		verify(3)
		verify(3)
		r.lock(types.Request{Key: "late"})
		verify(3, 1)
		r.st.failover()
		verify(3, 1, 3)
	})
}

// TestSharesOfAKey: a key is read once for all of its shares, and each of them is verified by its own token.
// Proves: A3, promise 19
func TestSharesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		l := r.lock(types.Request{Key: "k", Shared: true})
		first := r.s.First("k").Token
		r.lock(types.Request{Key: "k", Shared: true})
		r.forget("k", first, l)
		r.st.failover()
		if _, err := r.verify(l); err != nil {
			t.Error(err)
		}
		if got := r.lost(); !slices.Equal(got, []string{"k"}) || r.losses[0].Token != first || !slices.Equal(r.st.reads, []int{1}) {
			t.Errorf("lost %+v; read %v", r.losses, r.st.reads)
		}
	})
}

// TestAReadOfAnotherServer: it says nothing about the locks of the server that renewed their lease.
// Proves: A3, trap failover
func TestAReadOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		l := r.lock(types.Request{Key: "k"})
		r.forget("k", r.aq.Holdings().Get("k").Token, l)
		r.st.failover()
		r.st.elsewhere = true
		if trusted, err := r.verify(l); err == nil || len(trusted) != 0 || len(r.lost()) != 0 {
			t.Errorf("error %v, trusted %d, lost %q", err, len(trusted), r.lost())
		}
	})
}

// TestADeadLeaseIsNotRead: its locks are lost with it, whatever the store says.
// Proves: A3
func TestADeadLeaseIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		short, long := r.locks(1, 2*time.Second), r.locks(3, roomtest.LeaseTTL)
		r.st.failover()
		time.Sleep(2 * time.Second)
		if trusted, err := r.verify(short, long); err != nil || len(trusted) != 2 || !slices.Equal(r.st.reads, []int{3}) {
			t.Errorf("error %v, decided about %d, read %v", err, len(trusted), r.st.reads)
		}
	})
}

// TestMuchIsMovedInParts: each statement keeps rows locked while it runs, so it moves few, and the next one waits. Then all locks are under
// the fresh lease, and the retired one is closed.
// Proves: A3, trap failover
func TestMuchIsMovedInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		old := r.locks(2*moveMax+1, roomtest.LeaseTTL)
		r.st.slow = 100 * time.Millisecond
		r.st.failover()
		r.renewed()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(r.st.moves, []int{moveMax, moveMax, 1}) {
			t.Errorf("moved %v at a time", r.st.moves)
		}
		for i := range len(r.st.moved) - 1 {
			if between := r.st.moved[i+1].Sub(r.st.moved[i]); between < 5*r.st.slow {
				t.Errorf("a move began %s after the one before, which took %s", between, r.st.slow)
			}
		}
		fresh := r.Leases.Get(roomtest.LeaseTTL)
		if n := len(r.aq.Holdings().On(fresh)); n != 2*moveMax+1 || fresh == old || len(r.Leases.All()) != 1 {
			t.Errorf("%d locks are under the fresh lease, of %d leases; is it the old one: %v", n, len(r.Leases.All()), fresh == old)
		}
		if n := len(r.lost()); n != 0 {
			t.Errorf("%d lost", n)
		}
	})
}
