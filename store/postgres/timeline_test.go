package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// pair is a primary and its standby, with a database that is on both.
type pair struct {
	old, standby *pgtest.Cluster
	url, after   string // the database on the primary, and on the standby
	both         string // on the current primary
}

// newPair makes a pair. The database's owner is not a superuser, and must not call the refused
// functions.
func newPair(t *testing.T, refused []string) *pair {
	t.Helper()
	p := &pair{old: pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP()), standby: pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())}
	p.url = refusing(t, p.old, refused)
	if err := p.standby.Follow(p.old); err != nil {
		t.Fatal(err)
	}
	p.after = strings.Replace(p.url, p.old.HostAndPort(), p.standby.HostAndPort(), 1)
	p.both = strings.Replace(p.url, p.old.HostAndPort(), p.old.HostAndPort()+","+p.standby.HostAndPort(), 1)
	return p
}

// failOver stops the old primary and promotes its standby, which has all granted keys.
func (p *pair) failOver(t *testing.T, granted string) {
	t.Helper()
	poll(t, "the standby to have the grant", func() bool {
		return pgtest.Query[int64](t, p.after, "SELECT count(*) FROM locksidecar.locks WHERE key = $1", granted) == 1
	})
	p.old.Halt()
	pgtest.Query[bool](t, pgtest.Admin(p.after), "SELECT pg_promote()")
}

// grants polls until a key is granted, and returns its token.
func grants(t *testing.T, s engine, key string, lease store.LeaseID) (token int64) {
	t.Helper()
	ask := askFor(key, lease) // one attempt, because an answer may be lost
	poll(t, "a grant of "+key, func() bool {
		answers, err := s.Acquire(t.Context(), []store.Ask{ask})
		if err == nil {
			token = answers[0].Token
		}
		return err == nil && answers[0].Outcome == store.Granted
	})
	return token
}

// Trap: the old primary is started again after the new one has granted locks. It accepts
// connections and is first in the URL. A sidecar that has seen the new primary does not use the old
// one, which lacks the later grants.
// Proves: A2, trap target_session_attrs
func TestAnOldPrimaryIsRefused(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"timeline", "server"} {
		t.Run(source, func(t *testing.T) {
			p := newPair(t, refused[source])
			s := startStore(t, p.both, restorer)
			lease := openLease(t, s, time.Hour)
			before := grants(t, s, "before", lease)
			p.failOver(t, "before")
			if token := grants(t, s, "meanwhile", lease); token < before+jump {
				t.Errorf("token %d after %d", token, before)
			}
			if err := p.old.Again(); err != nil {
				t.Fatal(err)
			}
			pgtest.Terminate(t, pgtest.Admin(p.after), "%locksidecar%")
			grants(t, s, "afterwards", lease)
			for _, key := range []string{"meanwhile", "afterwards"} {
				if n := pgtest.Query[int64](t, p.after, "SELECT count(*) FROM locksidecar.locks WHERE key = $1", key); n != 1 {
					t.Errorf("the new primary does not have %q", key)
				}
			}
		})
	}
}

