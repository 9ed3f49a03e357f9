package lease

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// downgrade turns a lock into a share.
func (r *rig) downgrade(s *holdings.Session, g types.Grant) (types.Grant, error) {
	return r.m.Amend(context.Background(), s, types.AmendRequest{Key: g.Key, Token: g.Token, Share: true})
}

// A downgraded lock keeps its token and its session, and lets waiting readers in, but no writer.
func TestDowngrade(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.explicitSession(), other.explicitSession()
		g := r.lock(s, "k")
		readers := []*answer{r.waitShare(s, "k", 4), other.waitShare(o, "k", 4)}
		writer := other.wait(o, "k", types.WaitForever)
		share, err := r.downgrade(s, g)
		if err != nil || share.Token != g.Token || !share.Shared || share.Limit != 4 || share.Slot != 0 {
			t.Fatalf("got %+v, %v", share, err)
		}
		for _, a := range readers {
			if got := a.granted(t); got.Token <= g.Token || got.Slot == 0 {
				t.Errorf("got %+v", got)
			}
		}
		stillWait(t, writer)
		if again, err := r.downgrade(s, g); err != nil || again.Token != g.Token || !again.Shared {
			t.Errorf("the repeat: %+v, %v", again, err)
		}
		r.must(r.patch(s, g, `"new"`))
		if lock := r.stored("k"); lock.HoldersCount != 3 || string(lock.Holders[0].Data) != `"new"` {
			t.Errorf("got %+v", lock)
		}
		r.release(s, readers[0].g)
		other.release(o, readers[1].g)
		stillWait(t, writer)
		r.release(s, g)
		other.release(o, writer.granted(t))
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A lock with several entries stays exclusive, because the outer entries rely on that.
func TestAnEnteredLockIsNotDowngraded(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		r.get(s, as("o", "k", 0))
		_, err := r.downgrade(s, g)
		if entered, ok := errors.AsType[*types.InvalidError](err); !ok || !strings.Contains(entered.Text, "entered 2 times") {
			t.Errorf("error %v", err)
		}
		r.isDenied(r.eitherSession(), types.Request{Key: "k", Shared: true})
		r.release(s, g)
		_, err = r.downgrade(s, g)
		r.must(err)
		r.release(s, g)
		r.nothingLeft()
	})
}

// After a downgrade of unknown outcome, a repeat finds its share. Other grants of the store stay.
func TestDowngradeOfUnknownOutcome(t *testing.T) {
	for name, f := range map[string]fault{"refused": {times: 1, refuse: true}, "lost": {times: 1, lose: true}, "done": {times: 1, forget: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s, o := r.explicitSession(), r.explicitSession()
				g := r.lock(s, "k")
				reader := r.waitShare(o, "k", 0)
				r.st.set("Downgrade", f)
				if _, err := r.downgrade(s, g); !store.Unavailable(err) {
					t.Fatalf("error %v", err)
				}
				if name == "done" {
					reader.granted(t)
					r.release(o, r.get(o, types.Request{Key: "k", Shared: true}))
				}
				v, err := r.m.Get(context.Background(), s, "k", false)
				if err != nil || !v.Mine || v.Shared != (name == "done") || v.Token != g.Token {
					t.Errorf("got %+v, %v", v, err)
				}
				share, err := r.downgrade(s, g)
				if err != nil || !share.Shared || share.Token != g.Token {
					t.Errorf("got %+v, %v", share, err)
				}
				r.release(o, reader.granted(t))
				if n := len(r.losses()); n != 0 {
					t.Errorf("%d losses", n)
				}
				r.release(s, g)
				r.nothingLeft()
			})
		})
	}
}

