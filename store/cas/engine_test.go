package cas_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func TestRoundTrips(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		ask := a.ask("k")
		grant := a.gets(ask, store.Granted)
		a.wants("an acquire of a key that nobody knows", "Swap")
		a.releases(ask, grant, store.Holds)
		a.wants("a release", "Swap")
		grant = a.gets(ask, store.Granted)
		a.wants("an acquire of a key that this instance released", "Swap")

		denied := b.ask("k")
		b.tries(denied, store.Held)
		b.wants("a refusal of a key that this instance has not seen", "Swap Load")
		b.tries(denied, store.Held)
		b.wants("a refusal of a key that it has seen", "Load")
		b.gets(b.ask("k"), store.Queued)
		b.wants("a wait", "Load Swap")
		a.releases(ask, grant, store.Holds)
		a.wants("a release that hands the key on, by an instance that did not see the waiter come", "Swap "+"Swap")

		timed := a.ask("t")
		timed.TTL = time.Minute
		a.releases(timed, a.tries(timed, store.Granted), store.Holds)
		a.wants("a bind:ttl lock", "OpenLeases Swap Load Swap")
		answers, err := a.Enqueue(a.Context(), []store.Ask{a.ask("1"), a.ask("2"), a.ask("3"), a.ask("k")})
		a.ok(err)
		a.wants("several keys, one of them held", "Load Swap")
		if got := answers[3].Outcome; got != store.Queued {
			a.Errorf("outcome %d", got)
		}
	})
}

func TestAStaleCacheIsHarmless(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		first, second := a.ask("k"), b.ask("k")
		a.releases(first, a.gets(first, store.Granted), store.Holds)
		grant := b.gets(second, store.Granted)
		denied := a.ask("k") // a remembers a free key
		if held := a.tries(denied, store.Held); held.Lock.Token != grant.Token {
			t.Errorf("held under %d, want %d", held.Lock.Token, grant.Token)
		}
		b.releases(second, grant, store.Holds)
		if again := a.gets(a.ask("k"), store.Granted); again.Token <= grant.Token {
			t.Errorf("token %d after %d", again.Token, grant.Token)
		}
	})
}

func TestALetterAboutATimedLockIsAHint(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		for _, timed := range []bool{false, true} {
			holder, waiter := a.ask("k"), b.ask("k")
			if timed {
				waiter.TTL = time.Minute
			}
			grant := a.gets(holder, store.Granted)
			b.gets(waiter, store.Queued)
			a.releases(holder, grant, store.Holds)
			news := b.told()
			want := map[bool]store.Outcome{false: store.Granted, true: 0}[timed]
			if len(news) != 1 || news[0].ID != waiter.ID || news[0].Key != "k" || news[0].Answer.Outcome != want {
				t.Fatalf("timed %v: told %+v", timed, news)
			}
			got := b.gets(waiter, store.Granted)
			if !timed && got.Token != news[0].Answer.Token {
				t.Errorf("told token %d, it is %d", news[0].Answer.Token, got.Token)
			}
			b.releases(waiter, got, store.Holds)
		}
	})
}