// Trap: the new primary is lost, and the old one shall serve again. Its tokens are behind. A
// sidecar that has seen the new primary gets no locks there. It also marks the server for other
// sidecars, which do not know the new one, even if its role's default is to only read. After an operator has called restored(), locks are
// granted again, without a restart.
// Proves: A2, trap failover
func TestFailBack(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"timeline", "server"} {
		t.Run(source, func(t *testing.T) {
			p := newPair(t, refused[source])
			exec(t, connect(t, p.url), "ALTER ROLE "+configOf(t, p.url).User+" SET default_transaction_read_only = on")
			s := startStore(t, p.both, restorer)
			lease := openLease(t, s, time.Hour)
			grants(t, s, "before", lease)
			names := []string{pgtest.Query[string](t, p.url, "SELECT source || ' ' || locksidecar.here(source, '') FROM locksidecar.meta")}
			p.failOver(t, "before")
			last := grants(t, s, "meanwhile", lease)
			names = append(names, pgtest.Query[string](t, p.after, "SELECT source || ' ' || locksidecar.here(source, '') FROM locksidecar.meta"))
			if source == "server" {
				names = names[1:] // the old primary is started again, with another name
			}
			p.standby.Halt()
			if err := p.old.Again(); err != nil {
				t.Fatal(err)
			}

			poll(t, "the error with both names and the advice", func() bool {
				if answers, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), lease)}); err == nil && answers[0].Outcome == store.Granted {
					t.Fatalf("the old primary grants %d, after %d", answers[0].Token, last)
				}
				why := s.Ready()
				for _, part := range append(names, "locksidecar.restored()") {
					if why == nil || !strings.Contains(why.Error(), part) {
						return false
					}
				}
				return true
			})
			poll(t, "the mark on the old primary", func() bool { return pgtest.Query[bool](t, p.url, "SELECT outdated FROM locksidecar.meta") })
			fresh := backend{tb: t, url: p.url}.open(store.Identity{Namespace: "n", Instance: "fresh", Pod: "p"})
			run(t, fresh, nil)
			poll(t, "the error of a sidecar that does not know the later primary", func() bool {
				return strings.Contains(fresh.Ready().Error(), "another sidecar saw a later one; if this one is meant to be the primary again, run `SELECT locksidecar.restored()`")
			})

			if token := pgtest.Query[int64](t, p.url, "SELECT locksidecar.restored()"); token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			for _, s := range []*postgres.Store{s, fresh} {
				awaitReady(t, s)
				var lease store.LeaseID
				poll(t, "a lease", func() bool {
					lease = uuid.New()
					return s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}) == nil
				})
				if token := grants(t, s, uuid.NewString(), lease); token <= last {
					t.Errorf("token %d after %d", token, last)
				}
			}
		})
	}
}

// A sidecar at work on the old primary, which does not know the new one, learns of it there. It
// loses its locks with their leases.
// Proves: A2, trap failover
func TestSidecarAtAnOldPrimaryIsStopped(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("held", s.lease)), store.Granted)
	began := pgtest.Query[int64](t, s.url, "SELECT began_token FROM locksidecar.meta")
	exec(t, s.conn, "SELECT locksidecar.outdate(began_token, began_token + 1) FROM locksidecar.meta")
	if r, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("renewed: %+v, %v", r, err)
	}
	if a, err := s.Acquire(t.Context(), []store.Ask{askFor("k", s.lease)}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("granted: %+v, %v", a, err)
	}
	poll(t, "the error of Ready", func() bool { why := s.Ready(); return why != nil && strings.Contains(why.Error(), "is an old primary") })
	// A sidecar may have read that the server is current, just before that changed.
	_, err := s.conn.Exec(t.Context(), "SELECT locksidecar.new_history()")
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "LS004" {
		t.Errorf("new history on an old primary: %v, want SQLSTATE LS004", err)
	}
	if is := pgtest.Query[int64](t, s.url, "SELECT began_token FROM locksidecar.meta"); is != began {
		t.Errorf("a history began with %d, the last one with %d", is, began)
	}
	exec(t, s.conn, "SELECT locksidecar.restored()")
	awaitReady(t, s)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	want(t, acquire(t, s, askFor("held", openLease(t, s, time.Hour))), store.Held)
}

