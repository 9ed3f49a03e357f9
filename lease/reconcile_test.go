package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func (d *double) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	_, err := do(ctx, d, "OpenLeases", len(leases), func(ctx context.Context) (int, error) { return 0, d.Store.OpenLeases(ctx, leases) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range leases {
		d.reconciled[l.ID] = d.history
	}
	return err
}

func (d *double) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	return do(ctx, d, "Renew", len(leases), func(ctx context.Context) (store.Renewal, error) {
		renewal, err := d.Store.Renew(ctx, leases)
		d.mu.Lock()
		defer d.mu.Unlock()
		renewal.History = d.history
		for _, id := range renewal.Kept {
			if d.reconciled[id] != d.history {
				renewal.Reconcile = append(renewal.Reconcile, id)
			}
		}
		return renewal, err
	})
}

func (d *double) HeldUnder(ctx context.Context, leases []store.LeaseID, keys []string) (store.Count, error) {
	return do(ctx, d, "HeldUnder", len(keys), func(ctx context.Context) (store.Count, error) {
		count, err := d.Store.HeldUnder(ctx, leases, keys)
		d.mu.Lock()
		defer d.mu.Unlock()
		count.History = d.history
		return count, err
	})
}

// HeldUnderAfter tells of one key in each part, or of so many, and of who waits in the first.
func (d *double) HeldUnderAfter(ctx context.Context, leases []store.LeaseID, after string) (store.Part, error) {
	return do(ctx, d, "HeldUnderAfter", len(leases), func(ctx context.Context) (store.Part, error) {
		all, err := d.Store.HeldUnderAfter(ctx, leases, "")
		d.mu.Lock()
		defer d.mu.Unlock()
		part := store.Part{Count: store.Count{History: d.history}, Next: after}
		if d.othersLook {
			return part, err
		}
		slices.SortFunc(all.Grants, func(a, b store.HeldGrant) int { return cmp.Compare(a.Key, b.Key) })
		keys := 0
		for _, r := range all.Grants {
			switch {
			case r.Waiting && after == "":
				part.Grants = append(part.Grants, r)
			case !r.Waiting && r.Key > after && keys < max(d.partKeys, 1):
				keys++
				part.Grants, part.Next = append(part.Grants, r), r.Key
			}
		}
		part.Last = keys == 0
		return part, err
	})
}

func (d *double) Reconciled(ctx context.Context, leases []store.LeaseID, history store.History) error {
	_, err := do(ctx, d, "Reconciled", len(leases), func(context.Context) (int, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, id := range leases {
			d.reconciled[id] = history
		}
		return 0, nil
	})
	return err
}

// failover makes the store another one.
func (d *double) failover() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = uuid.New()
}

// lease is the one on which locks of sessions ride.
func (r *rig) lease() store.LeaseID { return r.m.leases.get(r.m.cfg.TTL).id }

// forget makes the store forget a grant, as an asynchronous failover does.
func (r *rig) forget(g types.Grant) {
	r.t.Helper()
	verdicts, err := r.st.Store.Release(context.Background(), []store.Claim{{Key: g.Key, Token: g.Token, Lease: r.lease()}})
	r.must(err)
	if verdicts[0].Status != store.Holds {
		r.t.Fatalf("%q is not held", g.Key)
	}
}

// isCounted checks that the leases are counted, and nothing is asked any more.
func (r *rig) isCounted() {
	r.t.Helper()
	asked := func() int { return r.st.count("HeldUnder") + r.st.count("HeldUnderAfter") + r.st.count("Reconciled") }
	before := asked()
	time.Sleep(time.Minute)
	if n := asked() - before; n > 0 || r.st.count("Reconciled") == 0 {
		r.t.Errorf("asked %d times in a minute, reconciled %d times", n, r.st.count("Reconciled"))
	}
}

