package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const password = "do-not-tell"

func TestBadURLFailsNewWithoutThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:" + password + "@host:port/db",
		"postgres://u:" + password + "@host/db?connect_timeout=x",
		"postgres://u:" + password + "@host/db?sslmode=x",
	} {
		_, err := postgres.NewSpace(postgres.Config{URL: url})
		if err == nil {
			t.Errorf("NewSpace(%q) succeeded", url)
		} else if strings.Contains(err.Error(), password) {
			t.Errorf("the error contains the password: %v", err)
		}
	}
	if _, err := postgres.NewSpace(postgres.Config{URL: "postgres://h/db", MaxConns: 1}); err == nil {
		t.Error("NewSpace accepts a single connection: renewals would queue behind acquires")
	}
}

func TestUnreachableServerDoesNotFailStart(t *testing.T) {
	t.Parallel()
	attempts := make(chan struct{}, 1)
	nobody := refuse(t, attempts)
	var text logtest.Log
	s := only(t, postgres.Config{
		URL:    "postgres://u:" + password + "@" + nobody + "/db?sslmode=disable",
		Logger: slog.New(slog.NewTextHandler(&text, nil)),
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	run(t, s, nil)
	if s.Ready() == nil {
		t.Error("ready without a server")
	}
	_, err := s.Acquire(t.Context(), []store.Ask{askFor("k", uuid.New())})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("Acquire: %v, want a failure that did nothing", err)
	}
	for range 4 { // several attempts cause one line
		<-attempts
	}
	if n := strings.Count(text.String(), "\n"); n != 1 {
		t.Errorf("%d lines for one change of readiness:\n%s", n, text.String())
	}
	if strings.Contains(text.String(), password) {
		t.Errorf("the log contains the password:\n%s", text.String())
	}
}

// refuse listens in place of a server, and closes each connection.
func refuse(t *testing.T, attempts chan<- struct{}) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			select {
			case attempts <- struct{}{}:
			case <-stop:
				return
			}
		}
	}()
	return listener.Addr().String()
}

func TestOutageAndReturn(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	s := startStore(t, own.NewDatabase(t), store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	ask := askFor("k", lease)
	first := want(t, acquire(t, s, ask), store.Granted)

	own.Kill()
	poll(t, "it is not ready", func() bool {
		_, err := s.Get(t.Context(), []string{"k"})
		return store.Unavailable(err) && s.Ready() != nil
	})
	own.Restart(t)
	awaitReady(t, s)
	again := want(t, acquire(t, s, ask), store.Granted)
	if again.Token != first.Token {
		t.Errorf("a repeat after the outage got token %d, the first had %d", again.Token, first.Token)
	}
}

// A statement waits for a row. Each kind of failure leaves a known or an unknown outcome.
// Proves: promise 9
func TestWhatIsKnownAfterAFailure(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end     func(t *testing.T, url string, cancel context.CancelFunc)
		unknown bool
		code    string
	}{
		"the server cancels the statement": {
			end: func(t *testing.T, url string, _ context.CancelFunc) {
				pgtest.Query[bool](t, url, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE "+blocked)
			}, code: "57014",
		},
		"the connection is cut": {
			end: func(t *testing.T, url string, _ context.CancelFunc) {
				pgtest.Query[bool](t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "+blocked)
			}, unknown: true,
		},
		"the caller leaves": {
			end: func(_ *testing.T, _ string, cancel context.CancelFunc) { cancel() }, unknown: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := cluster.NewDatabase(t)
			s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
			lease := openLease(t, s, time.Minute)
			ask := askFor("k", lease)
			want(t, acquire(t, s, ask), store.Granted)
			operator := connect(t, url)
			exec(t, operator, "BEGIN; SELECT FROM locksidecar.locks FOR UPDATE")

			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() { failed <- withdraw(ctx, s, ask.Attempt) }()
			awaitBlocked(t, url)
			test.end(t, url, cancel)
			err := <-failed
			cancel()
			if !store.Unavailable(err) || store.OutcomeUnknown(err) != test.unknown {
				t.Errorf("%v: unknown %v, want %v", err, store.OutcomeUnknown(err), test.unknown)
			}
			if pg, ok := errors.AsType[*pgconn.PgError](err); test.code != "" && (!ok || pg.Code != test.code) {
				t.Errorf("%v: want SQLSTATE %s", err, test.code)
			}
		})
	}
}

// The rows of RETURNING arrive before the commit. A commit that waits for a synchronous standby can
// be cancelled, and the server reports that as a success.
// Proves: promise 4, trap cancelled wait for a standby, trap rows before the commit
func TestNothingIsGrantedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	asks := make([]store.Ask, 1000) // so many that the server sends rows before the end
	for i := range asks {
		asks[i] = askFor(uuid.NewString(), lease)
	}
	l := leaveAlone(t, url)
	done := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), asks)
		done <- err
	}()
	l.awaitWaiting()
	select {
	case err := <-done:
		t.Fatalf("answered before the commit: %v", err)
	default:
	}
	l.cancel()
	if err := <-done; !store.OutcomeUnknown(err) {
		t.Errorf("a commit that no standby confirmed: %v, want an unknown outcome", err)
	}
	l.found()
	answers, err := s.Acquire(t.Context(), asks) // the repeat finds the grants
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		want(t, a, store.Granted)
	}
}