// The mark of a sidecar has no effect on a server that is not behind, or was restored meanwhile.
// Proves: trap failover
func TestOnlyAnOlderCopyIsOutdated(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, args := range []string{"began_token, began_token", "began_token, began_token - 1", "began_token - 1, began_token + 1"} {
		exec(t, s.conn, "SELECT locksidecar.outdate("+args+") FROM locksidecar.meta")
	}
	if pgtest.Query[bool](t, s.url, "SELECT outdated FROM locksidecar.meta") {
		t.Error("the server is marked as outdated")
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// A name leads to another database by mistake, whose history is later. A sidecar that was there
// refuses the right database, because tokens would decrease. The other sidecars still use it.
// Proves: trap failover
func TestUnrelatedDatabaseMarksNoOthers(t *testing.T) {
	t.Parallel()
	right, wrong := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP(), pgroles.Template()), pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP(), pgroles.Template())
	url, elsewhere := right.NewDatabase(t), wrong.NewDatabase(t)
	if configOf(t, url).Database != configOf(t, elsewhere).Database {
		t.Fatal("the databases have different names")
	}
	pgtest.Query[int64](t, pgtest.Admin(elsewhere), "SELECT locksidecar.restored()")
	proxy := pgproxy.Start(t, elsewhere)
	s := startStore(t, proxy.URL(), restorer)
	proxy.Lead(t, url)
	pgtest.Terminate(t, pgtest.Admin(elsewhere), "%locksidecar%")
	poll(t, "the refusal", func() bool {
		_, _ = s.Get(t.Context(), []string{"k"})
		why := s.Ready()
		return why != nil && strings.Contains(why.Error(), "is an old primary")
	})
	if pgtest.Query[bool](t, url, "SELECT outdated FROM locksidecar.meta") {
		t.Error("the sidecar keeps others from the right database")
	}
	other := startStore(t, url, store.Identity{Namespace: "n", Instance: "other", Pod: "p"})
	want(t, acquire(t, other, askFor("k", openLease(t, other, time.Hour))), store.Granted)
}

// The hosts of a URL are different servers by mistake. If the first is down, locks are not granted
// on the second, and no schema is created there. The log names both.
// Proves: A2, trap target_session_attrs
func TestHostsOfDifferentClusters(t *testing.T) {
	t.Parallel()
	one, other := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP()), pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := one.NewDatabase(t)
	name := configOf(t, url).Database
	exec(t, connect(t, other.URL("postgres")), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	// The log names each host as in the URL.
	named := func(c *pgtest.Cluster) string { return strings.Replace(c.HostAndPort(), "127.0.0.1", "localhost", 1) }
	text := &logtest.Log{}
	s := only(t, postgres.Config{
		URL:         strings.Replace(url, one.HostAndPort(), named(one)+","+named(other), 1),
		AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	start(t, s, nil)
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("held", lease)), store.Granted)
	const system = "SELECT system_identifier::text FROM pg_control_system()"
	says := []string{named(one), named(other), pgtest.Query[string](t, url, system), pgtest.Query[string](t, other.URL(name), system)}

	one.Halt()
	poll(t, "the error with both names", func() bool {
		if answers, err := s.Acquire(t.Context(), []store.Ask{askFor("k", lease)}); err == nil && answers[0].Outcome == store.Granted {
			t.Fatal("the other cluster grants")
		}
		why := s.Ready()
		for _, part := range says {
			if why == nil || !strings.Contains(why.Error(), part) || !strings.Contains(text.String(), part) {
				return false
			}
		}
		return true
	})
	if n := strings.Count(text.String(), "are different clusters"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	if pgtest.Query[bool](t, other.URL(name), "SELECT to_regnamespace('locksidecar') IS NOT NULL") {
		t.Error("a schema was made in the other cluster")
	}
	if err := one.Again(); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
	want(t, acquire(t, s, askFor("held", lease)), store.Held)
}

// A host of the URL stays the same host when its address changes.
func TestAHostMayMove(t *testing.T) {
	t.Parallel()
	found := "10.0.0.1"
	of := postgres.HostNames(func(context.Context, string) ([]string, error) { return []string{found}, nil })
	at := func(name string) string {
		return of(t.Context(), name, &net.TCPAddr{IP: net.ParseIP(found), Port: 5432})
	}
	before := at("pg-0")
	found = "10.0.0.7"
	if after := at("pg-0"); after != before || before != "pg-0:5432" {
		t.Errorf("it was %s, and is %s", before, after)
	}
	if other := at("pg-1"); other != "pg-1:5432" { // pg-1 now has this address
		t.Errorf("pg-1 is %s", other)
	}
	if socket := of(t.Context(), "pg-0", &net.UnixAddr{Net: "unix", Name: "/run/.s.PGSQL.5432"}); socket != "/run/.s.PGSQL.5432" {
		t.Errorf("the socket is %s", socket)
	}
}

// One of several hosts accepts connections but does not answer, like a machine that hangs.
func TestAHostThatHangsIsPassedOver(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := own.NewDatabase(t)
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hung.Close() }()
	both := strings.Replace(url, own.HostAndPort(), fmt.Sprintf("%s,%s", hung.Addr(), own.HostAndPort()), 1)
	for name, c := range map[string]struct {
		url   string
		works bool
	}{
		"a second for each host": {both, true},
		"the limit of the URL":   {both + "&connect_timeout=4", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := only(t, postgres.Config{
				URL: c.url, AutoMigrate: true,
				Timeout: 3500 * time.Millisecond,
			}, store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"})
			run(t, s, nil)
			if !c.works {
				<-time.After(3 * time.Second) // less than the limit in the URL
				if s.Ready() == nil {
					t.Error("the limit of the URL was not used")
				}
				return
			}
			awaitReady(t, s)
		})
	}
}