// A failover has lost a grant, and not the lease under it: somebody else has got the key.
// The holder is told with the next renewal, and what is still there stays.
func TestAForgottenGrantIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		kept, lost := r.lock(s, "kept"), r.lock(s, "lost")
		r.forget(lost)
		r.st.failover()
		theirs := other.lock(o, "lost")
		time.Sleep(r.m.cfg.RenewInterval)
		synctest.Wait()
		if got := r.losses(); len(got) != 1 || got[0] != (types.Lost{Key: "lost", Token: lost.Token, Reason: types.LostStore}) {
			t.Fatalf("lost %+v", got)
		}
		if reason := lostReason(r.amend(s, lost)); reason != types.LostStore {
			t.Errorf("the claim hears %q", reason)
		}
		r.must(r.amend(s, kept))
		time.Sleep(time.Minute)
		r.isCounted()
		r.must(other.amend(o, theirs))
		r.release(s, kept)
		other.release(o, theirs)
		r.nothingLeft()
	})
}

// What is held under a lease is not believed before it is counted: who cannot count loses the
// lease at the deadline that it had before.
func TestALeaseIsNotTrustedUncounted(t *testing.T) {
	for name, f := range map[string]fault{"refused": {refuse: true}, "hangs": {before: time.Hour}, "unheard": {forget: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				began := time.Now()
				g := r.lock(r.session(), "k")
				r.forget(g)
				r.st.failover()
				r.st.set("HeldUnder", f)
				time.Sleep(20 * time.Second)
				if got := r.losses(); len(got) != 1 || got[0].Reason != types.LostStore {
					t.Fatalf("lost %+v", got)
				}
				if at := r.at[0].Sub(began); at > r.m.cfg.TTL-margin(r.m.cfg.TTL) {
					t.Errorf("told after %s", at)
				}
				r.st.lift("HeldUnder")
			})
		})
	}
}

// The two answers must be of one history: another server may still remember.
func TestACountOfAnotherHistoryCountsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		g := r.lock(r.session(), "k")
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
			t.Errorf("counted %d times, want once in vain and once more", n)
		}
	})
}

// A grant that comes while the count is under way is not in it, and is not lost.
func TestAGrantDuringTheCountIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		early := r.lock(s, "early")
		r.st.failover()
		proceed := r.st.holdAnswer("HeldUnder")
		time.Sleep(r.m.cfg.RenewInterval)
		synctest.Wait()
		late := r.lock(s, "late")
		r.release(s, early)
		proceed()
		time.Sleep(time.Minute)
		if got := r.losses(); len(got) != 0 {
			t.Errorf("lost %+v", got)
		}
		r.must(r.amend(s, late))
	})
}

// The answer to an acquire was on its way when the leases were counted, and the server that
// gave it is gone, and the grant with it.
func TestAForgottenGrantThatIsToldLateIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		kept := r.lock(s, "kept")
		r.st.set("Acquire", fault{times: 1, after: r.m.cfg.StoreTimeout - time.Millisecond})
		asked := r.ask(context.Background(), s, types.Request{Key: "late"})
		synctest.Wait()
		r.st.failover()
		r.forget(types.Grant{Key: "late", Token: r.stored("late").Token})
		r.m.leases.get(r.m.cfg.TTL).renewAt = time.Now()
		r.m.leases.changed()
		synctest.Wait()
		if r.st.count("HeldUnder") != 1 || asked.isOver() {
			t.Fatal("not counted while the answer is on its way")
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

// A failover brings back what was given up: a lock, and a queue position. Others get the
// key all the same, and the lease is counted until nothing unknown is left.
func TestWhatIsBackIsGivenUp(t *testing.T) {
	for name, grant := range map[string]store.AttemptID{"random": uuid.New(), "of a request": uuid.NewSHA1(uuid.New(), nil)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s, o := r.session(), other.session()
				mine := r.lock(s, "mine")
				theirs := other.lock(o, "line")
				ctx := context.Background()
				ask := func(key string) store.Ask {
					return store.Ask{Attempt: store.Attempt{Key: key, ID: grant}, Lease: r.lease()}
				}
				_, err := r.st.Store.Acquire(ctx, []store.Ask{ask("back")})
				r.must(err)
				_, err = r.st.Store.Acquire(ctx, []store.Ask{{Attempt: store.Attempt{Key: "line", ID: uuid.New()}, Lease: r.lease(), Wait: true}})
				r.must(err)
				r.st.failover()
				back := other.wait(o, "back", types.WaitForever)
				time.Sleep(2 * r.m.cfg.StoreTimeout)
				if back.isOver() {
					t.Error("given up while an answer may be on its way")
				}
				time.Sleep(2*r.m.cfg.StoreTimeout + 3*r.m.cfg.RenewInterval)
				if !back.isOver() {
					t.Fatal("what came back is kept")
				}
				other.release(o, back.granted(t))
				other.release(o, theirs)
				if r.stored("line").Held {
					t.Error("who is not there has got the key")
				}
				r.must(r.amend(s, mine))
				time.Sleep(time.Minute)
				r.isCounted()
				if len(r.losses()) > 0 {
					t.Errorf("lost %+v", r.losses())
				}
				r.release(s, mine)
				r.nothingKept()
			})
		})
	}
}

