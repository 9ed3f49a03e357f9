package postgres_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// behind opens an instance behind a pooler. It listens past the pooler, and its log is returned.
func behind(t *testing.T, pooler, direct, instance string, prepare ...func(*postgres.Space)) (*listener, *logtest.Log) {
	t.Helper()
	text := &logtest.Log{}
	s := only(t, postgres.Config{
		URL: pooler, ListenURL: direct,
		AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
	}, store.Identity{Namespace: "n", Instance: instance, Pod: "p"}, append(prepare, postgres.Patient)...) // impatient, a slow hand-off would send only a hint
	l := &listener{Store: s, news: make(chan store.News, 10_000)}
	start(t, l.Store, func(n store.News) { l.news <- n })
	l.lease = openLease(t, l, time.Hour)
	return l, text
}

// A listener past a pooler receives the grant itself. It uses one connection, whose role only needs
// the right to connect.
// Proves: trap pooler
func TestListenURLReceivesHandOffsPastAPooler(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	through := cluster.Pooler(t, url, 3)
	admin := adminOf(t, url)
	makeRole(t, connect(t, admin), "listener", "LOGIN")
	direct := strings.Replace(admin, "postgres@", "listener@", 1)
	a, _ := behind(t, through, direct, "a")
	b, _ := behind(t, through, direct, "b")
	b.Listen(true)
	for range 3 {
		holder, waiter := askFor("k", a.lease), askFor("k", b.lease)
		token := want(t, acquire(t, a, holder), store.Granted).Token
		want(t, enqueue(t, b, waiter), store.Queued)
		b.awaitHearing(t)
		cluster.ResetStatements(t, admin)
		release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease, Traceparent: handedBy})
		told := b.awaitGrant(t, waiter)
		if told.Token <= token || told.HandedBy != handedBy {
			t.Errorf("news of %+v after token %d", told, token)
		}
		if n := cluster.Statements(t, admin, "/* locksidecar:notify */%"); n != 0 {
			t.Errorf("%d further statements sent news that the release's statement had sent", n)
		}
		release(t, b, store.Claim{Key: "k", Token: told.Token, Lease: b.lease})
	}
	if n := pgtest.Query[int64](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'listener'"); n != 1 || listeners(t, admin) != 1 {
		t.Errorf("%d connections past the pooler, of which %d listen; want one, which listens", n, listeners(t, admin))
	}
}

// If the listen URL leads to another server or database, the log says it once, and locks work
// without the listener. Of several hosts, the listener uses the primary.
// Proves: trap pooler
func TestADirectListenerElsewhere(t *testing.T) {
	t.Parallel()
	url, another := cluster.NewDatabase(t), cluster.NewDatabase(t)
	through := cluster.Pooler(t, url, 3)
	own, other := otherServer(t, url)
	for name, test := range map[string]struct{ direct, says string }{
		"another database":   {another, "LOCKSIDECAR_POSTGRES_LISTEN_URL leads to the database"},
		"another server":     {other, "LOCKSIDECAR_POSTGRES_LISTEN_URL leads to another server"},
		"through the pooler": {through, "do not arrive at LOCKSIDECAR_POSTGRES_LISTEN_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			s, text := behind(t, through, test.direct, "i")
			s.Listen(true)
			poll(t, "the log says why", func() bool { return strings.Contains(text.String(), test.says) })
			want(t, acquire(t, s, askFor(name, s.lease)), store.Granted)
			want(t, enqueue(t, s, askFor(name, s.lease)), store.Queued)
			if s.Ready() != nil || !s.Traits().Polls {
				t.Errorf("ready: %v, polls: %v; want locks without news", s.Ready(), s.Traits().Polls)
			}
			if n := strings.Count(text.String(), "do not arrive, trying again"); n != 1 {
				t.Errorf("%d lines report this, want 1:\n%s", n, text)
			}
		})
	}
	own.Demote(t)
	s, _ := behind(t, through, ofHosts(t, other, url), "i")
	s.Listen(true)
	s.awaitHearing(t)
}

