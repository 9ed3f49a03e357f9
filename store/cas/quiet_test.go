package cas_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

const quietTime = 10 * time.Second

// checks asks what became of a wait.
func (in *instance) checks(ask store.Ask, want store.Outcome) store.Answer {
	in.Helper()
	answers, err := in.Check(in.Context(), []store.Attempt{ask.Attempt})
	in.ok(err)
	if answers[0].Outcome != want {
		in.Fatalf("%s: outcome %d, want %d", ask.Key, answers[0].Outcome, want)
	}
	return answers[0]
}

func TestAForgottenGrantIsNotGivenToOthers(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		before := server.Copy()
		forgotten := a.gets(a.ask("k"), store.Granted)
		server.FailOver(before, quietTime)
		if refused := b.tries(b.ask("k"), store.Quiet); refused.QuietFor <= 0 || refused.QuietFor > quietTime {
			t.Errorf("nothing is granted for %s", refused.QuietFor)
		}
		first, second, timed := b.ask("k"), b.ask("k"), b.ask("t")
		timed.TTL = time.Minute
		if queued := b.gets(first, store.Queued); queued.Lock.Holder.ExpiresIn > quietTime {
			t.Errorf("the waiter is to check after %s", queued.Lock.Holder.ExpiresIn)
		}
		b.gets(second, store.Queued)
		b.tries(timed, store.Quiet)
		b.tries(b.ask("k"), store.Quiet)
		time.Sleep(quietTime - time.Millisecond)
		b.checks(first, store.Queued)
		if left := b.Quiet(); left <= 0 {
			t.Errorf("the rest of the quiet time is %s", left)
		}
		time.Sleep(2 * time.Millisecond)
		b.checks(second, store.Queued)
		if got := b.checks(first, store.Granted); got.Token <= forgotten.Token {
			t.Errorf("token %d after the forgotten %d", got.Token, forgotten.Token)
		}
		b.tries(timed, store.Granted)
	})
}

// TestAQuietTimeOfOneServer: of several servers, one has a quiet time. The keys of the others are granted meanwhile, also by an
// instance that knows of it.
// Proves: A9
func TestAQuietTimeOfOneServer(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		server.Quiet = func(key string) bool { return strings.HasSuffix(key, "/quiet") }
		server.FailOver(server.Copy(), quietTime)
		waiter := a.ask("quiet")
		a.gets(waiter, store.Queued)
		a.tries(a.ask("quiet"), store.Quiet)
		holder, next := a.ask("k"), a.ask("k")
		grant := a.gets(holder, store.Granted)
		a.gets(next, store.Queued)
		a.releases(holder, grant, store.Holds)
		a.checks(next, store.Granted)
		a.tries(a.ask("other"), store.Granted)
		if a.Quiet() <= 0 {
			t.Error("it does not know of the quiet time")
		}
		time.Sleep(quietTime + time.Millisecond)
		a.checks(waiter, store.Granted)
	})
}

