package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// inSyncRep selects the store's statements that wait for a standby.
const inSyncRep = "wait_event = 'SyncRep' AND application_name = 'locksidecar'"

// lonely is a server whose commits wait for a standby that does not exist.
type lonely struct {
	*testing.T
	url   string
	admin *pgx.Conn
}

// leaveAlone makes a server lonely until found is called.
func leaveAlone(t *testing.T, url string) lonely {
	t.Helper()
	l := lonely{t, url, connect(t, url)}
	l.standbys("nobody")
	return l
}

func (l lonely) found() { l.standbys("") }

// awaitLonely waits until commits wait, because a process of the server must read the setting
// first.
func (l lonely) awaitLonely() {
	l.Helper()
	probe := connect(l.T, l.url)
	pid := probe.PgConn().PID()
	poll(l.T, "commits wait", func() bool {
		ended := make(chan error, 1)
		go func() {
			_, err := probe.Exec(l.Context(), "SELECT pg_logical_emit_message(true, 'probe', '')")
			ended <- err
		}()
		for {
			select {
			case err := <-ended:
				if err != nil {
					l.Fatal(err)
				}
				return false
			default:
			}
			if pgtest.Query[int64](l.T, l.url, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'", pid) > 0 {
				return <-ended == nil
			}
		}
	})
}

func (l lonely) standbys(names string) {
	l.Helper()
	exec(l.T, l.admin, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
	exec(l.T, l.admin, "SELECT pg_reload_conf()")
	poll(l.T, "the new setting", func() bool {
		return pgtest.Query[string](l.T, l.url, "SHOW synchronous_standby_names") == names
	})
	if names != "" {
		l.awaitLonely()
	}
}

// awaitWaiting waits until a statement of the store waits for the standby.
func (l lonely) awaitWaiting() {
	l.Helper()
	poll(l.T, "a statement waits for the standby", func() bool {
		return pgtest.Query[int64](l.T, l.url, "SELECT count(*) FROM pg_stat_activity WHERE "+inSyncRep) > 0
	})
}

// cancel cancels all these waits, like an operator.
func (l lonely) cancel() {
	l.Helper()
	pgtest.Query[int64](l.T, l.url, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "+inSyncRep)
}

// Trap: a cancelled wait for a standby leaves a visible grant that a failover would lose. A repeat,
// a check or a cancel that finds it is answered only when the standby has it.
// Proves: trap cancelled wait for a standby
func TestAGrantIsFoundWhenTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory())
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	ask := askFor("k", lease)
	held, waiter := askFor("line", lease), askFor("line", other)
	token := want(t, acquire(t, s, held), store.Granted).Token
	want(t, enqueue(t, s, waiter), store.Queued)

	l := leaveAlone(t, url)
	for what, do := range map[string]func() error{
		"acquire": func() error { _, err := s.Acquire(t.Context(), alone(ask)); return err },
		"release": func() error {
			_, err := s.Release(t.Context(), []store.Claim{{Key: "line", Token: token, Lease: lease}})
			return err
		},
	} {
		failed := make(chan error, 1)
		go func() { failed <- do() }()
		l.awaitWaiting()
		l.cancel()
		if err := <-failed; !store.OutcomeUnknown(err) {
			t.Fatalf("%s: %v, want an unknown outcome", what, err)
		}
	}
	for what, find := range map[string]func() ([]store.Answer, error){
		"repeat": func() ([]store.Answer, error) { return s.Acquire(t.Context(), alone(ask)) },
		"check":  func() ([]store.Answer, error) { return s.Check(t.Context(), []store.Attempt{waiter.Attempt}) },
		"cancel": func() ([]store.Answer, error) { return s.Cancel(t.Context(), []store.Attempt{waiter.Attempt}) },
	} {
		t.Run(what, func(t *testing.T) {
			type found struct {
				answers []store.Answer
				err     error
			}
			l.standbys("nobody")
			answered := make(chan found, 1)
			go func() { answers, err := find(); answered <- found{answers, err} }()
			l.awaitWaiting()
			select {
			case f := <-answered:
				t.Fatalf("answered before the standby has it: %+v", f)
			default:
			}
			l.cancel()
			if f := <-answered; f.err == nil {
				t.Fatalf("answered without the standby: %+v", f)
			}
			l.found()
			f := found{}
			f.answers, f.err = find()
			want(t, answer(t, f.answers, f.err), store.Granted)
		})
	}
}

// A notification does not report such a grant either. The waiter gets a hint.
// Proves: trap cancelled wait for a standby
func TestAReleaseThatTookLongIsOnlyHinted(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory())
	url := own.NewDatabase(t)
	s := startWith(t, postgres.Config{
		URL: url, Timeout: patience, AutoMigrate: true,
	}, store.Identity{Namespace: "n", Instance: "a", Pod: "p"})
	b := startStore(t, url, store.Identity{Namespace: "n", Instance: "b", Pod: "p"})
	held, waiter := askFor("k", openLease(t, s, time.Hour)), askFor("k", openLease(t, b, time.Hour))
	token := want(t, acquire(t, s, held), store.Granted).Token
	want(t, enqueue(t, b, waiter), store.Queued)
	listener := newSpy(t, url, "b")

	l := leaveAlone(t, url)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Release(t.Context(), []store.Claim{{Key: "k", Token: token, Lease: held.Lease, Awaited: true}})
		failed <- err
	}()
	l.awaitWaiting()
	<-time.After(200 * time.Millisecond) // longer than the limit for a full notification
	l.cancel()
	if err := <-failed; !store.OutcomeUnknown(err) {
		t.Fatalf("%v, want an unknown outcome", err)
	}
	if heard := listener.next(t); !strings.HasPrefix(heard, "look:"+waiter.ID.String()[:18]) {
		t.Errorf("the notification is %q", heard)
	}
	l.found()
	want(t, check(t, b, waiter), store.Granted)
}
