package cas_test

import (
	"context"
	"slices"
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

// instance is a started store, the requests that it made, and its news.
type instance struct {
	*testing.T
	*cas.Store
	lease store.LeaseID

	mu       sync.Mutex
	requests []string
	news     []store.News
	// fault is what happens to the next request with this name.
	next  string
	fault fake.Fault
	// losing: letters to this instance are lost.
	losing bool
}

func start(t *testing.T, server *fake.Server, id store.Identity, cfg cas.Config) *instance {
	t.Helper()
	in := &instance{T: t}
	cfg.Identity = id
	cfg.Backend = server.Open(id.Instance, fake.Faults{Request: in.request, Letter: in.letter})
	in.Store = cas.New(cfg)
	in.ok(in.Start(t.Context(), func(n store.News) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.news = append(in.news, n)
	}))
	t.Cleanup(in.Stop)
	in.lease = in.open(time.Hour)
	in.made()
	return in
}

// pair starts two instances in virtual time.
func pair(t *testing.T, cfg cas.Config, test func(server *fake.Server, a, b *instance)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		a := start(t, server, store.Identity{Namespace: "n", Instance: "a", Pod: "pa"}, cfg)
		b := start(t, server, store.Identity{Namespace: "n", Instance: "b", Pod: "pb"}, cfg)
		test(server, a, b)
	})
}

func (in *instance) ok(err error) {
	in.Helper()
	if err != nil {
		in.Fatal(err)
	}
}

func (in *instance) request(op string) fake.Fault {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.requests = append(in.requests, op)
	if op != in.next {
		return fake.Fault{}
	}
	in.next = ""
	return in.fault
}

func (in *instance) letter() fake.LetterFault {
	in.mu.Lock()
	defer in.mu.Unlock()
	return fake.LetterFault{Lost: in.losing}
}

func (in *instance) fails(op string, fault fake.Fault) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.next, in.fault = op, fault
}

// made returns the requests since the last call, without those of the background.
func (in *instance) made() string {
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	made := slices.DeleteFunc(in.requests, func(op string) bool { return op == "Revoke" })
	in.requests = nil
	return strings.Join(made, " ")
}

// told returns the news since the last call.
func (in *instance) told() []store.News {
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	news := in.news
	in.news = nil
	return news
}

func (in *instance) open(ttl time.Duration) store.LeaseID {
	in.Helper()
	id := uuid.New()
	in.ok(in.OpenLeases(in.Context(), []store.NewLease{{ID: id, TTL: ttl}}))
	return id
}

func (in *instance) ask(name string) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: name, ID: uuid.New()}, Lease: in.lease, Wait: true}
}

// gets makes an attempt, whose outcome must be this one.
func (in *instance) gets(ask store.Ask, want store.Outcome) store.Answer {
	in.Helper()
	answers, err := in.Acquire(in.Context(), []store.Ask{ask})
	in.ok(err)
	if answers[0].Outcome != want {
		in.Fatalf("%s: outcome %d, want %d", ask.Key, answers[0].Outcome, want)
	}
	return answers[0]
}

func (in *instance) release(ask store.Ask, a store.Answer) (store.ClaimStatus, error) {
	c := store.Claim{Key: ask.Key, Token: a.Token}
	if ask.TTL == 0 {
		c.Lease = ask.Lease
	}
	verdicts, err := in.Release(in.Context(), []store.Claim{c})
	return verdicts[0].Status, err
}

func (in *instance) releases(ask store.Ask, a store.Answer, want store.ClaimStatus) {
	in.Helper()
	status, err := in.release(ask, a)
	in.ok(err)
	if status != want {
		in.Fatalf("%s: claim status %d, want %d", ask.Key, status, want)
	}
}

func (in *instance) wants(what, want string) {
	in.Helper()
	if made := in.made(); made != want {
		in.Errorf("%s: requests %q, want %q", what, made, want)
	}
}

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
		denied.Wait = false
		b.gets(denied, store.Held)
		b.wants("a refusal of a key that this instance has not seen", "Swap Load")
		b.gets(denied, store.Held)
		b.wants("a refusal of a key that it has seen", "Load")
		b.gets(b.ask("k"), store.Queued)
		b.wants("a wait", "Load Swap")
		a.releases(ask, grant, store.Holds)
		a.wants("a release that hands the key on, by an instance that did not see the waiter come", "Swap Swap")

		timed := a.ask("t")
		timed.Wait, timed.TTL = false, time.Minute
		a.releases(timed, a.gets(timed, store.Granted), store.Holds)
		a.wants("a bind:ttl lock", "OpenLeases Swap Load Swap")
		answers, err := a.Acquire(a.Context(), []store.Ask{a.ask("1"), a.ask("2"), a.ask("3"), a.ask("k")})
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
		denied.Wait = false
		if held := a.gets(denied, store.Held); held.Lock.Token != grant.Token {
			t.Errorf("held under %d, want %d", held.Lock.Token, grant.Token)
		}
		b.releases(second, grant, store.Holds)
		if again := a.gets(a.ask("k"), store.Granted); again.Token <= grant.Token {
			t.Errorf("token %d after %d", again.Token, grant.Token)
		}
	})
}

func TestALostAnswerIsToldAgain(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
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
		if news := a.told(); len(news) != 1 || news[0].Event != nil || news[0].ID != store.EveryWait.ID {
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
		if news := a.told(); len(news) != 1 || news[0].Signals || news[0].ID != store.EveryWait.ID {
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
		_, err := b.Acquire(b.Context(), []store.Ask{b.ask("free"), b.ask("held")})
		if b.made(); err != nil { // the wait needs no read
			t.Fatal(err)
		}
		denied := b.ask("third")
		a.gets(a.ask("third"), store.Granted)
		denied.Wait = false
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
		answers, err := b.Acquire(b.Context(), []store.Ask{large(), b.ask("other")})
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

func TestManyHolders(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		var grant store.Answer
		var last store.Ask
		for range 2 * fake.MaxLiving {
			last = a.ask("k")
			last.Lease, last.Shared = a.open(time.Hour), true
			grant = a.gets(last, store.Granted)
		}
		waiter := b.ask("k")
		b.gets(waiter, store.Queued)
		a.ok(a.Revoke(a.Context(), []store.LeaseID{last.Lease}))
		a.releases(last, grant, store.Expired)
		locks, err := b.Get(b.Context(), []string{"k"})
		if b.ok(err); locks[0].HoldersCount != 2*fake.MaxLiving-1 || locks[0].QueueLength != 1 {
			t.Errorf("%d holders, %d wait", locks[0].HoldersCount, locks[0].QueueLength)
		}
		a.ok(a.ReapInstance(a.Context(), "a"))
		b.gets(waiter, store.Granted)
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

func TestLeasesWithoutUseAreRevoked(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		before := server.Leases()
		ask := a.ask("k")
		ask.Wait, ask.TTL, ask.MinHold = false, time.Hour, time.Minute
		grant := a.gets(ask, store.Granted)
		if got := server.Leases(); got != before+2 {
			t.Fatalf("%d leases, want 2 for the lock and its hold", got-before)
		}
		denied := ask
		denied.ID = uuid.New()
		b.gets(denied, store.Held) // its first try believes that the key is free
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
		denied.Wait = false
		if held := a.gets(denied, store.Held); held.Lock.Token != grant.Token {
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