// Trap: the old primary is still alive, with connections from before. A listener there gets no
// news.
func TestListenerFollowsTheStore(t *testing.T) {
	t.Parallel()
	old, standby := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP()), pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := old.NewDatabase(t)
	name := configOf(t, url).Database
	after := standby.URL(name)
	if err := standby.Follow(old); err != nil {
		t.Fatal(err)
	}
	proxy := pgproxy.Start(t, url)
	way, there := configOf(t, proxy.URL()), configOf(t, after)
	s := startStore(t, fmt.Sprintf("postgres://postgres@/%s?host=%s,%s&port=%d,%d&sslmode=disable", name, way.Host, there.Host, way.Port, there.Port),
		store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	s.Listen(true)
	poll(t, "it hears", func() bool { return !s.Traits().Polls })
	proxy.Refuse(true) // open connections stay
	standby.Lead(t)
	pgtest.Query[int64](t, url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name = 'locksidecar' AND query NOT LIKE '%LISTEN%' AND datname = $1`, name)
	poll(t, "the store to use the new primary", func() bool { _, err := s.Get(t.Context(), []string{"k"}); return err == nil })
	poll(t, "the listener to use the new primary", func() bool { return listeners(t, after) == 1 && !s.Traits().Polls })
	// The server notices the end of a session after a while.
	poll(t, "the end of the listener at the old primary", func() bool { return listeners(t, url) == 0 })
}

// After an outage without connections, the log still reports what is wrong with the server.
func TestOldPrimaryAfterAnOutageIsLogged(t *testing.T) {
	t.Parallel()
	old, standby := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP(), pgroles.Template()), pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := old.NewDatabase(t)
	if err := standby.Follow(old); err != nil {
		t.Fatal(err)
	}
	standby.Lead(t)
	proxy := pgproxy.Start(t, standby.URL(configOf(t, url).Database))
	text := &logtest.Log{}
	s := startWith(t, postgres.Config{
		URL:         proxy.URL(),
		AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	proxy.Refuse(true)
	proxy.Lead(t, url)
	poll(t, "the end of all connections", func() bool {
		_, _ = s.Get(t.Context(), []string{"k"})
		return strings.Contains(text.String(), "connection refused")
	})
	proxy.Refuse(false)
	poll(t, "the refusal", func() bool { return strings.Contains(s.Ready().Error(), "old primary") })
	poll(t, "the log with cause and advice", func() bool {
		return strings.Contains(text.String(), "is an old primary") && strings.Contains(text.String(), "locksidecar.restored()")
	})
}