// The answer to an acquire takes as long as it may. Its grant is counted before anybody
// here knows it, and is not given up; nor is the place of who waits.
func TestAnAnswerOnItsWayIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		held := other.lock(o, "line")
		r.lock(s, "first") // for the lease
		waiting := r.wait(s, "line", types.WaitForever)
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval + 2*r.m.cfg.StoreTimeout + 3*time.Second) // the parts are looked at soon
		r.st.set("Acquire", fault{times: 1, after: r.m.cfg.StoreTimeout - time.Millisecond})
		asked := r.ask(context.Background(), s, types.Request{Key: "k"})
		got := asked.granted(t)
		if r.st.count("HeldUnderAfter") == 0 {
			t.Fatal("nothing was looked for meanwhile")
		}
		time.Sleep(time.Minute)
		r.must(r.amend(s, got))
		if l := r.stored("k"); !l.Held || l.Token != got.Token || waiting.isOver() {
			t.Error("given up")
		}
		other.release(o, held)
		waiting.granted(t)
	})
}

// Each time when somebody looks an answer is on its way, for the same key, as in any sidecar
// with much to do: they do not keep the lease from being settled.
func TestABusySidecarCountsToAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		r.lock(s, "first") // for the lease
		r.st.set("Acquire", fault{after: 4 * time.Second})
		r.st.failover()
		for range 15 {
			r.release(s, r.lock(s, "k"))
		}
		r.isCounted()
		r.st.lift("Acquire")
	})
}

// locks are so many, by one session.
func (r *rig) locks(s *Session, ttl time.Duration, n int) {
	r.t.Helper()
	var all []*answer
	for i := range n {
		all = append(all, r.ask(context.Background(), s, types.Request{Key: fmt.Sprintf("%s/%d", ttl, i), TTL: ttl}))
	}
	for _, a := range all {
		a.granted(r.t)
	}
}

// A lease with more locks than are read at a time is not trusted before all are read, and
// one with few does not wait for it. What was read is not read again.
func TestFewLocksAreCountedFirst(t *testing.T) {
	const many = believedMax + 500
	for name, heals := range map[string]bool{"it heals": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.session()
				few := r.lock(s, "few")
				r.locks(s, 10*time.Second, many)
				r.st.set("HeldUnder", fault{times: 1, then: func() { r.st.set("HeldUnder", fault{refuse: true}) }})
				r.st.failover()
				time.Sleep(r.m.cfg.RenewInterval + time.Second)
				if n := r.st.largest("HeldUnder"); n != believedMax {
					t.Fatalf("%d read at a time", n)
				}
				if heals {
					r.st.lift("HeldUnder")
				}
				time.Sleep(14 * time.Second)
				lost := 0
				if !heals {
					lost = many
				}
				if n := len(r.losses()); n != lost {
					t.Errorf("%d lost, want %d", n, lost)
				}
				r.must(r.amend(s, few))
				r.st.lift("HeldUnder")
			})
		})
	}
}

