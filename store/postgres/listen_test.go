package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// listener is an instance that receives news.
type listener struct {
	*postgres.Store
	news  chan store.News
	lease store.LeaseID
}

func newListener(t *testing.T, url, instance string, listen postgres.Listen) *listener {
	t.Helper()
	l := &listener{
		Store: backend{tb: t, url: url, listen: listen}.open(store.Identity{Namespace: "n", Instance: instance, Pod: "p"}),
		news:  make(chan store.News, 10_000),
	}
	start(t, l.Store, func(n store.News) { l.news <- n })
	l.lease = openLease(t, l, time.Hour)
	return l
}

// await waits for news that matches.
func (l *listener) await(t *testing.T, what string, is func(store.News) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case n := <-l.news:
			if is(n) {
				return
			}
		case <-timeout:
			t.Fatalf("waited %s in vain for: %s", patience, what)
		}
	}
}

// awaitGrant waits for the news of a waiter's grant.
func (l *listener) awaitGrant(t *testing.T, waiter store.Ask) (told store.Answer) {
	t.Helper()
	l.await(t, "the grant of a waiter", func(n store.News) bool {
		told = n.Answer
		return n.ID == waiter.ID && n.Answer.Outcome == store.Granted
	})
	return told
}

func (l *listener) awaitHearing(t *testing.T) {
	t.Helper()
	poll(t, "the store to receive news", func() bool { return !l.Traits().Polls })
}

// isHint reports whether news is a hint to check a waiter. A hint does not contain the full id.
func isHint(n store.News, waiter store.Ask) bool {
	return n.IsHint() && store.HalfOf(n.ID) == store.HalfOf(waiter.ID)
}

func isEveryWait(n store.News) bool { return n.ID == uuid.Nil && !n.Signals && n.Event == nil }

// listeners returns the number of connections that listen.
func listeners(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, url, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE '/* locksidecar:listen */%'`)
}

// Proves: promise 6, trap notifications
func TestHandOffReachesAnotherInstance(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	ask, waiter := askFor("k", a.lease), askFor("k", b.lease)
	token := want(t, acquire(t, a, ask), store.Granted).Token
	b.Listen(true)
	want(t, enqueue(t, b, waiter), store.Queued)
	if n := listeners(t, url); n != 1 {
		t.Errorf("%d connections listen when a call is queued, want 1", n)
	}
	b.awaitHearing(t)
	if a.Traits().Polls == false {
		t.Error("an instance that does not listen reports that it gets news")
	}
	cluster.ResetStatements(t, url)
	release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease, Traceparent: handedBy})
	told := b.awaitGrant(t, waiter)
	if n := cluster.Statements(t, url, "/* locksidecar:notify */%"); n != 0 {
		t.Errorf("%d further statements sent news that the release's statement had sent", n)
	}
	found := want(t, check(t, b, waiter), store.Granted)
	if told.Token <= token || told.Token != found.Token || !told.AcquiredAt.Equal(found.AcquiredAt) || told.HandedBy != handedBy ||
		told.ExpiresIn > time.Hour || told.ExpiresIn < time.Hour-patience || told.GrantedFor < 0 || told.GrantedFor > patience {
		t.Errorf("news of %+v, but the store has %+v", told, found)
	}

	b.Listen(false)
	poll(t, "no connection to listen without a need", func() bool { return listeners(t, url) == 0 })
	b.await(t, "news that it must poll", isEveryWait)
	if !b.Traits().Polls {
		t.Error("the store reports that it gets news")
	}
}

// A store that stops sends the news of its last hand-offs first.
func TestStopSendsTheNewsOfHandOffs(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	waiters := map[store.HalfID]bool{}
	for _, key := range []string{"x", "y", "z"} {
		want(t, acquire(t, a, askFor(key, a.lease)), store.Granted)
		waiter := askFor(key, b.lease)
		want(t, enqueue(t, b, waiter), store.Queued)
		waiters[store.HalfOf(waiter.ID)] = true
	}
	if err := a.Revoke(t.Context(), []store.LeaseID{a.lease}); err != nil {
		t.Fatal(err)
	}
	a.Stop()
	for len(waiters) > 0 {
		b.await(t, "hints for all waiters", func(n store.News) bool {
			known := waiters[store.HalfOf(n.ID)]
			delete(waiters, store.HalfOf(n.ID))
			return known
		})
	}
}

// Trap: notifications are lost while a connection does not listen. A listener that reconnects
// checks everything.
// Proves: promise 6, trap notifications
func TestKilledListenerListensAgain(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	b.await(t, "the first check of everything", isEveryWait)
	token := want(t, acquire(t, a, askFor("k", a.lease)), store.Granted).Token
	waiter := askFor("k", b.lease)
	want(t, enqueue(t, b, waiter), store.Queued)
	for range 3 {
		pgtest.Query[bool](t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '/* locksidecar:listen */%'`)
		b.await(t, "news that it gets no notifications", isEveryWait)
		b.await(t, "news that it listens again and may have missed notifications", isEveryWait)
		b.awaitHearing(t)
	}
	release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease})
	b.awaitGrant(t, waiter)
}

