package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/logtest"
	"github.com/locksidecar/locksidecar/internal/pgproxy"
	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Trap: the old primary is there again when the new one has long granted locks. It takes
// connections, and stands first in the URL. Who has seen the new one does not go back: the
// old one would say that it holds nothing of what it was granted meanwhile.
func TestAnOldPrimaryIsRefused(t *testing.T) {
	old, standby := pgtest.Start(t, pgtest.WithTCP()), pgtest.Start(t, pgtest.WithTCP())
	url := old.NewDatabase(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	after := standby.URL(config.Database)
	if err := standby.Follow(old); err != nil {
		t.Fatal(err)
	}
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startStore(t, strings.Replace(url, old.HostAndPort(), old.HostAndPort()+","+standby.HostAndPort(), 1), id)
	lease := openLease(t, s, time.Hour)
	grant := func(key string) {
		t.Helper()
		ask := askFor(key, lease) // one attempt: the answer to a grant may be lost
		poll(t, "a grant of "+key, func() bool {
			answers, err := s.Acquire(t.Context(), []store.Ask{ask})
			return err == nil && answers[0].Outcome == store.Granted
		})
	}
	grant("before")
	poll(t, "the standby has it", func() bool {
		return pgtest.Query[int64](t, after, "SELECT count(*) FROM locksidecar.locks WHERE key = 'before'") == 1
	})
	old.Halt()
	pgtest.Query[bool](t, after, "SELECT pg_promote()")
	grant("meanwhile")

	if err := old.Again(); err != nil {
		t.Fatal(err)
	}
	pgtest.Terminate(t, after, "%locksidecar%")
	grant("afterwards")
	for _, key := range []string{"meanwhile", "afterwards"} {
		if n := pgtest.Query[int64](t, after, "SELECT count(*) FROM locksidecar.locks WHERE key = $1", key); n != 1 {
			t.Errorf("%q is not known to the new primary", key)
		}
	}
	// Who knows the old one only has seen no other.
	startStore(t, url, id)
}

// The hosts of a URL are not copies of one server, by mistake. Nothing is granted on the
// second one when the first is away, nor is a schema made there; it is said which they are.
func TestHostsOfDifferentClusters(t *testing.T) {
	one, other := pgtest.Start(t, pgtest.WithTCP()), pgtest.Start(t, pgtest.WithTCP())
	url := one.NewDatabase(t)
	name := configOf(t, url).Database
	exec(t, connect(t, other.URL("postgres")), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	// Each is what the URL calls it, whatever its address is.
	named := func(c *pgtest.Cluster) string { return strings.Replace(c.HostAndPort(), "127.0.0.1", "localhost", 1) }
	text := &logtest.Log{}
	s, err := postgres.New(postgres.Config{
		URL:      strings.Replace(url, one.HostAndPort(), named(one)+","+named(other), 1),
		Identity: store.Identity{Namespace: "n", Instance: "i", Pod: "p"}, AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("held", lease)), store.Granted)
	const system = "SELECT system_identifier::text FROM pg_control_system()"
	says := []string{named(one), named(other), pgtest.Query[string](t, url, system), pgtest.Query[string](t, other.URL(name), system)}

	one.Halt()
	poll(t, "it says which they are", func() bool {
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

// A host of the URL is still the same when its address is another.
func TestAHostMayMove(t *testing.T) {
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
	if other := at("pg-1"); other != "pg-1:5432" { // it has got the address
		t.Errorf("pg-1 is %s", other)
	}
	if socket := of(t.Context(), "pg-0", &net.UnixAddr{Net: "unix", Name: "/run/.s.PGSQL.5432"}); socket != "/run/.s.PGSQL.5432" {
		t.Errorf("the socket is %s", socket)
	}
}

// Of several hosts one takes connections and never answers, as a machine does that hangs.
func TestAHostThatHangsIsPassedOver(t *testing.T) {
	own := pgtest.Start(t, pgtest.WithTCP())
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
		"each host has a second":     {both, true},
		"if the URL does not say so": {both + "&connect_timeout=4", false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := postgres.New(postgres.Config{
				URL: c.url, Identity: store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"}, AutoMigrate: true,
				Timeout: 3500 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Stop()
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !c.works {
				<-time.After(3 * time.Second) // less than what it says
				if s.Ready() == nil {
					t.Error("the URL's limit is not kept")
				}
				return
			}
			awaitReady(t, s)
		})
	}
}

// Trap: the old primary lives on, with connections that were made before: who listens there
// hears nothing.
func TestTheEarFollowsTheStore(t *testing.T) {
	old, standby := pgtest.Start(t, pgtest.WithTCP()), pgtest.Start(t, pgtest.WithTCP())
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
	proxy.Refuse(true) // what is open stays
	standby.Lead(t)
	pgtest.Query[int64](t, url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name = 'locksidecar' AND query NOT LIKE '%LISTEN%' AND datname = $1`, name)
	poll(t, "the store follows", func() bool { _, err := s.Get(t.Context(), []string{"k"}); return err == nil })
	poll(t, "and so does who listens", func() bool { return ears(t, after) == 1 && !s.Traits().Polls })
	// The server ends a session when it gets to it.
	poll(t, "nobody listens to the old one", func() bool { return ears(t, url) == 0 })
}

// What is wrong with a server after an outage is said, though there was no connection before, either.
func TestAnOldPrimaryAfterAnOutageIsToldOf(t *testing.T) {
	old, standby := pgtest.Start(t, pgtest.WithTCP()), pgtest.Start(t, pgtest.WithTCP())
	url := old.NewDatabase(t)
	if err := standby.Follow(old); err != nil {
		t.Fatal(err)
	}
	standby.Lead(t)
	proxy := pgproxy.Start(t, standby.URL(configOf(t, url).Database))
	text := &logtest.Log{}
	s := startWith(t, postgres.Config{
		URL: proxy.URL(), Identity: store.Identity{Namespace: "n", Instance: "i", Pod: "p"},
		AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
	})
	proxy.Refuse(true)
	proxy.Lead(t, url)
	poll(t, "there is no connection", func() bool {
		_, _ = s.Get(t.Context(), []string{"k"})
		return strings.Contains(text.String(), "connection refused")
	})
	proxy.Refuse(false)
	poll(t, "it is refused", func() bool { return strings.Contains(s.Ready().Error(), "old primary") })
	poll(t, "the log says it, and what to do", func() bool {
		return strings.Contains(text.String(), "is an old primary") && strings.Contains(text.String(), "restart the sidecar")
	})
}
