package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// patience is how long tests wait for an event.
const patience = 20 * time.Second

// startStore opens and starts an instance that is stopped when the test ends. It has no quiet time
// after a failover, which quiet_test.go tests.
func startStore(tb testing.TB, url string, id store.Identity) *postgres.Store {
	tb.Helper()
	s := backend{tb: tb, url: url, failover: store.FailoverQuick}.open(id)
	start(tb, s, nil)
	return s
}

// startWith is startStore with settings, and with the limits of production.
func startWith(tb testing.TB, config postgres.Config) *postgres.Store {
	tb.Helper()
	s, err := postgres.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	start(tb, s, nil)
	return s
}

// migrate migrates a database to the current schema.
func migrate(tb testing.TB, url string) {
	tb.Helper()
	if _, _, err := postgres.Migrate(tb.Context(), url); err != nil {
		tb.Fatal(err)
	}
}

// start starts an instance. news may be nil.
func start(tb testing.TB, s engine, news func(store.News)) {
	tb.Helper()
	tb.Cleanup(s.Stop)
	if err := s.Start(tb.Context(), news); err != nil {
		tb.Fatal(err)
	}
	awaitReady(tb, s)
}

func awaitReady(tb testing.TB, s engine) {
	tb.Helper()
	var why error
	defer func() {
		if why != nil {
			tb.Logf("the store is not ready: %v", why)
		}
	}()
	poll(tb, "the store is ready", func() bool { why = s.Ready(); return why == nil })
}

// poll calls yes until it returns true.
func poll(tb testing.TB, what string, yes func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !yes(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %v in vain for: %s", patience, what)
		}
	}
}

func openLease(tb testing.TB, s engine, ttl time.Duration) store.LeaseID {
	tb.Helper()
	id := uuid.New()
	if err := s.OpenLeases(tb.Context(), []store.NewLease{{ID: id, TTL: ttl}}); err != nil {
		tb.Fatal(err)
	}
	return id
}

func askFor(key string, lease store.LeaseID) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
}

// answer returns the single answer of a call with one item.
func answer(tb testing.TB, answers []store.Answer, err error) store.Answer {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	if len(answers) != 1 {
		tb.Fatalf("%d answers for one item", len(answers))
	}
	return answers[0]
}

func acquire(tb testing.TB, s engine, ask store.Ask) store.Answer {
	tb.Helper()
	answers, err := s.Acquire(tb.Context(), []store.Ask{ask})
	return answer(tb, answers, err)
}

func enqueue(tb testing.TB, s engine, ask store.Ask) store.Answer {
	tb.Helper()
	answers, err := s.Enqueue(tb.Context(), []store.Ask{ask})
	return answer(tb, answers, err)
}

func check(tb testing.TB, s engine, ask store.Ask) store.Answer {
	tb.Helper()
	answers, err := s.Check(tb.Context(), []store.Attempt{ask.Attempt})
	return answer(tb, answers, err)
}

// want ends the test unless an answer has the outcome.
func want(tb testing.TB, a store.Answer, outcome store.Outcome) store.Answer {
	tb.Helper()
	if a.Outcome != outcome {
		tb.Fatalf("outcome %d, want %d: %+v", a.Outcome, outcome, a)
	}
	return a
}

func release(tb testing.TB, s engine, claim store.Claim) store.Verdict {
	tb.Helper()
	verdicts, err := s.Release(tb.Context(), []store.Claim{claim})
	if err != nil {
		tb.Fatal(err)
	}
	return verdicts[0]
}

// connect opens a session on the database as its superuser.
func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), pgtest.Admin(url))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(tb testing.TB, conn *pgx.Conn, sql string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// makeRole makes a role until the test ends. Roles belong to the whole server, and tests may run
// twice.
func makeRole(tb testing.TB, admin *pgx.Conn, name, options string) {
	tb.Helper()
	exec(tb, admin, "CREATE ROLE "+name+" "+options)
	tb.Cleanup(func() { dropped(tb, admin, "ROLE "+name) })
}

// makeDatabase makes a database with this name until the test ends.
func makeDatabase(tb testing.TB, admin *pgx.Conn, name string) {
	tb.Helper()
	exec(tb, admin, "CREATE DATABASE "+name+" TEMPLATE prepared")
	tb.Cleanup(func() { dropped(tb, admin, "DATABASE "+name+" WITH (FORCE)") })
}

func dropped(tb testing.TB, admin *pgx.Conn, what string) {
	tb.Helper()
	if _, err := admin.Exec(context.Background(), "DROP "+what); err != nil {
		tb.Error(err)
	}
}

// withdraw is Withdraw without its answers.
func withdraw(ctx context.Context, s engine, attempts ...store.Attempt) error {
	_, err := s.Withdraw(ctx, attempts)
	return err
}

// engine is a *postgres.Store, or a struct that embeds one.
type engine interface {
	store.Store
	store.Listener
}