// The check of a silent connection is answered, and does not count as a statement.
func TestCheckOfTheListenerIsNoStatement(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	conn := connect(t, url)
	cluster.ResetStatements(t, url)
	exec(t, conn, postgres.ListenAsk)
	if n := cluster.Statements(t, url, "%listen%"); n != 0 {
		t.Errorf("%d statements", n)
	}
}

// Proves: trap notifications
func TestChannelNamesFit(t *testing.T) {
	t.Parallel()
	name := postgres.ChannelOf(strings.Repeat("n", 300), strings.Repeat("pod-", 100))
	if len(name) > 63 {
		t.Errorf("%d bytes; PostgreSQL cuts at 63", len(name))
	}
	if postgres.ChannelOf("ab", "c") == postgres.ChannelOf("a", "bc") {
		t.Error("two instances share a channel")
	}
}

func TestListenAlways(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := newListener(t, url, "a", postgres.ListenAlways) // waits until the store is ready
	if s.Traits().Polls {
		t.Error("ready, but without news")
	}
	s.Listen(false)
	if n := listeners(t, url); n != 1 {
		t.Errorf("%d connections listen, want 1", n)
	}
}

func TestListenNever(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenNever), newListener(t, url, "b", postgres.ListenNever)
	b.Listen(true)
	token := want(t, acquire(t, a, askFor("k", a.lease)), store.Granted).Token
	waiter := askFor("k", b.lease)
	want(t, enqueue(t, b, waiter), store.Queued)
	if n := listeners(t, url); n != 0 || !b.Traits().Polls {
		t.Errorf("%d connections listen", n)
	}
	release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease})
	want(t, check(t, b, waiter), store.Granted)
	for _, name := range []string{"prepared statements", "session settings"} {
		sql := map[string]string{
			"prepared statements": "SELECT count(*)::text FROM pg_prepared_statements",
			"session settings":    "SELECT count(*)::text FROM pg_settings WHERE source = 'session' AND name IN ('lock_timeout', 'enable_seqscan')",
		}[name]
		// In a session that the store has used, the settings of its transactions are gone.
		if n := postgres.InSession(t.Context(), t, a.Store, sql); n != "0" {
			t.Errorf("%s %s in a session that another client may use next", n, name)
		}
	}
}

// A call is queued only after LISTEN is committed, because earlier notifications would be lost.
// Proves: trap notifications
func TestEnqueueWaitsForTheListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := newListener(t, proxy.URL(), "b", postgres.ListenAuto)
	reached, goOn := make(chan struct{}), make(chan struct{})
	proxy.On("listen", pgproxy.BeforeSend, func() {
		close(reached)
		<-goOn
	})
	s.Listen(true)
	<-reached
	done := make(chan store.Answer, 1)
	go func() { done <- enqueue(t, s, askFor("k", s.lease)) }()
	select {
	case <-done:
		close(goOn)
		t.Fatal("a call is queued before LISTEN has reached the server")
	case <-time.After(200 * time.Millisecond): // less than the longest wait of an Enqueue
	}
	close(goOn)
	want(t, <-done, store.Granted)
}

// A call that is queued for a moment, and whose cancel finds a grant, does not wait for LISTEN.
func TestABriefEnqueueDoesNotWaitForTheListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := newListener(t, proxy.URL(), "b", postgres.ListenAuto)
	reached, goOn := make(chan struct{}), make(chan struct{})
	proxy.On("listen", pgproxy.BeforeSend, func() {
		close(reached)
		<-goOn
	})
	defer close(goOn)
	s.Listen(true)
	<-reached
	ask := askFor("k", s.lease)
	ask.NoNews = true
	done := make(chan store.Answer, 1)
	go func() { done <- enqueue(t, s, ask) }()
	select {
	case ans := <-done:
		want(t, ans, store.Granted)
	case <-time.After(2 * time.Second): // an Enqueue with news waits for longer here
		t.Error("it waits for the listener")
		<-done
	}
}

// A hand-off in the moment in which the listening begins: the waiter is in the queue, and LISTEN is not committed, so nobody hears the
// notification. After LISTEN all is looked at, not before.
// Proves: promise 6, trap notifications
func TestAHandOffWhileTheListeningBegins(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, proxy.URL(), "b", postgres.ListenAuto)
	token := want(t, acquire(t, a, askFor("k", a.lease)), store.Granted).Token
	reached, goOn := make(chan struct{}), make(chan struct{})
	proxy.On("listen", pgproxy.BeforeSend, func() {
		close(reached)
		<-goOn
	})
	b.Listen(true)
	<-reached
	waiter := askFor("k", b.lease)
	want(t, enqueue(t, b, waiter), store.Queued) // after the longest wait of an Enqueue
	release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease})
	for len(b.news) > 0 {
		<-b.news
	}
	close(goOn)
	b.await(t, "news that notifications were missed", func(n store.News) bool {
		if n.ID == waiter.ID {
			t.Error("the notification of the grant has arrived, so the test shows nothing")
		}
		return isEveryWait(n)
	})
	want(t, check(t, b, waiter), store.Granted)
	b.awaitHearing(t)
}

