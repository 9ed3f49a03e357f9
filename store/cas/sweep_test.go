package cas_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func TestARevocationFindsLocksWhoseAnswerWasLost(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.fails("Swap", fake.Fault{Lost: true})
		if _, err := a.Acquire(a.Context(), []store.Ask{a.ask("k")}); !store.OutcomeUnknown(err) {
			t.Fatalf("the acquire: %v", err)
		}
		waiter := b.ask("k")
		b.gets(waiter, store.Queued)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
		if news := b.told(); len(news) != 1 || news[0].ID != waiter.ID || news[0].Answer.Outcome != store.Granted {
			t.Errorf("told %+v", news)
		}
	})
}

func TestAHoldLivesWhenItsLockIsGranted(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		ask := a.ask("k")
		ask.MinHold = time.Second
		a.fails("Swap", fake.Fault{Slow: 2 * time.Second})
		a.releases(ask, a.gets(ask, store.Granted), store.Holds)
		denied := b.ask("k")
		b.tries(denied, store.Held)
		time.Sleep(time.Second + 100*time.Millisecond) // the second try asked for a little more
		b.tries(denied, store.Granted)
	})
}

func TestAHoldMayBeShorterThanARequest(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		a.always = true
		a.fails("Swap", fake.Fault{Slow: 100 * time.Millisecond})
		for _, timed := range []bool{false, true} {
			ask := a.ask("k")
			if ask.MinHold = time.Microsecond; timed {
				ask.MinHold, ask.TTL = 0, time.Microsecond
			}
			began := time.Now()
			grant := a.gets(ask, store.Granted)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("granted after %v", took)
			}
			time.Sleep(time.Second)
			if !timed {
				a.releases(ask, grant, store.Holds)
			}
		}
	})
}

func TestLeasesWithoutUseAreRevoked(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		before := server.Leases()
		ask := a.ask("k")
		ask.TTL, ask.MinHold = time.Hour, time.Minute
		grant := a.tries(ask, store.Granted)
		if got := server.Leases(); got != before+2 {
			t.Fatalf("%d leases, want 2 for the lock and its hold", got-before)
		}
		denied := ask
		denied.ID = uuid.New()
		b.tries(denied, store.Held) // its first try believes that the key is free
		synctest.Wait()
		if got := server.Leases(); got != before+2 {
			t.Errorf("%d leases after a refusal", got-before)
		}
		verdicts, err := a.Release(a.Context(), []store.Claim{{Key: "k", Token: grant.Token, AtOnce: true}})
		if a.ok(err); verdicts[0].Status != store.Holds {
			t.Fatalf("released: %+v", verdicts)
		}
		synctest.Wait()
		if got := server.Leases(); got > before+1 { // the lease of the hold may end by itself
			t.Errorf("%d leases after the release", got-before)
		}
	})
}

func TestSweepForgetsRecordsThatDidNotChange(t *testing.T) {
	pair(t, cas.Config{SweepTerm: -1}, func(server *fake.Server, a, b *instance) {
		old, used, held := a.ask("old"), a.ask("used"), a.ask("held")
		grant := a.gets(old, store.Granted)
		a.releases(old, grant, store.Holds)
		a.releases(used, a.gets(used, store.Granted), store.Holds)
		a.gets(held, store.Granted)
		left := func(when string, want int) {
			t.Helper()
			a.ok(a.Sweep(a.Context()))
			if n, _ := server.Records(); n != want {
				t.Errorf("%s: %d records, want %d", when, n, want)
			}
		}
		left("at once", 3)
		time.Sleep(4 * time.Minute)
		left("after four minutes", 3)
		again := b.ask("used")
		b.releases(again, b.gets(again, store.Granted), store.Holds)
		time.Sleep(2 * time.Minute)
		left("after six minutes", 2)
		time.Sleep(6 * time.Minute)
		left("after twelve minutes", 1)
		if next := b.gets(b.ask("old"), store.Granted); next.Token <= grant.Token {
			t.Errorf("token %d after %d and a deletion", next.Token, grant.Token)
		}
	})
}

func TestASweepThatComesTooLateForgetsNothing(t *testing.T) {
	pair(t, cas.Config{SweepTerm: -1}, func(server *fake.Server, a, b *instance) {
		ask := a.ask("k")
		a.releases(ask, a.gets(ask, store.Granted), store.Holds)
		a.ok(a.Sweep(a.Context()))
		time.Sleep(10 * time.Minute)
		a.fails("Swap", fake.Fault{Slow: time.Second})
		var swept sync.WaitGroup
		swept.Go(func() {
			if err := a.Sweep(a.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		grant := b.gets(b.ask("k"), store.Granted)
		swept.Wait()
		denied := a.ask("k")
		if held := a.tries(denied, store.Held); held.Lock.Token != grant.Token {
			t.Errorf("held under %d, want %d", held.Lock.Token, grant.Token)
		}
		if n, _ := server.Records(); n != 1 {
			t.Errorf("%d records", n)
		}
	})
}

func TestOneInstanceSweeps(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		sweeps := func(in *instance) bool {
			in.Helper()
			in.ok(in.Sweep(in.Context()))
			return strings.Contains(in.made(), "Scan")
		}
		if !sweeps(a) || sweeps(b) || !sweeps(a) {
			t.Error("not exactly the elected instance sweeps")
		}
		time.Sleep(26 * time.Minute)
		if !sweeps(b) || sweeps(a) {
			t.Error("nobody was elected after the term")
		}
	})
}

// TestAStopLeavesNoLease: neither that of an election, which outlasts a sweep by far, nor that of a lock that was released just
// before. A new store of another kind can take the place only when no lease is left.
// Proves: rule stop
func TestAStopLeavesNoLease(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		others := server.Leases() - 1
		a.ok(a.Sweep(a.Context()))
		if e, err := a.Elect(a.Context(), time.Minute); err != nil || !e.Elected {
			t.Fatalf("%+v, %v", e, err)
		}
		if n := server.Leases() - others; n != 3 {
			t.Fatalf("%d leases of its own and of its elections, want 3", n)
		}
		timed := a.ask("timed")
		timed.TTL = time.Hour
		grant := a.tries(timed, store.Granted)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
		a.fails("Revoke", fake.Fault{Slow: time.Second}) // the lease of the released lock is not revoked at once
		a.releases(timed, grant, store.Holds)
		a.Stop()
		if n := server.Leases(); n != others {
			t.Errorf("%d leases are left", n-others)
		}
		if e, err := b.Elect(b.Context(), time.Minute); err != nil || !e.Elected {
			t.Errorf("the next sidecar: %+v, %v", e, err)
		}
	})
}
