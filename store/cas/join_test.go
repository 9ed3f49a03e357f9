package cas_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func claim(ask *store.Ask, a store.Answer) store.Claim {
	return store.Claim{Key: ask.Key, Token: a.Token, Lease: ask.Lease}
}

func change(c store.Claim) store.Change {
	return store.Change{Key: c.Key, Token: c.Token, Lease: c.Lease}
}

// Acquires and releases share requests. A key that is in both is released first.
func TestAcquireAndRelease(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		held, kept := a.ask("k"), a.ask("kept")
		grant := a.gets(held, store.Granted)
		a.gets(kept, store.Granted)
		a.made()
		again, free, denied := a.ask("k"), a.ask("free"), a.ask("kept")
		answers, acquireErr, verdicts, releaseErr := a.AcquireAndRelease(a.Context(), []store.Ask{again, free, denied}, []store.Claim{claim(&held, grant)})
		a.ok(acquireErr)
		a.ok(releaseErr)
		a.wants("three keys, of which one is held", "Load Swap")
		if verdicts[0].Status != store.Holds || answers[0].Outcome != store.Granted || answers[1].Outcome != store.Granted || answers[2].Outcome != store.Held {
			t.Errorf("verdicts %+v, answers %+v", verdicts, answers)
		}
		a.releases(again, answers[0], store.Holds)
	})
}

// A record that cannot be used fails only operations on its key. Beside others, such an operation is answered as if the record were
// locked, and so asked again alone.
func TestADamagedRecordFailsOnlyItsOperation(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		server.Corrupt("n/damaged", []byte("x"))
		held, bad := a.ask("k"), a.ask("damaged")
		asks := []store.Ask{bad, held}
		attempts := []store.Attempt{bad.Attempt, held.Attempt}
		answers, err := a.Enqueue(a.Context(), asks)
		if a.ok(err); answers[0].Outcome != store.RowLocked || answers[1].Outcome != store.Granted {
			t.Errorf("acquire: %+v", answers)
		}
		claims := []store.Claim{claim(&bad, answers[1]), claim(&held, answers[1])}
		amended, err := a.Amend(a.Context(), []store.Change{change(claims[0]), change(claims[1])})
		if a.ok(err); amended[0].Status != store.ClaimRowLocked || amended[1].Status != store.Holds {
			t.Errorf("amend: %+v", amended)
		}
		statuses, err := a.Signal(a.Context(), []store.Signal{{Key: "damaged", Kind: store.Stop}, {Key: "k", Kind: store.Stop}})
		if a.ok(err); statuses[0] != store.ClaimRowLocked || statuses[1] != store.Holds {
			t.Errorf("signal: %+v", statuses)
		}
		found, err := a.Check(a.Context(), attempts)
		if a.ok(err); found[0].Outcome != store.Queued || found[1].Outcome != store.Granted {
			t.Errorf("check: %+v", found)
		}
		verdicts, err := a.Release(a.Context(), claims)
		if a.ok(err); verdicts[0].Status != store.ClaimRowLocked || verdicts[1].Status != store.Holds {
			t.Errorf("release: %+v", verdicts)
		}
		outcomes, err := a.Withdraw(a.Context(), attempts)
		if a.ok(err); outcomes[0] != store.RowLocked || outcomes[1] != store.Gone {
			t.Errorf("withdraw: %v", outcomes)
		}
		held = a.ask("k")
		grant := a.gets(held, store.Granted)
		answers, acquireErr, verdicts, releaseErr := a.AcquireAndRelease(a.Context(), []store.Ask{a.ask("damaged")}, []store.Claim{claim(&held, grant)})
		a.ok(acquireErr)
		if a.ok(releaseErr); answers[0].Outcome != store.RowLocked || verdicts[0].Status != store.Holds {
			t.Errorf("answers %+v, verdicts %+v", answers, verdicts)
		}
		if _, err := a.Release(a.Context(), claims[:1]); !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), `"n/damaged"`) {
			t.Errorf("alone: %v", err)
		}
	})
}

// Holders that change the data of one key to more than a record may have do not harm those of other keys.
func TestARecordWithTooMuchDataFailsOnlyItsChange(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		full, other := a.ask("full"), a.ask("other")
		large := change(claim(&full, a.gets(full, store.Granted)))
		large.SetData, large.Data = true, make([]byte, 1<<20)
		check := change(claim(&other, a.gets(other, store.Granted)))
		amended, err := a.Amend(a.Context(), []store.Change{large, check})
		if a.ok(err); amended[0].Status != store.ClaimRowLocked || amended[1].Status != store.Holds {
			t.Errorf("amended %+v", amended)
		}
		if _, err := a.Amend(a.Context(), []store.Change{large}); err == nil || !strings.Contains(err.Error(), "too much data") {
			t.Errorf("alone: %v", err)
		}
	})
}

// An ask for which the record has no room does not keep a lock from being released.
func TestAReleaseBesideAnAskThatIsTooLarge(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		held := a.ask("k")
		grant := a.gets(held, store.Granted)
		large := func() store.Ask {
			ask := a.ask("k")
			ask.Lease, ask.ID, ask.Data = a.lease, uuid.New(), make([]byte, 200<<10)
			return ask
		}
		first := large()
		a.gets(first, store.Queued)
		a.gets(large(), store.Queued)
		answers, acquireErr, verdicts, releaseErr := a.AcquireAndRelease(a.Context(), []store.Ask{large()}, []store.Claim{claim(&held, grant)})
		a.ok(acquireErr)
		if a.ok(releaseErr); verdicts[0].Status != store.Holds || answers[0].Outcome != store.Held {
			t.Errorf("verdicts %+v, outcome %d", verdicts, answers[0].Outcome)
		}
		b.gets(b.ask("k"), store.Queued)
		a.gets(first, store.Granted)

		// One that would be granted, but never fits.
		held = a.ask("free")
		grant = a.gets(held, store.Granted)
		ask := a.ask("free")
		ask.Data = make([]byte, 600<<10)
		answers, acquireErr, verdicts, releaseErr = a.AcquireAndRelease(a.Context(), []store.Ask{ask}, []store.Claim{claim(&held, grant)})
		a.ok(acquireErr)
		if a.ok(releaseErr); verdicts[0].Status != store.Holds || answers[0].Outcome != store.QueueFull {
			t.Errorf("verdicts %+v, outcome %d", verdicts, answers[0].Outcome)
		}
		b.gets(b.ask("free"), store.Granted)
	})
}

// A cohort has only tokens that were reserved for its holder's grant. With more waiters it begins at the hand-off.
func TestACohortNeedsReservedTokens(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		for _, c := range []struct {
			key            string
			waiters, named int
		}{{"few", 30, 30}, {"many", 40, 0}} {
			holder := a.ask(c.key)
			grant := a.gets(holder, store.Granted)
			asks := make([]store.Ask, c.waiters)
			for i := range asks {
				asks[i] = a.ask(c.key)
			}
			answers, err := a.Enqueue(a.Context(), asks)
			a.ok(err)
			if got := answers[c.waiters-1].Cohort; len(got) != c.named {
				t.Errorf("%s: a cohort of %d, want %d", c.key, len(got), c.named)
			}
			last := grant.Token + int64(c.named)
			a.told()
			a.releases(holder, grant, store.Holds)
			for _, n := range a.told() {
				if n.ID == asks[0].ID && (n.Answer.Token <= last || len(n.Answer.Cohort) != c.waiters-1) {
					t.Errorf("%s: token %d after %d, a cohort of %d", c.key, n.Answer.Token, last, len(n.Answer.Cohort))
				}
			}
		}
	})
}
