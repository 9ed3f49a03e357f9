package postgres_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// A plain release is answered before its flush, which has no time limit if the standby is away. A
// release with an outcome and a hand-off wait for the flush.
// Proves: promise 4
func TestOnlyPlainReleasesSkipTheFlush(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	pooled := backend{tb: t, url: url, listen: postgres.ListenNever}.open(store.Identity{Namespace: "n", Instance: "pooled", Pod: "p"})
	start(t, pooled, nil)
	lease, theirs := openLease(t, s, time.Hour), openLease(t, pooled, time.Hour)
	claim := func(key string) store.Claim {
		return store.Claim{Key: key, Token: want(t, acquire(t, s, askFor(key, lease)), store.Granted).Token, Lease: lease}
	}
	waitedFor, behind := claim("waited for"), claim("behind")
	for _, key := range []string{"waited for", "behind"} {
		want(t, enqueue(t, s, askFor(key, lease)), store.Queued)
	}
	released := claim("released") // and flushed, so the store does not repeat this release in the background
	released.Outcome = store.Failure
	if v := release(t, s, released); v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	released.Outcome = store.NoOutcome
	told, result := claim("told"), claim("result")
	told.Outcome, result.Outcome, result.Result = store.Failure, store.Success, []byte("1")
	plain := [][]store.Claim{{claim("one")}, {claim("two"), claim("three")}}
	waiting := map[string][]store.Claim{
		"an outcome":                   {told},
		"a result in a batch":          {claim("four"), result},
		"a hand-off":                   {waitedFor},
		"a hand-off in a batch":        {behind, claim("five")},
		"a release through a pooler":   {{Key: "pooled", Token: want(t, acquire(t, pooled, askFor("pooled", theirs)), store.Granted).Token, Lease: theirs}},
		"a release that finds nothing": {released},
	}

	l := leaveAlone(t, url)
	l.awaitLonely()
	for _, claims := range plain {
		verdicts, err := s.Release(t.Context(), claims)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range verdicts {
			if v.Status != store.Holds {
				t.Errorf("status %d", v.Status)
			}
		}
	}
	// The session has no setting left that would affect later statements.
	if commit := postgres.Setting(t.Context(), t, s, "synchronous_commit"); commit != "on" {
		t.Errorf("synchronous_commit is %s in a session after a release", commit)
	}
	for name, claims := range waiting {
		t.Run(name, func(t *testing.T) {
			from := s
			if claims[0].Lease == theirs {
				from = pooled
			}
			answered := make(chan []store.Verdict, 1)
			go func() {
				verdicts, _ := from.Release(t.Context(), claims)
				answered <- verdicts
			}()
			poll(t, "a wait for the standby", func() bool {
				if len(answered) > 0 {
					t.Fatalf("answered before the standby has it: %+v", <-answered)
				}
				return pgtest.Query[int64](t, url, "SELECT count(*) FROM pg_stat_activity WHERE "+inSyncRep) > 0
			})
			// That may have been the wait of another statement: a new connection lets the store repeat the plain releases.
			poll(t, "the answer", func() bool {
				l.cancel()
				return len(answered) > 0
			})
			if verdicts := <-answered; verdicts != nil {
				t.Errorf("answered without the standby: %+v", verdicts)
			}
		})
	}
}

// A release is remembered until a later commit is flushed. The number of remembered releases is
// bounded.
// Proves: promise 4
func TestUnflushedReleasesAreFew(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	if _, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil { // makes the connection
		t.Fatal(err)
	}
	releaseAll := func(keys ...string) {
		t.Helper()
		asks, claims := make([]store.Ask, len(keys)), make([]store.Claim, len(keys))
		for i, key := range keys {
			asks[i] = askFor(key, lease)
		}
		answers, err := s.Acquire(t.Context(), asks)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			claims[i] = store.Claim{Key: keys[i], Token: want(t, a, store.Granted).Token, Lease: lease}
		}
		for len(claims) > 0 {
			n := min(len(claims), 1000)
			if _, err := s.Release(t.Context(), claims[:n]); err != nil {
				t.Fatal(err)
			}
			if n := postgres.Unflushed(s).Count(); n > postgres.MaxUnflushed {
				t.Fatalf("%d releases are remembered", n)
			}
			claims = claims[n:]
		}
	}
	remembered := func(after string, want int) {
		t.Helper()
		if n := postgres.Unflushed(s).Count(); n != want {
			t.Errorf("after %s, %d releases are remembered, want %d", after, n, want)
		}
	}
	releaseAll("a")
	remembered("a release", 1)
	releaseAll("b", "c")
	remembered("a grant and two releases", 2)
	want(t, acquire(t, s, askFor("a", lease)), store.Granted)
	remembered("a grant", 0)
	releaseAll("b")
	if _, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil {
		t.Fatal(err)
	}
	remembered("a renewal", 0)
	many := make([]string, postgres.MaxUnflushed+1000)
	for i := range many {
		many[i] = fmt.Sprint("key:", i)
	}
	releaseAll(many...)
}

