package cas_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func TestALostAnswerIsToldAgain(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		holder, waiter := a.ask("k"), a.ask("k")
		grant := a.gets(holder, store.Granted)
		a.gets(waiter, store.Queued)
		a.fails("Swap", fake.Fault{Lost: true})
		if _, err := a.release(holder, grant); !store.OutcomeUnknown(err) {
			t.Fatalf("the release: %v", err)
		}
		if news := a.told(); len(news) != 0 {
			t.Fatalf("told although nothing is known: %+v", news)
		}
		a.releases(holder, grant, store.UnknownToken)
		if news := a.told(); len(news) != 1 || !news[0].Missed {
			t.Fatalf("told %+v, want a hint to check every wait", news)
		}
		a.releases(holder, grant, store.UnknownToken)
		if news := a.told(); len(news) != 0 {
			t.Fatalf("told again and again: %+v", news)
		}
	})
}

func TestLostLettersAreReported(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.losing = true
		ask := a.ask("k")
		a.gets(ask, store.Granted)
		a.gets(a.ask("other"), store.Granted)
		renewal, err := a.Renew(a.Context(), []store.LeaseID{a.lease})
		if a.ok(err); renewal.Signals {
			t.Error("signals before the signal")
		}
		statuses, err := b.Signal(b.Context(), []store.Signal{{Kind: store.Stop, Key: "k"}})
		if b.ok(err); statuses[0] != store.Holds {
			t.Fatalf("signalled: %v", statuses)
		}
		if news := a.told(); len(news) != 1 || !news[0].Missed {
			t.Fatalf("told %+v, want a hint to check everything", news)
		}
		renewal, err = a.Renew(a.Context(), []store.LeaseID{a.lease})
		if a.ok(err); !renewal.Signals {
			t.Error("the renewal does not tell of signals")
		}
		signals, err := a.Signals(a.Context(), []store.LeaseID{a.lease})
		if a.ok(err); len(signals) != 1 || signals[0].Key != "k" {
			t.Fatalf("signals: %+v", signals)
		}
		a.ok(a.Acknowledge(a.Context(), []store.SignalID{signals[0].ID}))
		renewal, err = a.Renew(a.Context(), []store.LeaseID{a.lease})
		if a.ok(err); renewal.Signals {
			t.Error("signals after they were acknowledged")
		}
	})
}

func TestAPartThatWasCarriedOutMakesTheOutcomeUnknown(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.gets(a.ask("held"), store.Granted)
		b.fails("Load", fake.Fault{Refused: true})
		_, err := b.Enqueue(b.Context(), []store.Ask{b.ask("free"), b.ask("held")})
		if b.made(); err != nil { // the wait needs no read
			t.Fatal(err)
		}
		denied := b.ask("third")
		a.gets(a.ask("third"), store.Granted)
		_, err = b.Acquire(b.Context(), []store.Ask{b.ask("fourth"), denied})
		if made := b.made(); !store.OutcomeUnknown(err) || made != "Swap Load" {
			t.Errorf("after %q: %v", made, err)
		}
		b.fails("Load", fake.Fault{Refused: true})
		if _, err := b.Get(b.Context(), []string{"new"}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("a read that failed: %v", err)
		}
	})
}

func TestWithdrawalStopsALateSwap(t *testing.T) {
	for _, seen := range []bool{false, true} {
		pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
			if seen {
				ask := a.ask("k")
				a.releases(ask, a.gets(ask, store.Granted), store.Holds)
			}
			ask := a.ask("k")
			a.fails("Swap", fake.Fault{Lost: true, Late: time.Second})
			if _, err := a.Acquire(a.Context(), []store.Ask{ask}); !store.OutcomeUnknown(err) {
				t.Fatalf("the acquire: %v", err)
			}
			outcomes, err := a.Withdraw(a.Context(), []store.Attempt{ask.Attempt})
			if a.ok(err); outcomes[0] != store.Gone {
				t.Fatalf("withdrawn: %v", outcomes)
			}
			time.Sleep(2 * time.Second)
			b.gets(b.ask("k"), store.Granted)
		})
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		defer cancel()
		a.fails("Swap", fake.Fault{Slow: time.Minute})
		began := time.Now()
		if _, err := a.Acquire(ctx, []store.Ask{a.ask("k")}); !store.OutcomeUnknown(err) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A server may refuse new keys for long, for instance because its memory is full. An instance does not remember them.
func TestRefusedKeysAreForgotten(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		before := server.Copy()
		a.fails("Swap", fake.Fault{Refused: true})
		if _, err := a.Acquire(a.Context(), []store.Ask{a.ask("k1"), a.ask("k2")}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Fatalf("the acquire: %v", err)
		}
		a.made()
		if _, err := a.Signals(a.Context(), []store.LeaseID{a.lease}); err != nil || a.made() != "" {
			t.Errorf("it reads keys that were refused: %v", err)
		}
		server.FailOver(before, quietTime)
		b.tries(b.ask("k3"), store.Quiet)
		b.made()
		if _, err := b.Signals(b.Context(), []store.LeaseID{b.lease}); err != nil || b.made() != "" {
			t.Errorf("it reads a key that was refused in the quiet time: %v", err)
		}
	})
}

// A refused swap does not make an instance forget what an earlier swap of the same key may still get.
func TestARefusedKeyIsKeptAfterADoubt(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.fails("Swap", fake.Fault{Lost: true, Late: time.Second})
		if _, err := a.Acquire(a.Context(), []store.Ask{a.ask("k")}); !store.OutcomeUnknown(err) {
			t.Fatalf("the acquire: %v", err)
		}
		a.fails("Swap", fake.Fault{Refused: true})
		if _, err := a.Acquire(a.Context(), []store.Ask{a.ask("k")}); err == nil || store.OutcomeUnknown(err) {
			t.Fatalf("the second acquire: %v", err)
		}
		time.Sleep(2 * time.Second)
		b.gets(b.ask("k"), store.Queued)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
		if news := b.told(); len(news) != 1 || news[0].Answer.Outcome != store.Granted {
			t.Errorf("told %+v", news)
		}
	})
}