// TestAKeyThatIsKeptInTheQuietTimeHasNoHolder: a key that is kept for its waiters is held by nobody, whoever looks, and a try is told the reason.
// Proves: rule quiet time
func TestAKeyThatIsKeptInTheQuietTimeHasNoHolder(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		released := a.ask("released")
		grant := a.gets(released, store.Granted)
		known := a.gets(a.ask("known"), store.Granted)
		server.FailOver(server.Copy(), quietTime)
		waits := map[string]store.Ask{"new": b.ask("new"), "released": b.ask("released")}
		b.gets(waits["released"], store.Queued)
		a.releases(released, grant, store.Holds)
		queued := b.gets(waits["new"], store.Queued)
		if l := queued.Lock; l.Held || l.Holder.Instance != "" || l.Holder.ExpiresIn <= 0 || l.Holder.ExpiresIn > quietTime {
			t.Errorf("the waiter is told %+v", l)
		}

		listed, err := b.List(b.Context(), store.Query{Limit: 9})
		if b.ok(err); len(listed) != 1 || listed[0].Token != known.Token {
			t.Errorf("listed: %+v", listed)
		}
		counted, err := b.Stats(b.Context())
		b.ok(err)
		var held, expired, waiting, ofPods int64
		for _, s := range counted.Types {
			held, expired, waiting = held+s.Held, expired+s.Expired, waiting+s.Waiting
		}
		for _, s := range counted.Pods {
			ofPods += s.Held + s.Expired
		}
		if held != 1 || expired != 0 || waiting != 2 || ofPods != 1 {
			t.Errorf("counted: %d held, %d expired, %d waiting, %d of pods", held, expired, waiting, ofPods)
		}
		for name, wait := range waits {
			locks, err := b.Get(b.Context(), []string{name})
			if b.ok(err); locks[0].Held || locks[0].QueueLength != 1 {
				t.Errorf("%s: read as %+v", name, locks[0])
			}
			for _, kind := range []store.SignalKind{store.Stop, store.Break} {
				statuses, err := b.Signal(b.Context(), []store.Signal{{Key: name, Kind: kind}})
				if b.ok(err); statuses[0] != store.UnknownToken {
					t.Errorf("%s: a signal is answered %d", name, statuses[0])
				}
			}
			for _, shared := range []bool{false, true} {
				try := a.ask(name)
				try.Shared = shared
				if refused := a.tries(try, store.Quiet); refused.QuietFor <= 0 || refused.QuietFor > quietTime {
					t.Errorf("%s: nothing is granted for %s", name, refused.QuietFor)
				}
			}
			if waiting, err := b.Waiting(b.Context(), store.WaitQuery{Key: name, Limit: 9}); err != nil || len(waiting) != 1 {
				t.Errorf("%s: waiting %+v, %v", name, waiting, err)
			}
			b.checks(wait, store.Queued)
		}
		time.Sleep(quietTime + time.Millisecond)
		for _, wait := range waits {
			b.checks(wait, store.Granted)
		}
	})
}

// TestAQueueThatIsFullInTheQuietTime: only an ask that does not wait is told of the quiet time.
// Proves: rule quiet time
func TestAQueueThatIsFullInTheQuietTime(t *testing.T) {
	pair(t, cas.Config{LongestQueue: 1}, func(server *fake.Server, a, b *instance) {
		server.FailOver(server.Copy(), quietTime)
		first := a.ask("k")
		a.gets(first, store.Queued)
		b.gets(b.ask("k"), store.QueueFull)
		b.tries(b.ask("k"), store.Quiet)
		time.Sleep(quietTime + time.Millisecond)
		a.checks(first, store.Granted)
	})
}

func TestLocksThatAreKnownGoOnInTheQuietTime(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		holder, waiter, later := a.ask("k"), b.ask("k"), a.ask("k")
		grant := a.gets(holder, store.Granted)
		b.gets(waiter, store.Queued)
		shared := a.ask("shared")
		shared.Shared = true
		share := a.gets(shared, store.Granted)
		server.FailOver(server.Copy(), quietTime)
		if again := a.gets(holder, store.Granted); again.Token != grant.Token {
			t.Errorf("repeated: token %d, want %d", again.Token, grant.Token)
		}
		more := b.ask("shared")
		more.Shared = true
		b.gets(more, store.Queued)
		b.told()
		a.releases(holder, grant, store.Holds)
		if news := b.told(); len(news) != 1 || news[0].ID != waiter.ID || news[0].Answer.Outcome != 0 {
			t.Errorf("told %+v", news)
		}
		a.releases(holder, grant, store.Released)
		a.gets(later, store.Queued)
		b.checks(waiter, store.Queued)
		locks, err := a.Get(a.Context(), []string{"k"})
		if a.ok(err); locks[0].Held || locks[0].Token != grant.Token || locks[0].QueueLength != 2 {
			t.Errorf("a released key with waiters is shown as %+v", locks[0])
		}
		time.Sleep(quietTime + time.Millisecond)
		if got := b.checks(more, store.Granted); got.Token <= share.Token {
			t.Errorf("token %d of a share after %d", got.Token, share.Token)
		}
		a.checks(later, store.Queued) // hands the key to the first
		b.checks(waiter, store.Granted)
	})
}