// The same rows arrive before a commit that fails. Then nothing was done.
// Proves: promise 4, trap rows before the commit
func TestFailedCommitIsNotAnswered(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(s *scene, held store.Claim) error{
		"one": func(s *scene, _ store.Claim) error {
			_, err := s.Acquire(s.Context(), alone(askFor("new", s.lease)))
			return err
		},
		"many": func(s *scene, _ store.Claim) error {
			_, err := s.Acquire(s.Context(), among(askFor("new", s.lease)))
			return err
		},
		"hand-off": func(s *scene, held store.Claim) error { // including the hand-off
			_, err := s.Release(s.Context(), []store.Claim{held})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			held := askFor("k", s.lease)
			token := want(t, acquire(t, s, held), store.Granted).Token
			want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
			exec(t, s.conn, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				RAISE EXCEPTION 'as ordered';
			END $$`)
			exec(t, s.conn, `CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON locksidecar.locks
				DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
			err := do(s, store.Claim{Key: "k", Token: token, Lease: s.lease})
			if !store.Unavailable(err) || store.OutcomeUnknown(err) {
				t.Errorf("%v, want a failure that did nothing", err)
			}
			if grant, _, _ := holder(t, s.conn, "k"); grant != held.ID {
				t.Errorf("the key is held under grant %s", grant)
			}
		})
	}
}

// Default settings of the database must not weaken locks.
// Proves: A2, trap defaults
func TestConnectionsAreSetUp(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	admin := connect(t, url)
	for _, setting := range []string{
		"default_transaction_isolation = 'repeatable read'", "default_transaction_read_only = on",
		"synchronous_commit = off", "lock_timeout = 0", "statement_timeout = 0",
	} {
		exec(t, admin, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+strings.ReplaceAll(setting, "'", "''")+
			"', current_database()); END $$")
	}
	var text logtest.Log
	startWith(t, postgres.Config{
		URL: url, AutoMigrate: true, Timeout: patience,
		Logger: slog.New(slog.NewTextHandler(&text, nil)),
	}, store.Identity{Namespace: "n", Instance: "other", Pod: "p"})
	for _, said := range []string{
		"a crash of the database's machine can lose grants", " fsync=off full_page_writes=on",
		` default_transaction_isolation="repeatable read" default_transaction_read_only=on synchronous_commit=off`,
	} {
		if !strings.Contains(text.String(), said) {
			t.Errorf("not logged: %s\n%s", said, text.String())
		}
	}
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Minute)
	ask := askFor("k", lease)
	granted := want(t, acquire(t, s, ask), store.Granted)
	if v := release(t, s, store.Claim{Key: "k", Token: granted.Token, Lease: lease}); v.Status != store.Holds {
		t.Errorf("status %d", v.Status)
	}
	var isolation, commit, lock string
	for name, into := range map[string]*string{
		"transaction_isolation": &isolation, "synchronous_commit": &commit, "lock_timeout": &lock,
	} {
		*into = postgres.Setting(t.Context(), t, s, name)
	}
	if isolation != "read committed" || commit != "on" || lock != "4s" {
		t.Errorf("isolation %s, synchronous_commit %s, lock_timeout %s", isolation, commit, lock)
	}
}

// blocked selects the store's sessions that wait for a lock.
const blocked = "wait_event_type = 'Lock' AND application_name = 'locksidecar' AND datname = current_database()"

func isBlocked(tb testing.TB, url string) bool {
	tb.Helper()
	return pgtest.Query[int64](tb, url, "SELECT count(*) FROM pg_stat_activity WHERE "+blocked) > 0
}

func awaitBlocked(tb testing.TB, url string) {
	tb.Helper()
	poll(tb, "a statement of the store waits for a lock", func() bool { return isBlocked(tb, url) })
}

// A database may hide warnings by default. The store still notices that a commit was not
// replicated.
// Proves: A2, trap cancelled wait for a standby, trap defaults
func TestHiddenWarning(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	admin := connect(t, url)
	exec(t, admin, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = error', current_database()); END $$")
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	l := leaveAlone(t, url)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), lease)})
		failed <- err
	}()
	l.awaitWaiting()
	l.cancel()
	if err := <-failed; !store.OutcomeUnknown(err) {
		t.Errorf("a commit that no standby confirmed: %v, want an unknown outcome", err)
	}
}