// The same holds if LISTEN was switched off a moment ago and has not ended yet.
func TestEnqueueWaitsForTheNextListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	const idle = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '/* locksidecar:listen */%'"
	b := newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	for range 20 {
		b.awaitHearing(t)
		before := pgtest.Query[[]int32](t, url, "SELECT array_agg(pid) "+idle)
		b.Listen(false)
		b.Listen(true)
		want(t, enqueue(t, b, askFor(uuid.NewString(), b.lease)), store.Granted)
		if n := pgtest.Query[int64](t, url, "SELECT count(*) "+idle+" AND pid <> ALL ($1)", before); n != 1 {
			t.Fatalf("%d new connections listen after the enqueue has returned", n)
		}
		b.await(t, "the first check of everything", isEveryWait)
	}
}

// A waiter checks again at the end of the lock. If the lock is shortened, the first waiter that is
// alive gets a hint, even behind a dead one.
func TestAShortenedLockHintsTheFirstLivingWaiter(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenAuto)
	holder := askFor("k", a.lease)
	holder.TTL = time.Hour
	token := want(t, acquire(t, a, holder), store.Granted).Token
	dead := openLease(t, a, time.Hour)
	want(t, enqueue(t, a, askFor("k", dead)), store.Queued)
	living := askFor("k", a.lease)
	want(t, enqueue(t, a, living), store.Queued)
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead)

	verdicts, err := a.Amend(t.Context(), []store.Change{{Key: "k", Token: token, TTL: time.Minute}})
	if err != nil || verdicts[0].Status != store.Holds {
		t.Fatalf("got %+v, %v", verdicts, err)
	}
	a.await(t, "a hint for the living waiter", func(n store.News) bool {
		return isHint(n, living)
	})
}

// The same holds if the next holder's lease may end before the last holder's.
func TestAHandOffToAShorterLeaseHintsTheNext(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*listener, store.Claim) error{
		"release": func(a *listener, c store.Claim) error {
			_, err := a.Release(context.Background(), []store.Claim{c})
			return err
		},
		"revoke": func(a *listener, c store.Claim) error {
			return a.Revoke(context.Background(), []store.LeaseID{c.Lease})
		},
	} {
		for _, byTTL := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", by ttl: ", byTTL), func(t *testing.T) {
				url := cluster.NewDatabase(t)
				a := newListener(t, url, "a", postgres.ListenAuto)
				long, short := openLease(t, a, time.Hour), openLease(t, a, time.Minute)
				token := want(t, acquire(t, a, askFor("k", long)), store.Granted).Token
				brief := askFor("k", short)
				if byTTL {
					brief = askFor("k", a.lease)
					brief.TTL = time.Minute
				}
				dead, next := openLease(t, a, time.Hour), askFor("k", a.lease)
				want(t, enqueue(t, a, brief), store.Queued)
				want(t, enqueue(t, a, askFor("k", dead)), store.Queued)
				want(t, enqueue(t, a, next), store.Queued)
				exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead)

				if err := end(a, store.Claim{Key: "k", Token: token, Lease: long}); err != nil {
					t.Fatal(err)
				}
				a.await(t, "a hint for the first waiter", func(n store.News) bool {
					return isHint(n, next)
				})
				want(t, check(t, a, brief), store.Granted)
			})
		}
	}
}

// Trap: the listener's own notification is lost with the connection of the statement that sends it. The listener sends another one on the same
// connection. Without it, the listener would pause, and hear nothing meanwhile.
// Proves: trap notifications
func TestALostHelloIsSentAgain(t *testing.T) {
	t.Parallel()
	proxy := pgproxy.Start(t, cluster.NewDatabase(t))
	s := backend{tb: t, url: proxy.URL()}.open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"}, postgres.NeverListenAgain)
	lost := proxy.Cut(pgproxy.Cut{Statement: "notify", Stage: pgproxy.BeforeSend})
	start(t, s, func(store.News) {})
	s.Listen(true)
	poll(t, "the store to receive news", func() bool { return !s.Traits().Polls })
	if n := lost.Fired(); n != 1 {
		t.Errorf("%d notifications were lost, want 1", n)
	}
}

// Trap: after an outage the listener pauses for longer than the outage lasts. It listens again as soon as the store is ready.
// Proves: trap notifications
func TestTheListenerComesBackWithTheStore(t *testing.T) {
	t.Parallel()
	proxy := pgproxy.Start(t, cluster.NewDatabase(t))
	s := backend{tb: t, url: proxy.URL()}.open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"}, postgres.NeverListenAgain)
	start(t, s, func(store.News) {})
	s.Listen(true)
	poll(t, "the store to receive news", func() bool { return !s.Traits().Polls })
	for range 2 {
		proxy.Refuse(true)
		proxy.CutAll()
		poll(t, "it to be not ready, and to receive no news", func() bool {
			_, err := s.Get(t.Context(), []string{"k"})
			return err != nil && s.Ready() != nil && s.Traits().Polls
		})
		proxy.Refuse(false)
		poll(t, "the store to receive news again", func() bool { return !s.Traits().Polls })
	}
}