// While it is unknown whether a lock became a share, its owner does not enter it, because others may have shares. A check and a
// list report what the store has.
func TestALockThatMayBeSharedIsNotEntered(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		r.st.set("Downgrade", fault{times: 1, forget: true})
		if _, err := r.downgrade(s, g); !store.OutcomeUnknown(err) {
			t.Fatalf("error %v", err)
		}
		reader := r.get(o, types.Request{Key: "k", Shared: true})
		if lock := r.isDenied(s, as("o", "k", 0)); !lock.Shared {
			t.Errorf("the owner is denied because of %+v", lock)
		}
		page, err := r.m.List(context.Background(), s, types.ListRequest{Scope: types.ScopeSession, Limit: 1})
		if err != nil || len(page.Locks) != 1 || !page.Locks[0].Shared || page.Locks[0].HoldersCount != 2 {
			t.Errorf("listed %+v, %v", page.Locks, err)
		}
		check, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: "k", Token: g.Token})
		if err != nil || !check.Shared || check.Reentry != 1 {
			t.Errorf("the check: %+v, %v", check, err)
		}
		r.release(s, g)
		r.release(o, reader)
		r.nothingLeft()
	})
}

// A downgrade ends the cohort, because its waiters want exclusive locks.
func TestDowngradeEndsACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, first := r.cohort(other, "k", 3)
		s := calls[0].s
		share, err := r.downgrade(s, first)
		if err != nil || !share.Shared {
			t.Fatalf("got %+v, %v", share, err)
		}
		reader := other.waitShare(other.eitherSession(), "k", 0)
		stillWait(t, calls[1], calls[2], reader)
		r.release(s, first)
		r.release(calls[1].s, calls[1].granted(t))
		r.release(calls[2].s, calls[2].granted(t))
		other.release(reader.s, reader.granted(t))
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A share is released when its max_hold is over, and the other shares stay.
func TestMaxHoldOfAShare(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		brief := r.get(s, types.Request{Key: "k", Shared: true, MaxHold: time.Second})
		long := r.share(s, "k", 0)
		time.Sleep(2 * time.Second)
		if lost := r.losses(); len(lost) != 1 || lost[0] != (types.Lost{Key: "k", Token: brief.Token, Reason: types.LostMaxHold}) {
			t.Errorf("lost %+v", lost)
		}
		if lock := r.stored("k"); lock.HoldersCount != 1 || lock.Token != long.Token {
			t.Errorf("got %+v", lock)
		}
		if err := r.tryRelease(s, "k", brief.Token); !types.Is[*types.LostError](err) {
			t.Errorf("error %v", err)
		}
		r.release(s, long)
		r.nothingLeft()
	})
}

// The min_hold of a share keeps writers out, but not readers.
func TestMinHoldOfAShare(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		g := r.get(s, types.Request{Key: "k", Shared: true, MinHold: 10 * time.Second})
		r.release(s, g)
		writer := r.wait(s, "k", types.WaitForever)
		time.Sleep(9 * time.Second)
		stillWait(t, writer)
		time.Sleep(2 * time.Second)
		r.release(s, writer.granted(t))
		g = r.get(s, types.Request{Key: "k", Shared: true, MinHold: 10 * time.Second})
		r.release(s, g)
		r.release(s, r.share(s, "k", 0))
		time.Sleep(10 * time.Second)
		r.nothingLeft()
	})
}

// Shares are lost with their lease, and waiters of other sidecars get the key.
func TestSharesAreLostWithTheirLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s := r.eitherSession()
		grants := []types.Grant{r.share(s, "k", 0), r.share(s, "k", 0)}
		o := other.eitherSession()
		theirs := other.share(o, "k", 0)
		writer := other.wait(other.eitherSession(), "k", types.WaitForever)
		r.st.setAll(fault{refuse: true})
		time.Sleep(r.m.cfg.TTL + time.Second)
		if lost := r.losses(); len(lost) != 2 || lost[0].Reason != types.LostStore {
			t.Errorf("lost %+v", lost)
		}
		stillWait(t, writer)
		other.release(o, theirs)
		other.release(writer.s, writer.granted(t))
		r.st.lift(everyOp...)
		for _, g := range grants {
			if err := r.tryRelease(s, "k", g.Token); !types.Is[*types.LostError](err) {
				t.Errorf("error %v", err)
			}
		}
		time.Sleep(time.Minute)
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A failover loses one of several shares of a key. Only this share is lost, and the others are
// moved.
// Proves: promise 19
func TestAForgottenShareIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		kept, lost, last := r.share(s, "k", 0), r.share(s, "k", 0), r.share(s, "k", 0)
		old := r.lease()
		claim := store.Claim{Key: "k", Token: lost.Token, Lease: old}
		verdicts, err := r.st.Store.Release(context.Background(), []store.Claim{claim})
		if err != nil || verdicts[0].Status != store.Holds {
			t.Fatalf("got %+v, %v", verdicts, err)
		}
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval + time.Second) // before the moves
		if got := r.losses(); len(got) != 1 || got[0] != (types.Lost{Key: "k", Token: lost.Token, Reason: types.LostStore}) {
			t.Errorf("lost %+v", got)
		}
		time.Sleep(r.rotation())
		r.isRotated(old)
		for _, g := range []types.Grant{kept, last} {
			r.must(r.amend(s, g))
			r.release(s, g)
		}
		r.nothingLeft()
	})
}

