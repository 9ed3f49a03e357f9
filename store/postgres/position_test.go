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

// An enqueue keeps the lock row only for as long as it works: its commit waits for no flush,
// which would have no end if the standby is away. A statement that grants anything waits
// (invariant 4), whatever it also enqueues.
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
	// Of the session that said so, nothing is left that later statements would see.
	if commit := postgres.Setting(t.Context(), t, s, "synchronous_commit"); commit != "on" {
		t.Errorf("synchronous_commit is %s in a session after somebody stood in line", commit)
	}
	for name, asks := range map[string][]store.Ask{
		"a grant":                {askFor("free", other)},
		"a grant before a place": {askFor("before", other), askFor("m", other)},
		"a grant behind a place": {askFor("m", other), askFor("z", other)},
		"a grant found again":    {askFor("m", other), mine},
	} {
		t.Run(name, func(t *testing.T) {
			answered := make(chan []store.Answer, 1)
			go func() {
				answers, _ := s.Enqueue(t.Context(), asks)
				answered <- answers
			}()
			poll(t, "it waits for the standby", func() bool {
				if len(answered) > 0 {
					t.Fatalf("told before the standby has it: %+v", <-answered)
				}
				return pgtest.Query[int64](t, url, "SELECT count(*) FROM pg_stat_activity WHERE "+inSyncRep) > 0
			})
			l.cancel()
			if answers := <-answered; answers != nil {
				t.Errorf("told without the standby: %+v", answers)
			}
		})
	}
}

// A place that moves to another instance, where the attempt is repeated, is flushed: the
// first one cancels no more then, and writes nothing when it finds that out. A crash that
// forgot the move would bring back a waiter for whom nobody waits.
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
	want(t, acquire(t, one, askFor("another", first)), store.Granted) // flushes that place

	writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
	if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ask.Lease = second
	moved, err := two.Enqueue(t.Context(), []store.Ask{ask})
	cancelled, err2 := one.Cancel(t.Context(), []store.Attempt{ask.Attempt})
	_ = syscall.Kill(writer, syscall.SIGKILL) // the server ends all other processes, and recovers
	want(t, answer(t, moved, err), store.Queued)
	want(t, answer(t, cancelled, err2), store.Gone)
	var keeper string
	poll(t, "the server has recovered", func() bool {
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
		t.Errorf("after the crash the place is kept by %q, which was told that it cancelled", keeper)
	}
}
