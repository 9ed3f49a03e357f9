package cas_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// TestALateReadForgetsNothing: an answer that was read before a grant, but comes later, says nothing about the grant.
func TestALateReadForgetsNothing(t *testing.T) {
	for _, what := range []string{"signal", "revoke"} {
		pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
			holder, waiter := a.ask("k"), b.ask("k")
			first := a.ask("k")
			a.releases(first, a.gets(first, store.Granted), store.Holds)
			a.fails("Load", fake.Fault{SlowAnswer: time.Second})
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, _ = a.Get(a.Context(), []string{"k"})
			}()
			synctest.Wait()
			a.gets(holder, store.Granted)
			<-read
			switch what {
			case "signal":
				if _, err := b.Signal(b.Context(), []store.Signal{{Key: "k", Kind: store.Break}}); err != nil {
					t.Fatal(err)
				}
				a.told()
				signals, err := a.Signals(a.Context(), []store.LeaseID{a.lease})
				if a.ok(err); len(signals) != 1 {
					t.Errorf("signals %+v", signals)
				}
				renewal, err := a.Renew(a.Context(), []store.LeaseID{a.lease})
				if a.ok(err); !renewal.Signals {
					t.Errorf("renewal %+v", renewal)
				}
			case "revoke":
				b.gets(waiter, store.Queued)
				a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
				if news := b.told(); len(news) != 1 || news[0].Answer.Outcome != store.Granted {
					t.Errorf("told %+v", news)
				}
			}
		})
	}
}

// TestALateGrantIsShorter: the lease of a bind:ttl lock is opened before the swap that hands the lock over. So the time until the swap
// is answered belongs to the lock.
// Proves: A9
func TestALateGrantIsShorter(t *testing.T) {
	const ttl, late = time.Second, 300 * time.Millisecond
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		holder, waiter := a.ask("k"), a.ask("k")
		waiter.TTL = ttl
		grant := a.gets(holder, store.Granted)
		a.gets(waiter, store.Queued)
		a.fails("Swap", fake.Fault{SlowAnswer: late})
		a.releases(holder, grant, store.Holds)
		if news := a.told(); len(news) != 1 || news[0].Answer.Outcome != store.Granted || news[0].Answer.ExpiresIn > ttl-late {
			t.Errorf("told %+v", news)
		}
	})
}

func TestADoubtLastsUntilItIsDecided(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		holder, waiter := a.ask("k"), a.ask("k")
		grant := a.gets(holder, store.Granted)
		a.gets(waiter, store.Queued)
		a.fails("Swap", fake.Fault{Lost: true, Late: time.Second})
		if _, err := a.release(holder, grant); !store.OutcomeUnknown(err) {
			t.Fatalf("the release: %v", err)
		}
		if _, err := a.Get(a.Context(), []string{"k"}); err != nil { // somebody looks before the swap is carried out
			t.Fatal(err)
		}
		a.told()
		time.Sleep(2 * time.Second)
		a.releases(holder, grant, store.UnknownToken)
		if news := a.told(); len(news) == 0 {
			t.Error("nobody is told of the hand-off")
		}
	})
}

func TestRevokeFindsAGrantOnItsWay(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		holder, waiter := a.ask("k"), b.ask("k")
		a.fails("Revoke", fake.Fault{Slow: time.Second})
		done := make(chan error)
		go func() { done <- a.Revoke(a.Context(), []store.LeaseID{a.lease}) }()
		synctest.Wait()
		a.gets(holder, store.Granted)
		b.gets(waiter, store.Queued)
		a.ok(<-done)
		if news := b.told(); len(news) != 1 || news[0].Answer.Outcome != store.Granted {
			t.Errorf("told %+v", news)
		}
	})
}

func TestAFailedVisitAfterARevocationIsUnknown(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.gets(a.ask("k"), store.Granted)
		b.gets(b.ask("k"), store.Queued)
		a.fails("Swap", fake.Fault{Refused: true})
		if err := a.Revoke(a.Context(), []store.LeaseID{a.lease}); !store.OutcomeUnknown(err) {
			t.Errorf("leases were revoked, but: %v", err)
		}
		a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
		if news := b.told(); len(news) != 1 || news[0].Answer.Outcome != store.Granted {
			t.Errorf("told %+v", news)
		}
	})
}