// A release is proved durable only by the commit of a later statement, without a new connection
// since the release was sent. The server may have crashed before a new connection.
// Proves: promise 4
func TestAProofThatAReleaseIsDurable(t *testing.T) {
	t.Parallel()
	const since, doubtful = 1, 2
	for name, c := range map[string]struct {
		do   func(u *postgres.UnflushedReleases, add func(sent time.Time))
		want int
	}{
		"a later statement": {func(u *postgres.UnflushedReleases, add func(time.Time)) {
			add(time.Now())
			u.Flushed(after())
		}, 0},
		"a statement that was sent before the answer": {func(u *postgres.UnflushedReleases, add func(time.Time)) {
			sent := time.Now()
			add(sent)
			u.Flushed(sent)
		}, since},
		"a connection since, and a later statement": {func(u *postgres.UnflushedReleases, add func(time.Time)) {
			add(time.Now())
			u.MadeConnection()
			u.Flushed(after())
		}, doubtful},
		"a connection between release and answer": {func(u *postgres.UnflushedReleases, add func(time.Time)) {
			sent := time.Now()
			u.MadeConnection()
			add(sent)
			u.Flushed(after())
		}, doubtful},
		"a connection before": {func(u *postgres.UnflushedReleases, add func(time.Time)) {
			u.MadeConnection()
			add(after())
			u.Flushed(after())
		}, 0},
	} {
		u := postgres.NewUnflushed()
		c.do(u, func(sent time.Time) { u.Add([]store.Claim{{Key: "k", Token: 1}}, sent) })
		if got := u.Count()*since + len(u.Doubtful())*doubtful; got != c.want {
			t.Errorf("%s: state %d, want %d", name, got, c.want)
		}
	}
}

// after returns a time later than all before, even if the clock is coarse.
func after() time.Time {
	for began := time.Now(); ; {
		if now := time.Now(); now.After(began) {
			return now
		}
	}
}

// stopWriter stops the process that flushes in the background. crash kills the server with its
// unflushed data, and returns when the server has recovered.
func stopWriter(t *testing.T, url string) (crash func()) {
	t.Helper()
	writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
	if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		_ = syscall.Kill(writer, syscall.SIGKILL) // ends all processes of the server, which then recovers
		poll(t, "the server to recover", func() bool {
			back, _ := ask[bool](t, url, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walwriter' AND pid <> $1)", writer)
			return back
		})
	}
}

// ask is a query to a server that may be down.
func ask[T any](t *testing.T, url, sql string, args ...any) (value T, err error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.Admin(url))
	if err != nil {
		return value, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	err = conn.QueryRow(t.Context(), sql, args...).Scan(&value)
	return value, err
}

// serverThatForgets starts a server on which only statements flush.
func serverThatForgets(t *testing.T) (url string) {
	t.Helper()
	return pgtest.Start(t, pgtest.InMemory(), pgroles.Template(), pgtest.WithSetting("wal_writer_delay", "10s"),
		pgtest.WithSetting("autovacuum", "off"), pgtest.WithSetting("bgwriter_lru_maxpages", "0")).NewDatabase(t)
}