func TestAHolderThatDiesInTheQuietTime(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		lease, waiter := a.open(time.Second), b.ask("k")
		holder := a.ask("k")
		holder.Lease = lease
		grant := a.gets(holder, store.Granted)
		b.gets(waiter, store.Queued)
		server.FailOver(server.Copy(), quietTime)
		time.Sleep(2 * time.Second)
		b.checks(waiter, store.Queued)
		a.releases(holder, grant, store.Expired)
		time.Sleep(quietTime)
		b.checks(waiter, store.Granted)
	})
}

// TestAForgottenReleaseEnds: a lease of another history is named for a reconciliation. Its known locks and waits move,
// and what is left ends with it.
func TestAForgottenReleaseEnds(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		released, kept, wait, missing, waiter := a.ask("released"), a.ask("kept"), a.ask("waits"), a.ask("missing"), b.ask("released")
		first, second := a.gets(released, store.Granted), a.gets(kept, store.Granted)
		b.gets(b.ask("waits"), store.Granted)
		a.gets(wait, store.Queued)
		before := server.Copy()
		a.releases(released, first, store.Holds)
		lost := a.gets(missing, store.Granted)
		server.FailOver(before, quietTime)

		renewal, err := a.Renew(a.Context(), []store.LeaseID{a.lease})
		if a.ok(err); !slices.Equal(renewal.Reconcile, renewal.Renewed) || len(renewal.Renewed) != 1 {
			t.Fatalf("renewed %+v", renewal)
		}
		held, err := a.HeldUnder(a.Context(), []string{"released", "kept", "missing", "waits"})
		a.ok(err)
		want := []store.HeldGrant{{Key: "released", Token: first.Token, Lease: a.lease}, {Key: "kept", Token: second.Token, Lease: a.lease}}
		if held.History != renewal.History || !slices.Equal(held.Grants, want) {
			t.Errorf("held under its leases: %+v, want %+v in %s", held, want, renewal.History)
		}
		to := a.open(time.Hour)
		statuses, err := a.Move(a.Context(), a.lease, to, []store.Move{
			{Attempt: store.Attempt{Key: "kept"}, Token: second.Token}, {Attempt: wait.Attempt}, {Attempt: store.Attempt{Key: "missing"}, Token: lost.Token},
		})
		if a.ok(err); !slices.Equal(statuses, []store.ClaimStatus{store.Holds, store.Holds, store.UnknownToken}) {
			t.Errorf("moved: %v", statuses)
		}
		b.gets(waiter, store.Queued)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{a.lease}))
		renewal, err = a.Renew(a.Context(), []store.LeaseID{to})
		if a.ok(err); len(renewal.Reconcile) != 0 || len(renewal.Renewed) != 1 {
			t.Errorf("the new lease: %+v", renewal)
		}
		a.gets(kept, store.Granted)
		a.checks(wait, store.Queued)
		b.checks(waiter, store.Queued)
		time.Sleep(quietTime + time.Millisecond)
		b.checks(waiter, store.Granted)
	})
}

// TestAMoveNeedsBothLeases: a lock whose lease has ended is not moved to another.
func TestAMoveNeedsBothLeases(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		holder, to := a.ask("k"), a.open(time.Hour)
		holder.Lease = a.open(time.Second)
		grant := a.gets(holder, store.Granted)
		waiter := b.ask("k")
		b.gets(waiter, store.Queued)
		a.fails("Swap", fake.Fault{Slow: 2 * time.Second})
		statuses, err := a.Move(a.Context(), holder.Lease, to, []store.Move{{Attempt: store.Attempt{Key: "k"}, Token: grant.Token}})
		if a.ok(err); statuses[0] == store.Holds {
			t.Errorf("moved: %v", statuses)
		}
		b.checks(waiter, store.Granted)
	})
}
