package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// A statement of unknown outcome is withdrawn for each key.
func TestGroupUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.st.set("Acquire", fault{times: 1, forget: true})
		if _, err := r.m.AcquireAll(context.Background(), s, []string{"a", "b"}, types.Request{}); !store.OutcomeUnknown(err) {
			t.Fatalf("%v", err)
		}
		time.Sleep(time.Minute)
		r.isFree("a", "b")
		if r.st.traits.Inline {
			return // so the call cannot leave
		}
		// The call leaves during the statement.
		release := r.st.holdAnswer("Acquire")
		ctx, cancel := context.WithCancel(context.Background())
		a := r.askAll(ctx, s, types.Request{}, "a", "b")
		cancel()
		<-a.done
		if !errors.Is(a.err, types.ErrCallerLeft) || !r.stored("a").Held {
			t.Fatalf("%v", a.err)
		}
		release()
		r.isFree("a", "b")
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// A part that is lost while the group waits is acquired again, and the app is not notified.
func TestGroupLosesPart(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		b := r.lock(other, "b")
		a := r.waitAll(s, "a", "b", "c")
		part := r.stored("a")
		h := r.m.holdings.Get("a")
		if !h.LoseAndRelease(types.LostForced) {
			t.Fatal("not held")
		}
		synctest.Wait()
		taken := r.lock(other, "a")
		r.release(other, b)
		synctest.Wait()
		if a.isOver() {
			t.Fatalf("granted without one of its keys: %+v", a.g)
		}
		r.isFree("b", "c") // not held while the group waits for the key before
		r.release(other, taken)
		if g := a.granted(t, "a", "b", "c"); g[0].Token <= part.Token {
			t.Errorf("%d after %d", g[0].Token, part.Token)
		}
		if len(r.losses()) != 0 {
			t.Errorf("lost %v", r.losses())
		}
		if _, lost := s.LossOf("a", part.Token); lost {
			t.Error("the loss is remembered for the app")
		}
	})
}

// When the lease of all parts is lost, the group begins again under a fresh lease.
func TestGroupLosesLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		s, other := r.eitherSession(), b.eitherSession()
		hot := b.lock(other, "b")
		a := r.waitAll(s, "a", "b")
		r.m.leases.Lose(r.m.leases.Get(15*time.Second), types.LostStore)
		synctest.Wait()
		if a.isOver() {
			t.Fatalf("%v", a.err)
		}
		b.release(other, hot)
		a.granted(t, "a", "b")
		if len(r.losses()) != 0 || s.Held() != 2 {
			t.Errorf("lost %v, %d held", r.losses(), s.Held())
		}
	})
}

// If a row is locked, its key is asked for again alone, as for a single lock.
func TestGroupLockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.st.lockRows("b")
		a := r.askAll(context.Background(), s, types.Request{}, "a", "b", "c")
		time.Sleep(time.Second)
		if a.isOver() {
			t.Fatalf("%v", a.err)
		}
		r.st.lockRows()
		a.granted(t, "a", "b", "c")
		r.st.lockRows("e")
		a = r.askAll(context.Background(), s, types.Request{}, "d", "e", "f")
		<-a.done
		if !store.Unavailable(a.err) {
			t.Errorf("%v", a.err)
		}
		r.isFree("d", "f")
	})
}

// Calls come for a later key while a group waits for its lease. They get the key before the group,
// even if their statements are still in flight.
func TestGroupDoesNotOvertakeCallsForItsLaterKeys(t *testing.T) {
	for _, op := range []string{"Acquire", "Enqueue"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				o, s := other.eitherSession(), r.eitherSession()
				r.lock(r.eitherSession(), "warm") // opens the lease of the single call
				held := other.lock(o, "b")
				opened := r.st.hold("OpenLeases")
				group := r.askAll(context.Background(), s, types.Request{Wait: types.WaitForever, TTL: time.Minute}, "a", "b")
				gate := make(chan struct{})
				r.st.set(op, fault{times: 1, gate: gate})
				single := r.wait(r.explicitSession(), "b", types.WaitForever)
				other.release(o, held)
				opened()
				synctest.Wait()
				if group.isOver() {
					t.Fatalf("the group was granted before the call: %+v %v", group.g, group.err)
				}
				close(gate)
				r.inOrder([]*answer{single})
				for _, g := range group.granted(t, "a", "b") {
					r.release(s, g)
				}
			})
		})
	}
}
