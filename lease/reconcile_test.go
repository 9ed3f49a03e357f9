// Proves: A3, trap failover

package lease

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func (d *double) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	leases = slices.Clone(leases)
	_, err := do(ctx, d, "OpenLeases", len(leases), func(ctx context.Context) (int, error) { return 0, d.Store.OpenLeases(ctx, leases) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range leases {
		d.openedIn[l.ID] = d.history
	}
	return err
}

func (d *double) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	leases = slices.Clone(leases)
	return do(ctx, d, "Renew", len(leases), func(ctx context.Context) (store.Renewal, error) {
		renewal, err := d.Store.Renew(ctx, leases)
		d.mu.Lock()
		defer d.mu.Unlock()
		renewal.History = d.history
		for _, id := range renewal.Renewed {
			if d.openedIn[id] != d.history {
				renewal.Reconcile = append(renewal.Reconcile, id)
			}
		}
		return renewal, err
	})
}

func (d *double) HeldUnder(ctx context.Context, keys []string) (store.HeldGrants, error) {
	keys = slices.Clone(keys)
	return do(ctx, d, "HeldUnder", len(keys), func(ctx context.Context) (store.HeldGrants, error) {
		held, err := d.Store.HeldUnder(ctx, keys)
		d.mu.Lock()
		defer d.mu.Unlock()
		held.History = d.history
		return held, err
	})
}

func (d *double) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	return do(ctx, d, "Move", len(moves), func(ctx context.Context) ([]store.ClaimStatus, error) {
		return unlessLocked(d, moves, func(mv store.Move) string { return mv.Key }, store.ClaimRowLocked,
			func(moves []store.Move) ([]store.ClaimStatus, error) { return d.Store.Move(ctx, from, to, moves) })
	})
}

// failover makes the store a different one, with another history.
func (d *double) failover() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = uuid.New()
}

// lease returns the lease for sessions' locks.
func (r *rig) lease() store.LeaseID { return r.m.leases.Get(r.m.cfg.TTL).ID() }

// forget removes a grant from the store, as an asynchronous failover does.
func (r *rig) forget(g types.Grant) {
	r.t.Helper()
	claim := store.Claim{Key: g.Key, Token: g.Token, Lease: r.stored(g.Key).Holder.Lease}
	verdicts, err := r.st.Store.Release(context.Background(), []store.Claim{claim})
	r.must(err)
	if verdicts[0].Status != store.Holds {
		r.t.Fatalf("%q is not held", g.Key)
	}
}

// isRotated checks that the lease from before the failover is closed, and that calls to the store
// stop.
func (r *rig) isRotated(old store.LeaseID) {
	r.t.Helper()
	synctest.Wait()
	for _, l := range r.m.leases.All() {
		if l.ID() == old {
			r.t.Errorf("the old lease is kept for %d locks", l.Users())
		}
	}
	asked := func() int { return r.st.count("HeldUnder") + r.st.count("Move") }
	before := asked()
	time.Sleep(time.Minute)
	if n := asked() - before; n > 0 {
		r.t.Errorf("asked %d times in a minute", n)
	}
}

// A failover loses a grant but not its lease, and another session gets the key. The next renewal
// reports the loss to the holder, and the other locks stay.
func TestAForgottenGrantIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		kept, lost := r.lock(s, "kept"), r.lock(s, "lost")
		old := r.lease()
		r.forget(lost)
		r.st.failover()
		theirs := other.lock(o, "lost")
		time.Sleep(r.m.cfg.RenewInterval)
		synctest.Wait()
		if got := r.losses(); len(got) != 1 || got[0] != (types.Lost{Key: "lost", Token: lost.Token, Reason: types.LostStore}) {
			t.Fatalf("lost %+v", got)
		}
		if reason := lostReason(r.amend(s, lost)); reason != types.LostStore {
			t.Errorf("the claim returns %q", reason)
		}
		r.must(r.amend(s, kept))
		time.Sleep(time.Minute)
		r.isRotated(old)
		r.must(other.amend(o, theirs))
		r.release(s, kept)
		other.release(o, theirs)
		r.nothingLeft()
	})
}