// What cannot be looked for, because the store fails or others look, is looked for later;
// until then the lease is named, and trusted, and the store is not asked all the time.
func TestWhatIsBackIsLookedForUntilItIsFound(t *testing.T) {
	for name, hinder := range map[string]func(*double, bool){
		"the store fails": func(d *double, on bool) {
			if d.lift("HeldUnderAfter"); on {
				d.set("HeldUnderAfter", fault{refuse: true})
			}
		},
		"others look": func(d *double, on bool) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.othersLook = on
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.session()
				mine := r.lock(s, "mine")
				_, err := r.st.Store.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: "back", ID: uuid.New()}, Lease: r.lease()}})
				r.must(err)
				hinder(r.st, true)
				r.st.failover()
				time.Sleep(2 * time.Minute)
				if n := r.st.count("HeldUnderAfter"); n < 10 || n > 30 {
					t.Errorf("asked %d times in two minutes", n)
				}
				if r.st.count("Reconciled") > 0 || !r.stored("back").Held {
					t.Error("counted, though nobody could look")
				}
				hinder(r.st, false)
				time.Sleep(time.Minute)
				if r.stored("back").Held {
					t.Error("what came back is kept")
				}
				r.must(r.amend(s, mine))
				r.isCounted()
			})
		})
	}
}

// A backup brings back more than should be kept in mind: what was found is given up before
// more is looked for.
func TestMuchThatIsBackIsGivenUpInParts(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		mine := r.lock(r.session(), "mine")
		asks := make([]store.Ask, candidatesMax+1)
		for i := range asks {
			asks[i] = store.Ask{Attempt: store.Attempt{Key: fmt.Sprintf("back/%06d", i), ID: uuid.New()}, Lease: r.lease()}
		}
		_, err := r.st.Store.Acquire(context.Background(), asks)
		r.must(err)
		r.st.partKeys = candidatesMax / 2
		var parts atomic.Int64
		r.st.set("Withdraw", fault{times: 1, then: func() { parts.Store(int64(r.st.count("HeldUnderAfter"))) }})
		r.st.failover()
		time.Sleep(2 * time.Minute)
		if n := parts.Load(); n != 2 {
			t.Errorf("given up after %d parts", n)
		}
		if first, last := asks[0].Key, asks[len(asks)-1].Key; r.stored(first).Held || r.stored(last).Held || !r.stored(mine.Key).Held {
			t.Error("what came back is kept")
		}
		r.isCounted()
	})
}

// What was released just before the failover, and is back, is found without a look at all
// locks.
func TestWhatWasReleasedLastIsLookedForFirst(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		r.lock(s, "mine")
		r.release(s, r.lock(s, "back"))
		_, err := r.st.Store.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: "back", ID: uuid.New()}, Lease: r.lease()}})
		r.must(err)
		r.st.set("HeldUnderAfter", fault{refuse: true})
		r.st.failover()
		time.Sleep(time.Minute)
		if r.stored("back").Held {
			t.Error("what came back is kept")
		}
		r.st.lift("HeldUnderAfter")
	})
}

// Somebody keeps the row of what came back locked, for long: each count finds it again, and
// there is one withdraw all the same.
func TestWhatCannotBeGivenUpIsTriedByOne(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		r.lock(s, "mine")
		_, err := r.st.Store.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: "back", ID: uuid.New()}, Lease: r.lease()}})
		r.must(err)
		r.st.set("Withdraw", fault{refuse: true})
		r.st.failover()
		time.Sleep(time.Minute)
		before := r.st.count("Withdraw")
		time.Sleep(time.Minute)
		if n := r.st.count("Withdraw") - before; n < 60 || n > 300 {
			t.Errorf("%d withdrawals in a minute, want one each %s", n, clock.RetryPause)
		}
		r.st.lift("Withdraw")
		time.Sleep(time.Minute)
		if r.stored("back").Held {
			t.Error("what came back is kept")
		}
	})
}
