package lease

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// An acquire may reach the store after its withdrawal, because it was in a buffer. Then the grant
// is withdrawn again.
// Proves: promise 9, trap late statement
func TestLateLandingIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.lock(s, "anchor") // keeps the lease in use
		r.st.set("Acquire", fault{lose: true})
		if _, err := r.try(s, "k"); !store.OutcomeUnknown(err) {
			t.Fatalf("the lost acquire: %v", err)
		}
		for r.st.count("Withdraw") == 0 {
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		r.st.lift("Acquire")

		// The acquire arrives now.
		var late store.Attempt
		for a := range r.st.attempts {
			if a.Key == "k" {
				late = a
			}
		}
		ask := store.Ask{Attempt: late, Lease: r.m.leases.Get(r.m.cfg.TTL).ID(), Session: "late"}
		landed, err := r.st.Store.Acquire(t.Context(), []store.Ask{ask})
		if err != nil || landed[0].Outcome != store.Granted {
			t.Fatalf("the late acquire: %+v, %v", landed, err)
		}
		var held *types.HeldError
		if _, err := r.try(s, "k"); !errors.As(err, &held) {
			t.Fatalf("k: %v, want held", err)
		}
		time.Sleep(3 * r.m.cfg.StoreTimeout)
		r.release(s, r.lock(s, "k"))
	})
}

// The same if the server's clock was set back: it says that the question may still be carried out, and is, after more than
// two limits. The attempt is withdrawn until the server excludes that.
// Proves: trap late statement
func TestAnUnsettledAttemptIsWithdrawnAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.lock(s, "anchor") // keeps the lease in use
		const unsettled = 5
		r.st.unsettled.Store(unsettled)
		limits := 2 * r.m.cfg.StoreTimeout
		r.st.set("Acquire", fault{times: 1, lose: true, late: 13 * limits / 4})
		if _, err := r.try(s, "k"); !store.OutcomeUnknown(err) {
			t.Fatalf("the lost acquire: %v", err)
		}
		time.Sleep(13*limits/4 + 100*time.Millisecond)
		if l := r.stored("k"); !l.Held {
			t.Fatalf("the late acquire was not carried out: %+v", l)
		}
		time.Sleep(10 * limits)
		if l := r.stored("k"); l.Held {
			t.Errorf("the lock has no owner: %+v", l)
		}
		if n := r.st.count("Withdraw"); n != unsettled+1 {
			t.Errorf("%d withdrawals, want %d", n, unsettled+1)
		}
	})
}