// A share has no outcome, because a waiter could not use the outcome of one among several holders.
func TestOutcomeOfAShareIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.share(s, "k", 0)
		_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{
			Key: "k", Token: g.Token, Outcome: store.Success, Result: json.RawMessage("1"),
		})
		if !types.Is[*types.InvalidError](err) {
			t.Errorf("error %v", err)
		}
		r.release(s, g)
		r.nothingLeft()
	})
}

// The sidecar that gets the release may not know that the lock is a share: the store knows.
func TestOutcomeOfABindTTLShareIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g := r.get(nil, types.Request{Key: "k", Shared: true, Bind: types.BindTTL, TTL: time.Minute})
		for range 2 {
			_, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: g.Token, Outcome: store.Failure})
			if !types.Is[*types.InvalidError](err) {
				t.Errorf("error %v", err)
			}
		}
		other.release(nil, g)
		r.nothingLeft()
	})
}

// The store grants a key exclusively while the sidecar believes to hold shares of it. These shares
// are lost.
// Proves: promise 19
func TestAnExclusiveGrantEndsShares(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		g := r.share(s, "k", 0)
		verdicts, err := r.st.Store.Release(context.Background(), []store.Claim{{Key: "k", Token: g.Token, Lease: r.lease()}})
		if err != nil || verdicts[0].Status != store.Holds {
			t.Fatalf("got %+v, %v", verdicts, err)
		}
		theirs := r.lock(o, "k")
		synctest.Wait()
		if lost := r.losses(); len(lost) != 1 || lost[0].Token != g.Token {
			t.Errorf("lost %+v", lost)
		}
		r.release(o, theirs)
		r.nothingLeft()
	})
}

// A downgrade of unknown outcome may have succeeded, even if the repeat finds the row locked.
func TestDowngradeIsRepeatedAtALockedRow(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		g := r.lock(s, "k")
		r.st.set("Downgrade", fault{times: 1, forget: true})
		if _, err := r.downgrade(s, g); !store.OutcomeUnknown(err) {
			t.Fatalf("error %v", err)
		}
		r.st.lockRows("k")
		_, err := r.downgrade(s, g)
		wantStuck(t, "downgrade", err)
		r.st.lockRows()
		r.release(o, r.share(o, "k", 0))
		if n := len(r.losses()); n != 0 {
			t.Errorf("%d losses", n)
		}
		_, err = r.downgrade(s, g)
		r.must(err)
		r.release(s, g)
		r.nothingLeft()
	})
}

// Two downgrades wait for a locked row. The first is refused in the end. The second is carried out, but its answer is lost: the
// lock may be a share.
// Proves: promise 9, promise 19
func TestALaterDowngradeMayHaveBeenCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, o := r.eitherSession(), r.eitherSession()
		g := r.get(s, as("o", "k", 0))
		r.st.lockRows("k")
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := r.downgrade(s, g); first <- err }()
		time.Sleep(3 * time.Second)
		go func() { _, err := r.downgrade(s, g); second <- err }()
		wantStuck(t, "the first", <-first)
		r.st.set("Downgrade", fault{times: 1, forget: true})
		r.st.lockRows()
		if err := <-second; !store.OutcomeUnknown(err) {
			t.Fatalf("error %v", err)
		}
		reader := r.get(o, types.Request{Key: "k", Shared: true})
		if lock := r.isDenied(s, as("o", "k", 0)); !lock.Shared {
			t.Errorf("the owner is denied because of %+v", lock)
		}
		r.release(s, g)
		r.release(o, reader)
		r.nothingLeft()
	})
}
