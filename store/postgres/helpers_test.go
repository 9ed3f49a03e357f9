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

// startSpace makes and starts a space that is stopped when the test ends. Before the start, it is prepared.
func startSpace(tb testing.TB, config postgres.Config, prepare ...func(*postgres.Space)) *postgres.Space {
	tb.Helper()
	space, err := postgres.NewSpace(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(space.Stop)
	for _, p := range prepare {
		p(space)
	}
	if err := space.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return space
}

// spaces starts so many patient spaces on the same data, as that many processes have them.
func spaces(tb testing.TB, many int, config postgres.Config) (all []store.Space) {
	tb.Helper()
	config.AutoMigrate, config.MaxConns = true, 8
	for range many {
		all = append(all, startSpace(tb, config, postgres.Patient))
	}
	return all
}

// only makes the only view of a space, as a sidecar has it: see startSpace.
func only(tb testing.TB, config postgres.Config, id store.Identity, prepare ...func(*postgres.Space)) *postgres.Store {
	tb.Helper()
	return startSpace(tb, config, prepare...).View(id).(*postgres.Store)
}

// startStore opens and starts an instance that is stopped when the test ends. It has no quiet time
// after a failover, which quiet_test.go tests.
func startStore(tb testing.TB, url string, id store.Identity) *postgres.Store {
	tb.Helper()
	s := backend{tb: tb, url: url, failover: store.FailoverQuick}.open(id)
	start(tb, s, nil)
	return s
}

// startWith is startStore with settings, and with the limits of production.
func startWith(tb testing.TB, config postgres.Config, id store.Identity) *postgres.Store {
	tb.Helper()
	s := only(tb, config, id)
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

// start starts an instance, and waits until it is ready. news may be nil.
func start(tb testing.TB, s engine, news func(store.News)) {
	tb.Helper()
	run(tb, s, news)
	awaitReady(tb, s)
}

// run starts an instance that is stopped when the test ends.
func run(tb testing.TB, s engine, news func(store.News)) {
	tb.Helper()
	tb.Cleanup(s.Stop)
	if err := s.Start(tb.Context(), news); err != nil {
		tb.Fatal(err)
	}
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
