package postgres_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// The URL is read again for each new connection. A URL that cannot be used has no effect.
// Proves: rule credentials
func TestTheURLIsReadAgain(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	makeRole(t, connect(t, url), "another", "LOGIN IN ROLE locksidecar")
	var text logtest.Log
	var now atomic.Pointer[string]
	now.Store(&url)
	s := startWith(t, postgres.Config{
		URL:    url,
		Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Again: func() (string, error) {
			if u := now.Load(); *u != "" {
				return *u, nil
			}
			return "", errors.New("the file is empty")
		},
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	const own = "datname = current_database() AND application_name = 'locksidecar'"
	lines := 0
	for _, c := range []struct{ url, user, complaint string }{
		{"", "locksidecar", "the file is empty"},
		{pgtest.As(url, "nobody"), "locksidecar", "does not exist"},
		{strings.Replace(url, "?", "x?", 1), "locksidecar", "other hosts or another database"},
		{strings.Replace(url, "port=5432", "port=5431", 1), "locksidecar", ""}, // already logged
		{strings.Replace(url, "host=", "host=/elsewhere,", 1), "locksidecar", ""},
		{"postgres://u:p@h:port/d", "locksidecar", "invalid port"},
		{pgtest.As(url, "another"), "another", ""},
		{url, "locksidecar", ""},
		{"", "locksidecar", "the file is empty"}, // it was usable meanwhile
	} {
		now.Store(&c.url)
		users := ""
		// One that is being made may still have the URL before, and lives on then. So all are ended until all are new.
		for deadline := time.Now().Add(patience); users != c.user; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connections are of %q, want of %s", c.url, users, c.user)
			}
			pgtest.Query[int64](t, url, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "+own)
			poll(t, "renewals", func() bool {
				_, err := s.Renew(t.Context(), []store.LeaseID{lease})
				return err == nil
			})
			awaitReady(t, s)
			users = pgtest.Query[string](t, url, "SELECT coalesce(string_agg(DISTINCT usename, ' '), '') FROM pg_stat_activity WHERE "+own)
		}
		if c.complaint != "" {
			lines++
		}
		logged := complaints(text.String())
		if len(logged) != lines || !strings.Contains(logged[lines-1], c.complaint) {
			t.Fatalf("%s: %d log lines, want %d: %s", c.url, len(logged), lines, logged)
		}
	}
}

// Certificates are replaced in the files of the URL. A CA that has not signed the server's
// certificate is tried and rejected, and the one before stays. A CA that has signed it is used.
// Proves: rule credentials
func TestAWrongCAChangesNothing(t *testing.T) {
	t.Parallel()
	ca, next := certtest.New(t), certtest.New(t)
	pair := ca.Issue("localhost", time.Now().Add(time.Hour))
	own := pgtest.Start(t, pgtest.WithTCP(), pgtest.WithoutFsync(), pgtest.WithFile("postgresql.auto.conf", []byte("ssl = on\n")),
		pgtest.WithFile("server.crt", pair.Cert), pgtest.WithFile("server.key", pair.Key))
	secret := certtest.MountFiles(t, map[string][]byte{"ca.crt": ca.PEM()})
	plain := own.NewDatabase(t)
	url := strings.NewReplacer("127.0.0.1", "localhost", "sslmode=disable", "sslmode=verify-full&sslrootcert="+secret.File("ca.crt")).Replace(plain)
	var text logtest.Log
	s := only(t, postgres.Config{
		URL: url, AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(&text, nil)),
	}, restorer)
	start(t, s, nil)
	lease := openLease(t, s, time.Hour)
	reconnect := func() {
		t.Helper()
		pgtest.Terminate(t, plain, "%locksidecar:%")
		poll(t, "renewals", func() bool { _, err := s.Renew(t.Context(), []store.LeaseID{lease}); return err == nil })
	}
	secret.Replace(map[string][]byte{"ca.crt": next.PEM()})
	reconnect()
	if logged := complaints(text.String()); len(logged) != 1 || !strings.Contains(logged[0], "signed by unknown authority") {
		t.Errorf("the log contains %q", logged)
	}
	secret.Replace(map[string][]byte{"ca.crt": append(ca.PEM(), next.PEM()...)})
	reconnect()
	other := next.Issue("localhost", time.Now().Add(time.Hour))
	own.Put(t, "server.key", other.Key)
	own.Put(t, "server.crt", other.Cert)
	reconnect()
}

// complaints returns the log lines about the URL.
func complaints(log string) (found []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "cannot be used now") {
			found = append(found, line)
		}
	}
	return found
}

