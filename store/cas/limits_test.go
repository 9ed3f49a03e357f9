package cas_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func TestTheQueueHasALongestLength(t *testing.T) {
	pair(t, cas.Config{LongestQueue: 2}, func(_ *fake.Server, a, b *instance) {
		if a.Traits().LongestQueue != 2 {
			t.Errorf("traits: %+v", a.Traits())
		}
		holder, waiter := a.ask("k"), b.ask("k")
		grant := a.gets(holder, store.Granted)
		b.gets(waiter, store.Queued)
		b.gets(b.ask("k"), store.Queued)
		full := b.gets(b.ask("k"), store.QueueFull)
		if full.Lock.Token != grant.Token || full.Lock.QueueLength != 2 {
			t.Errorf("full: %+v", full)
		}
		b.gets(waiter, store.Queued) // it waits already
		a.gets(holder, store.Granted)
		a.releases(holder, grant, store.Holds)
		b.gets(b.ask("k"), store.Queued)
	})
}

func TestARecordHasAGreatestSize(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		holder := a.ask("k")
		grant := a.gets(holder, store.Granted)
		large := func() store.Ask {
			ask := b.ask("k")
			ask.Data = make([]byte, 200<<10)
			return ask
		}
		b.gets(large(), store.Queued)
		b.gets(large(), store.Queued)
		answers, err := b.Enqueue(b.Context(), []store.Ask{large(), b.ask("other")})
		b.ok(err)
		if answers[0].Outcome != store.QueueFull || answers[1].Outcome != store.Granted {
			t.Errorf("outcomes %d and %d", answers[0].Outcome, answers[1].Outcome)
		}
		if _, bytes := server.Records(); bytes > 512<<10 {
			t.Errorf("%d bytes", bytes)
		}
		b.gets(b.ask("k"), store.Queued)
		a.releases(holder, grant, store.Holds)
	})
}

// An instance remembers a record after a read, and needs no further one. It does not remember a large record, so that its
// memory has a limit.
func TestLargeRecordsAreNotRemembered(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, _ *instance) {
		for _, c := range []struct {
			key  string
			data int
			want string
		}{
			{"small", 1 << 10, "Swap"},
			{"large", 3 << 10, "Load Swap"},
		} {
			ask := a.ask(c.key)
			ask.Data = make([]byte, c.data)
			grant := a.gets(ask, store.Granted)
			a.made()
			a.releases(ask, grant, store.Holds)
			if got := a.made(); got != c.want {
				t.Errorf("the release of a %s record made %q, want %q", c.key, got, c.want)
			}
		}
	})
}

func TestManyHolders(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		var grant store.Answer
		var last store.Ask
		for range 2 * cas.UsualLimits.Living {
			last = a.ask("k")
			last.Lease, last.Shared = a.open(time.Hour), true
			grant = a.gets(last, store.Granted)
		}
		waiter := b.ask("k")
		b.gets(waiter, store.Queued)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{last.Lease}))
		a.releases(last, grant, store.Expired)
		locks, err := b.Get(b.Context(), []string{"k"})
		if b.ok(err); locks[0].HoldersCount != 2*cas.UsualLimits.Living-1 || locks[0].QueueLength != 1 {
			t.Errorf("%d holders, %d wait", locks[0].HoldersCount, locks[0].QueueLength)
		}
		a.ok(a.ReapInstance(a.Context(), "a"))
		b.gets(waiter, store.Granted)
	})
}

func TestManyInstancesAreTold(t *testing.T) { tellsMany(t, cas.UsualLimits) }

func TestManyInstancesAreToldWithFewLetters(t *testing.T) {
	tellsMany(t, cas.Limits{Living: cas.LeastLiving, Letters: 1, Record: 512 << 10, Mail: cas.LeastMail})
}

func tellsMany(t *testing.T, limits cas.Limits) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		server.Limits = limits
		open := func(name string) *instance {
			return start(t, server, store.Identity{Namespace: "n", Instance: name}, cas.Config{})
		}
		a := open("a")
		holder := a.ask("k")
		grant := a.gets(holder, store.Granted)
		readers := make([]*instance, 3*cas.UsualLimits.Letters)
		for i := range readers {
			readers[i] = open(fmt.Sprint("reader-", i))
			ask := readers[i].ask("k")
			ask.Shared = true
			readers[i].gets(ask, store.Queued)
		}
		a.releases(holder, grant, store.Holds)
		tokens := map[int64]bool{}
		for _, r := range readers {
			news := r.told()
			if len(news) != 1 || news[0].Answer.Outcome != store.Granted {
				t.Fatalf("told %+v", news)
			}
			got := r.gets(store.Ask{Attempt: news[0].Attempt, Lease: r.lease, Shared: true}, store.Granted)
			if tokens[got.Token] = true; got.Token != news[0].Answer.Token {
				t.Fatalf("told token %d, it is %d", news[0].Answer.Token, got.Token)
			}
		}
		if len(tokens) != len(readers) {
			t.Errorf("%d tokens", len(tokens))
		}
	})
}

func TestADamagedRecordNamesItsKey(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		for _, data := range []string{"", "\x01", "\x01\xff\xff", "\x02\xa0", "not a record"} {
			server.Corrupt("n/k", []byte(data))
			_, err := a.Acquire(a.Context(), []store.Ask{a.ask("k")})
			if !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), `"n/k"`) {
				t.Errorf("%q: %v", data, err)
			}
		}
		a.gets(a.ask("other"), store.Granted)
		locks, err := a.List(a.Context(), store.Query{Limit: 9})
		if a.ok(err); len(locks) != 1 || locks[0].Key != "other" {
			t.Errorf("listed %+v", locks)
		}
		found, err := a.Waiting(a.Context(), store.WaitQuery{Key: "k", Limit: 1})
		if a.ok(err); len(found) != 0 {
			t.Errorf("waiting: %+v", found)
		}
	})
}

// Proves: A4
func TestNamespacesDoNotMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		a := start(t, server, store.Identity{Namespace: "a/b", Instance: "1"}, cas.Config{})
		b := start(t, server, store.Identity{Namespace: "a", Instance: "2"}, cas.Config{})
		a.gets(a.ask("c"), store.Granted)
		b.gets(b.ask("b/c"), store.Granted)
		stats, err := a.Stats(a.Context())
		if a.ok(err); len(stats.Types) != 2 || stats.Types[1].Namespace != "a/b" {
			t.Errorf("counted %+v", stats.Types)
		}
	})
}