// A connection of the renewals may hang, during a renewal or during the check before one. Renewals
// continue on another connection.
// Proves: trap late renewal
func TestHungRenewalConnection(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	for name, rest := range map[string]time.Duration{"in the statement": 0, "before it": 1200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			s := startWith(t, postgres.Config{
				URL: url, AutoMigrate: true, Timeout: timeout,
			}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
			leases := []store.LeaseID{openLease(t, s, time.Hour)}
			if _, err := s.Renew(t.Context(), leases); err != nil {
				t.Fatal(err)
			}
			pid := pgtest.Query[int](t, url, `SELECT pid FROM pg_stat_activity
				WHERE application_name = 'locksidecar' AND datname = current_database() AND query LIKE '%:lease_renew %'`)
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			time.Sleep(rest) // a connection that was idle for a second is checked before use

			began := time.Now()
			poll(t, "a renewal", func() bool {
				_, err := s.Renew(t.Context(), leases)
				return err == nil
			})
			if took := time.Since(began); took > 4*timeout {
				t.Errorf("renewed after %s", took)
			}
		})
	}
}

// A connection that the server has ended since its last use is not used again, however
// short ago that was: the outcome of a release would be unknown.
// Proves: promise 4, trap failover
func TestAnEndedConnectionIsNotUsed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	granted := acquire(t, s, askFor("k", s.lease))
	want(t, granted, store.Granted)
	if _, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); err != nil {
		t.Fatal(err)
	}
	ended := pgtest.Query[int](t, s.url, `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'locksidecar'`)
	if ended < 2 {
		t.Fatalf("%d connections were ended, want those of the locks and of the renewals", ended)
	}
	if _, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	if verdict := release(t, s, store.Claim{Key: "k", Lease: s.lease, Token: granted.Token}); verdict.Status != store.Holds {
		t.Errorf("a release: %v", verdict)
	}
}

// failWith makes writes of locks fail with an SQLSTATE, this number of times.
func (s *scene) failWith(code string, times int) {
	s.Helper()
	exec(s.T, s.conn, "CREATE SEQUENCE failures")
	exec(s.T, s.conn, fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		IF nextval('public.failures') <= %d THEN RAISE EXCEPTION 'as ordered' USING ERRCODE = '%s'; END IF;
		RETURN NEW;
	END $$`, times, code))
	exec(s.T, s.conn, "CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON locksidecar.locks FOR EACH ROW EXECUTE FUNCTION fail()")
}

// A statement that the server rolled back because of a concurrent one is repeated.
// Proves: trap deadlock
func TestDeadlocksAndSerializationFailuresAreRepeated(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40P01", "40001"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.failWith(code, 2)
			want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
		})
	}
}

// Trap: target_session_attrs is checked only when a connection is made. A connection to a server
// that no longer accepts writes is closed.
// Proves: trap target_session_attrs
func TestAReadOnlyServerIsLeft(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	sessions := func() []string {
		return strings.Fields(pgtest.Query[string](t, s.url, `SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity
			WHERE application_name = 'locksidecar' AND datname = current_database()`))
	}
	s.failWith("25006", 1)
	before := sessions()
	if _, err := s.Acquire(t.Context(), []store.Ask{askFor("k", s.lease)}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("%v, want a failure that did nothing", err)
	}
	poll(t, "the old connections are gone", func() bool {
		return !slices.ContainsFunc(sessions(), func(pid string) bool { return slices.Contains(before, pid) })
	})
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// Trap: a server hangs just after the login. The pool's own context has no deadline.
func TestAServerThatHangsAfterTheLogin(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := startWith(t, postgres.Config{
		URL: proxy.URL(), Timeout: time.Second,
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	hung, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over) })
	var once atomic.Bool
	proxy.On("connection_check", pgproxy.BeforeSend, func() {
		if once.CompareAndSwap(false, true) {
			close(hung)
			<-over
		}
	})
	go func() { _, _ = s.Renew(t.Context(), []store.LeaseID{lease}) }()
	<-hung
	poll(t, "a renewal", func() bool { _, err := s.Renew(t.Context(), []store.LeaseID{lease}); return err == nil })
}

// Renewals keep their connection during an outage of new connections, so holders keep their locks.
func TestRenewalsKeepTheirConnection(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := startStore(t, proxy.URL(), store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	renew := func() error {
		_, err := s.Renew(t.Context(), []store.LeaseID{lease})
		return err
	}
	if err := renew(); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	pgtest.Query[int64](t, pgtest.Admin(url), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'locksidecar' AND query NOT LIKE '%locksidecar:lease_renew%'`)
	poll(t, "it is not ready", func() bool {
		_, err := s.Get(t.Context(), []string{"k"})
		return err != nil && s.Ready() != nil
	})
	if err := renew(); err != nil {
		t.Error(err)
	}
	proxy.Refuse(false)
	awaitReady(t, s)
}