// otherServer starts a server with a database of the same name.
func otherServer(t *testing.T, url string) (server *pgtest.Cluster, other string) {
	t.Helper()
	server = pgtest.Start(t, pgtest.InMemory())
	name := configOf(t, url).Database
	exec(t, connect(t, server.URL("postgres")), "CREATE DATABASE "+name)
	other = server.URL(name)
	return server, other
}

func configOf(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// adminOf returns the URL for the superuser.
func adminOf(t *testing.T, url string) string {
	t.Helper()
	return cluster.URL(configOf(t, url).Database)
}

// ofHosts returns a URL with the hosts of two URLs.
func ofHosts(t *testing.T, first, second string) string {
	t.Helper()
	one, two := configOf(t, first), configOf(t, second)
	return fmt.Sprintf("postgres://postgres@/%s?host=%s,%s&port=%d,%d", one.Database, one.Host, two.Host, one.Port, two.Port)
}

// Trap: a pooler now leads to another server, and the old one is still alive. A listener there gets
// no news, and must notice this.
// Proves: trap pooler
func TestAListenerThatTheStoreHasLeft(t *testing.T) {
	t.Parallel()
	url := adminOf(t, cluster.NewDatabase(t)) // a role that the other server has, too
	_, other := otherServer(t, url)
	proxy := pgproxy.Start(t, url)
	s, text := behind(t, proxy.URL(), url, "i", postgres.AskOften)
	s.Listen(true)
	s.awaitHearing(t)
	proxy.Lead(t, other)
	poll(t, "the store to report that it gets no news", func() bool { return s.Traits().Polls })
	poll(t, "the log says why", func() bool { return strings.Contains(text.String(), "leads to another server") })
	proxy.Lead(t, url)
	s.awaitHearing(t)
}

// A store whose listener cannot connect is ready. One log line reports it.
func TestADirectListenerThatIsRefused(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	attempts := make(chan struct{}, 1)
	s, text := behind(t, cluster.Pooler(t, url, 3), "postgres://u:"+password+"@"+refuse(t, attempts)+"/db?sslmode=disable", "i")
	s.Listen(true)
	for range 4 {
		<-attempts
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	if n := strings.Count(text.String(), "do not arrive, trying again"); n != 1 || s.Ready() != nil || !s.Traits().Polls {
		t.Errorf("%d lines, want 1; ready: %v\n%s", n, s.Ready(), text)
	}
	if strings.Contains(text.String(), password) {
		t.Errorf("the log contains the password:\n%s", text)
	}
}

func TestAListenerWithoutUse(t *testing.T) {
	t.Parallel()
	for _, config := range []postgres.Config{
		{URL: "postgres://h/db", ListenURL: "postgres://h/db", Listen: postgres.ListenNever},
		{URL: "postgres://h/db", ListenURL: "postgres://u:" + password + "@h:port/db"},
	} {
		if _, err := postgres.NewSpace(config); err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("NewSpace(%+v): %v", config, err)
		}
	}
}

// Trap: POSTGRES_LISTEN_URL leads to a wrong server, even a later copy of the same system. The
// store learns nothing from it: its own server does not count as an old primary, and its
// connections stay.
func TestAListenerElsewhereChangesNoConnections(t *testing.T) {
	t.Parallel()
	own, clone := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP()), pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := own.NewDatabase(t)
	if err := clone.Follow(own); err != nil {
		t.Fatal(err)
	}
	clone.Lead(t)
	s, text := behind(t, url, clone.URL(configOf(t, url).Database), "i")
	pids := func() []string {
		_, err := s.Renew(t.Context(), []store.LeaseID{s.lease})
		if err == nil {
			_, err = s.Get(t.Context(), []string{"k"})
		}
		if err != nil {
			t.Fatal(err)
		}
		return pgtest.Query[[]string](t, url, `SELECT array_agg(pid::text) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'locksidecar'`)
	}
	before := pids()
	s.Listen(true)
	poll(t, "the log says why", func() bool { return strings.Contains(text.String(), "leads to another server") })
	after := pids()
	if slices.ContainsFunc(before, func(pid string) bool { return !slices.Contains(after, pid) }) {
		t.Errorf("connections %s, before: %s", after, before)
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}