// A program in place of the server would receive the password. The log warns once.
func TestUnverifiedServerIsLogged(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"postgres://u@db.invalid/d":                            1,
		"postgres://u@db.invalid/d?sslmode=disable":            1,
		"postgres://u@db.invalid/d?sslmode=require":            1,
		"postgres://u@db.invalid/d?sslmode=verify-ca":          1,
		"postgres://u@127.0.0.1,db.invalid/d?sslmode=require":  1,
		"postgres://u@db.invalid/d?sslmode=verify-full":        0,
		"postgres://u@127.0.0.1:1/d":                           0,
		"postgres://u@[::1]:1/d?sslmode=disable":               0,
		"postgres://u@localhost:1/d?sslmode=disable":           0,
		"postgres://u@/d?host=/nowhere&sslmode=disable":        0,
		"postgres://u@127.0.0.1:1,localhost:1/d?sslmode=allow": 0,
	} {
		var text logtest.Log
		s, err := postgres.NewSpace(postgres.Config{URL: url, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Start(t.Context())
		s.Stop()
		if n := strings.Count(text.String(), "is not verified"); err != nil || n != want {
			t.Errorf("%s: %v, logged %d times, want %d", url, err, n, want)
		}
	}
}

// The tests of this package use a role without the right to change the schema.
func TestStoresMayNotChangeTheSchema(t *testing.T) {
	t.Parallel()
	s := startStore(t, cluster.NewDatabase(t), store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	got := postgres.InSession(t.Context(), t, s, `SELECT concat_ws(',', rolname, rolsuper, rolcreaterole, rolcreatedb,
			has_schema_privilege('locksidecar', 'CREATE'), has_database_privilege(current_database(), 'CREATE'))
		FROM pg_roles WHERE rolname = current_user`)
	if got != "locksidecar,f,f,f,f,f" {
		t.Errorf("stores run as %s", got)
	}
}

// Trap: if a URL names no database, the server uses the user's name. Then another user would use
// another database.
func TestAnotherUserIsNoOtherDatabase(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	admin := connect(t, url)
	makeDatabase(t, admin, "locksidecar")
	makeDatabase(t, admin, "elsewhere")
	makeRole(t, admin, "elsewhere", "LOGIN IN ROLE locksidecar")
	nameless := fmt.Sprintf("postgres://locksidecar@/?host=%s&port=%d", configOf(t, url).Host, configOf(t, url).Port)
	var now atomic.Pointer[string]
	now.Store(&nameless)
	s := startWith(t, postgres.Config{
		URL:   nameless,
		Again: func() (string, error) { return *now.Load(), nil },
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	other := pgtest.As(nameless, "elsewhere")
	now.Store(&other)
	pgtest.Terminate(t, cluster.URL("locksidecar"), "%locksidecar:%")
	poll(t, "connections", func() bool { _, err := s.Get(t.Context(), []string{"k"}); return err == nil })
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'locksidecar' AND datname = 'elsewhere'"); n != 0 {
		t.Errorf("%d connections lead to another database", n)
	}
}

// A store whose login was refused does not retry with each call, because servers lock out roles
// with many refusals.
func TestARefusedLoginIsNotTriedWithEachCall(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP(), pgtest.WithFile("pg_hba.conf",
		[]byte("host all postgres all trust\nhost all all all scram-sha-256\nlocal all all trust\n"))) //nolint:dupword // pg_hba.conf says so
	url := own.NewDatabase(t)
	admin := connect(t, url)
	exec(t, admin, "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'")
	url = strings.Replace(pgtest.As(url, "app"), "app@", "app:first@", 1)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	exec(t, admin, "ALTER ROLE app PASSWORD 'second'")
	pgtest.Terminate(t, pgtest.Admin(url), "%locksidecar:%")
	began := time.Now()
	for range 500 {
		if _, err := s.Get(t.Context(), []string{"k"}); !store.Unavailable(err) {
			t.Fatal(err)
		}
	}
	most := 3 + int(time.Since(began)/(400*time.Millisecond))
	text, err := os.ReadFile(own.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "password authentication failed"); n == 0 || n > most {
		t.Errorf("500 calls in %v tried %d logins, want 1 to %d", time.Since(began), n, most)
	}
	exec(t, admin, "ALTER ROLE app PASSWORD 'first'")
	poll(t, "a login", func() bool { _, err := s.Get(t.Context(), []string{"k"}); return err == nil })
}

// The next sweep of a running sidecar notices a change of the database that is unsafe for locks.
// The sidecar reports it until it is corrected.
func TestUnsafeChangesAreNoticed(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]struct{ do, withdraw, says string }{
		"queue positions are cached per connection": {
			"ALTER SEQUENCE locksidecar.waiters_id_seq CACHE 10", "ALTER SEQUENCE locksidecar.waiters_id_seq CACHE 1",
			"waiters_id_seq; ALTER SEQUENCE",
		},
		"a table is not logged": {
			"ALTER TABLE locksidecar.locks SET UNLOGGED", "ALTER TABLE locksidecar.locks SET LOGGED", "locks; ALTER",
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newScene(t)
			exec(t, s.conn, change.do)
			if err := s.Sweep(t.Context()); err == nil {
				t.Error("the sweep does not report it")
			}
			poll(t, "the store to report it", func() bool {
				err := s.Ready()
				return err != nil && strings.Contains(err.Error(), change.says)
			})
			exec(t, s.conn, change.withdraw)
			awaitReady(t, s)
		})
	}
}