// A lease of another history is not trusted before its locks are verified. If they cannot be
// verified, the lease is lost at its old deadline.
func TestALeaseIsNotTrustedUnverified(t *testing.T) {
	for name, f := range map[string]fault{"refused": {refuse: true}, "hangs": {before: time.Hour}, "unheard": {forget: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				began := time.Now()
				g := r.lock(r.eitherSession(), "k")
				r.forget(g)
				r.st.failover()
				r.st.set("Move", fault{refuse: true}) // because a move verifies the lock, too
				r.st.set("HeldUnder", f)
				time.Sleep(20 * time.Second)
				if got := r.losses(); len(got) != 1 || got[0].Reason != types.LostStore {
					t.Fatalf("lost %+v", got)
				}
				if at := r.at[0].Sub(began); at > heartbeat.Reliable(r.m.cfg.TTL) {
					t.Errorf("lost after %s", at)
				}
				r.st.lift("HeldUnder", "Move")
			})
		})
	}
}

// The renewal and the read must be of one history, because another server may still have the grant.
func TestLocksAreReadInTheHistoryOfTheRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		g := r.lock(r.eitherSession(), "k")
		r.st.failover()
		proceed := r.st.holdAnswer("Renew")
		time.Sleep(r.m.cfg.RenewInterval)
		synctest.Wait()
		r.st.failover()
		r.forget(g)
		proceed()
		time.Sleep(time.Second)
		if got := r.losses(); len(got) != 1 || got[0].Reason != types.LostStore {
			t.Fatalf("lost %+v", got)
		}
		if n := r.st.count("HeldUnder"); n != 2 {
			t.Errorf("read %d times, want a discarded read and one more", n)
		}
	})
}

// A grant that arrives during the verification was not read, and is not lost.
func TestAGrantDuringTheVerificationIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		early := r.lock(s, "early")
		time.Sleep(r.m.cfg.RenewInterval - 2*time.Second)
		r.st.set("Acquire", fault{times: 1, after: 4 * time.Second}) // under the old lease
		asked := r.ask(context.Background(), s, types.Request{Key: "old"})
		synctest.Wait()
		r.st.failover()
		proceed := r.st.holdAnswer("HeldUnder")
		old := asked.granted(t)
		if r.st.count("HeldUnder") != 1 {
			t.Fatal("the locks are not being verified")
		}
		late := r.lock(s, "late")
		r.release(s, early)
		proceed()
		time.Sleep(time.Minute)
		if got := r.losses(); len(got) != 0 {
			t.Errorf("lost %+v", got)
		}
		r.must(r.amend(s, old))
		r.must(r.amend(s, late))
	})
}

// The answer to an acquire was in flight during the verification. The server that sent it is gone,
// and so is the grant.
func TestForgottenGrantOfALateAnswerIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		kept := r.lock(s, "kept")
		time.Sleep(r.m.cfg.RenewInterval / 2)
		r.st.set("Acquire", fault{times: 1, after: r.m.cfg.StoreTimeout - time.Millisecond})
		asked := r.ask(context.Background(), s, types.Request{Key: "late"})
		synctest.Wait()
		r.st.set("Move", fault{refuse: true}) // because a move verifies the lock, too
		r.st.failover()
		r.forget(types.Grant{Key: "late", Token: r.stored("late").Token})
		time.Sleep(r.m.cfg.RenewInterval / 2)
		synctest.Wait()
		if r.st.count("HeldUnder") != 1 || asked.isOver() {
			t.Fatal("not verified while the answer is in flight")
		}
		late := asked.granted(t)
		time.Sleep(r.m.cfg.RenewInterval)
		synctest.Wait()
		if got := r.losses(); len(got) != 1 || got[0] != (types.Lost{Key: "late", Token: late.Token, Reason: types.LostStore}) {
			t.Fatalf("lost %+v", got)
		}
		r.must(r.amend(s, kept))
	})
}