// A crash of the server loses releases. The sidecar repeats them after it reconnects, so their keys
// do not stay held without a holder. A grant that came first stays, and so does a delivered
// outcome.
// Proves: promise 4
func TestACrashForgetsReleases(t *testing.T) {
	t.Parallel()
	url := serverThatForgets(t)
	one := startStore(t, url, store.Identity{Namespace: "n", Instance: "one", Pod: "p"})
	two := startStore(t, url, store.Identity{Namespace: "n", Instance: "two", Pod: "p"})
	lease, other := openLease(t, one, time.Hour), openLease(t, two, time.Hour)
	last := make(map[string]int64)
	grown := func(key string, a store.Answer) int64 {
		t.Helper()
		if want(t, a, store.Granted); a.Token <= last[key] {
			t.Fatalf("%s: token %d after %d", key, a.Token, last[key])
		}
		last[key] = a.Token
		return a.Token
	}
	const forgotten = "freed_at > $1 AND key IN ('a', 'b', 'c')"
	var longest time.Duration
	for range 20 {
		claims := make(map[string]store.Claim)
		for _, key := range []string{"told", "a", "b", "c"} {
			claims[key] = store.Claim{Key: key, Token: grown(key, acquire(t, one, askFor(key, lease))), Lease: lease}
		}
		crash := stopWriter(t, url)
		told := claims["told"]
		told.Outcome = store.Success
		for _, batch := range [][]store.Claim{{told}, {claims["a"]}, {claims["b"], claims["c"]}} {
			verdicts, err := one.Release(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range verdicts {
				if v.Status != store.Holds {
					t.Fatalf("status %d", v.Status)
				}
			}
		}
		before := time.Now()
		crash()
		if ended, err := ask[bool](t, url, "SELECT freed_at <= $1 FROM locksidecar.locks WHERE key = 'told'", before); err != nil || !ended {
			t.Fatalf("a release with an outcome was lost (%v)", err)
		}
		back := time.Now() // no connection is made before
		next := askFor("a", other)
		var a store.Answer
		poll(t, "the next holder", func() bool {
			answers, err := two.Acquire(t.Context(), []store.Ask{next})
			if err == nil {
				a = answers[0]
			}
			// The first renewal after the crash connects, unless another statement did.
			_, _ = one.Renew(t.Context(), []store.LeaseID{lease})
			return a.Outcome == store.Granted
		})
		token := grown("a", a)
		poll(t, "the repeats", func() bool {
			return postgres.Unflushed(one).Count() == 0 && len(postgres.Unflushed(one).Doubtful()) == 0
		})
		longest = max(longest, time.Since(back))
		if n, err := ask[int](t, url, "SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL AND key IN ('b', 'c')"); err != nil || n > 0 {
			t.Fatalf("%d keys are held without a holder (%v)", n, err)
		}
		if n, err := ask[int](t, url, "SELECT count(*) FROM locksidecar.locks WHERE "+forgotten, before); err != nil || n != 2 {
			t.Fatalf("%d releases were lost and repeated, want 2 besides that of the key that was taken again (%v)", n, err)
		}
		if v := release(t, two, store.Claim{Key: "a", Token: token, Lease: other}); v.Status != store.Holds {
			t.Fatalf("the next holder has lost its lock: status %d", v.Status)
		}
	}
	t.Logf("all free at most %s after the server's recovery", longest)
	if longest > 2*time.Second {
		t.Errorf("a key was held without a holder until %s after the server's recovery", longest)
	}
}

// If the sidecar died too, the release is not repeated. The lock ends with its lease.
// Proves: promise 4
func TestAForgottenReleaseEndsWithItsLease(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	url := serverThatForgets(t)
	one := startStore(t, url, store.Identity{Namespace: "n", Instance: "one", Pod: "p"})
	two := startStore(t, url, store.Identity{Namespace: "n", Instance: "two", Pod: "p"})
	other := openLease(t, two, time.Hour)
	lease := openLease(t, one, ttl)
	token := want(t, acquire(t, one, askFor("k", lease)), store.Granted).Token
	crash := stopWriter(t, url)
	if v := release(t, one, store.Claim{Key: "k", Token: token, Lease: lease}); v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	one.Stop()
	crash()
	if held, err := ask[bool](t, url, "SELECT lease_id IS NOT NULL FROM locksidecar.locks WHERE key = 'k'"); err != nil || !held {
		t.Fatalf("the crash has not lost the release (%v)", err)
	}
	next := askFor("k", other)
	poll(t, "the next holder", func() bool {
		answers, err := two.Acquire(t.Context(), []store.Ask{next})
		return err == nil && answers[0].Outcome == store.Granted && answers[0].Token > token
	})
}
