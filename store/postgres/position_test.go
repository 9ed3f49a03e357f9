package postgres_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// An enqueue's commit does not wait for a flush, so that it locks the row only briefly. A flush has
// no time limit if the standby is away. A statement that also grants a lock waits (promise 4).
// Proves: promise 4
func TestOnlyQueueingSkipsTheFlush(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory())
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	mine := askFor("mine", other)
	for _, ask := range []store.Ask{mine, askFor("m", lease)} {
		want(t, acquire(t, s, ask), store.Granted)
	}
	want(t, enqueue(t, s, askFor("m", other)), store.Queued) // marks the row

	l := leaveAlone(t, url)
	for _, waits := range [][]store.Ask{{askFor("m", other)}, {askFor("m", other), askFor("mine", lease)}} {
		answers, err := s.Enqueue(t.Context(), waits)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			want(t, a, store.Queued)
		}
	}
	// The session has no setting left that would affect later statements.
	if commit := postgres.Setting(t.Context(), t, s, "synchronous_commit"); commit != "on" {
		t.Errorf("synchronous_commit is %s in a session after an enqueue", commit)
	}
	for name, asks := range map[string][]store.Ask{
		"a grant":                     {askFor("free", other)},
		"a grant before a queued ask": {askFor("before", other), askFor("m", other)},
		"a grant after a queued ask":  {askFor("m", other), askFor("z", other)},
		"a grant found again":         {askFor("m", other), mine},
	} {
		t.Run(name, func(t *testing.T) {
			answered := make(chan []store.Answer, 1)
			go func() {
				answers, _ := s.Enqueue(t.Context(), asks)
				answered <- answers
			}()
			poll(t, "a wait for the standby", func() bool {
				if len(answered) > 0 {
					t.Fatalf("answered before the standby has it: %+v", <-answered)
				}
				return pgtest.Query[int64](t, url, "SELECT count(*) FROM pg_stat_activity WHERE "+inSyncRep) > 0
			})
			l.cancel()
			if answers := <-answered; answers != nil {
				t.Errorf("answered without the standby: %+v", answers)
			}
		})
	}
}

// An attempt that is repeated at another instance moves its queue position, and this change is
// flushed. The first instance does not cancel afterwards. A crash that lost the change would bring
// back a waiter without a call.
// Proves: promise 7
func TestMovedPositionIsFlushed(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory())
	url := own.NewDatabase(t)
	one := startStore(t, url, store.Identity{Namespace: "n", Instance: "one", Pod: "p"})
	two := startStore(t, url, store.Identity{Namespace: "n", Instance: "two", Pod: "p"})
	first, second := openLease(t, one, time.Hour), openLease(t, two, time.Hour)
	want(t, acquire(t, one, askFor("k", first)), store.Granted)
	ask := askFor("k", first)
	ask.TTL = time.Hour
	want(t, enqueue(t, one, ask), store.Queued)
	want(t, acquire(t, one, askFor("another", first)), store.Granted) // flushes the queue position

	writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
	if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ask.Lease = second
	moved, err := two.Enqueue(t.Context(), []store.Ask{ask})
	cancelled, err2 := one.Cancel(t.Context(), []store.Attempt{ask.Attempt})
	_ = syscall.Kill(writer, syscall.SIGKILL) // ends all processes of the server, which then recovers
	want(t, answer(t, moved, err), store.Queued)
	want(t, answer(t, cancelled, err2), store.Gone)
	var keeper string
	poll(t, "the server to recover", func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close(t.Context()) }()
		return conn.QueryRow(t.Context(), `SELECT coalesce(max(l.instance), '')
			FROM locksidecar.waiters w JOIN locksidecar.leases l ON l.id = w.lease_id
			WHERE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walwriter' AND pid <> $1)`, writer).Scan(&keeper) == nil &&
			keeper != ""
	})
	if keeper != "two" {
		t.Errorf("after the crash the queue position belongs to %q, whose cancel was confirmed", keeper)
	}
}
