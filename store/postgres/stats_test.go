package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// hold writes n locks of n types, each held a little longer than the one before. The first types
// have several locks.
func (s *scene) hold(t *testing.T, n int, heldFor string) {
	t.Helper()
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, lease_id, attempt_id, acquired_at)
		SELECT 'n', 'type' || n || ':' || m, locksidecar.token_at(clock_timestamp()), $1, gen_random_uuid(), clock_timestamp() - $3::interval
		FROM generate_series(1, $2) n, generate_series(1, greatest(1, 11 - n)) m`, s.lease, n, heldFor)
}

func TestStatsHaveAnEnd(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.hold(t, store.StatLines+7, "1 hour")
	exec(t, s.conn, `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'n', 'nobody' || n || ':holds', $1 FROM generate_series(1, 5) n`, s.lease)
	found, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Types) != store.StatLines+1 || len(found.Pods) != 1 {
		t.Fatalf("%d types and %d pods", len(found.Types), len(found.Pods))
	}
	for i := range 10 {
		if found.Types[i].Held != int64(10-i) {
			t.Errorf("line %d: %+v", i, found.Types[i])
		}
	}
	last := found.Types[store.StatLines]
	if last.Name != store.Others || last.Namespace != "" || last.Held != 7 || last.Waiting != 5 ||
		last.Average < time.Hour || last.Average > 2*time.Hour || last.Longest < time.Hour || last.Longest > 2*time.Hour {
		t.Errorf("the others: %+v", last)
	}
	if pod := found.Pods[0]; pod.Namespace != "n" || pod.Name != "p" || pod.Held != store.StatLines+7+45 || pod.Waiting != 0 {
		t.Errorf("the pod: %+v", pod)
	}
}

// The sum of these times is too long for a duration.
func TestStatsOfVeryLongHolds(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.hold(t, 1, "200 years") // ten times
	found, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := found.Types[0]; got.Average < 199*365*24*time.Hour || got.Average > got.Longest {
		t.Errorf("got %+v", got)
	}
}

// A role with the right to read can count. It need not read attempt ids, which prove hand-offs.
func TestStatsNeedNoMoreThanReading(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	writer := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	want(t, acquire(t, writer, askFor("job:1", openLease(t, writer, time.Hour))), store.Granted)
	s := startWith(t, postgres.Config{
		URL: pgtest.As(url, pgroles.Reader),
	}, store.Identity{Namespace: "other", Instance: "j", Pod: "q"})
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: uuid.New(), TTL: time.Minute}}); err == nil {
		t.Fatal("the role may write: this does not test the rule")
	}
	found, err := s.Stats(t.Context())
	if err != nil || len(found.Types) != 1 || found.Types[0].Namespace != "n" || found.Types[0].Name != "job" || found.Types[0].Held != 1 {
		t.Errorf("got %+v, %v", found, err)
	}
}

// All sidecars of a fleet take part in elections, so a lost election must not write to the
// database.
func TestALostElectionWritesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other := startStore(t, s.url, store.Identity{Namespace: "n2", Instance: "other", Pod: "p"})
	if e, err := s.Elect(t.Context(), time.Hour); err != nil || !e.Elected {
		t.Fatal(e, err)
	}
	row := func() (found string) {
		return pgtest.Query[string](t, s.url, "SELECT (ctid, xmin, xmax, instance, elected_until)::text FROM locksidecar.fleet")
	}
	before := row()
	for _, term := range []time.Duration{time.Hour, 0, -time.Hour} {
		if e, err := other.Elect(t.Context(), term); err != nil || e.Elected || e.Left <= time.Hour/2 {
			t.Errorf("got %+v, %v", e, err)
		}
	}
	if after := row(); after != before {
		t.Errorf("the row was %s, and is %s", before, after)
	}
}

// An election that waited for the row decides by the row's new content, and returns this content.
func TestAnElectionThatWaitedIsLost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	exec(t, s.conn, "BEGIN")
	exec(t, s.conn, "UPDATE locksidecar.fleet SET instance = 'first', elected_until = clock_timestamp() + interval '1 hour'")
	var group sync.WaitGroup
	group.Go(func() {
		if e, err := s.Elect(context.Background(), time.Minute); err != nil || e.Elected || e.Left <= time.Minute {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	poll(t, "the election to wait for the row", func() bool {
		return pgtest.Query[bool](t, s.url, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%locksidecar:elect%')`)
	})
	exec(t, s.conn, "COMMIT")
	group.Wait()
}

func TestLockedElectionSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	impatient := startWith(t, postgres.Config{URL: s.url}, store.Identity{Namespace: "n", Instance: "j", Pod: "p"})
	exec(t, s.conn, "BEGIN")
	exec(t, s.conn, "SELECT FROM locksidecar.fleet FOR UPDATE")
	if e, err := impatient.Elect(t.Context(), time.Minute); err == nil || e.Elected || !strings.Contains(err.Error(), "locked") {
		t.Errorf("got %+v, %v", e, err)
	}
	exec(t, s.conn, "ROLLBACK")
	if e, err := impatient.Elect(t.Context(), time.Minute); err != nil || !e.Elected {
		t.Errorf("got %+v, %v", e, err)
	}
}

// A release found only expired waiters, and one of them renews just then. The second statement
// hands the lock to it, and still names the release.
func TestHandOffByTheSecondStatementNamesTheRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	waits := openLease(t, s, time.Hour)
	first, second := askFor("k", s.lease), askFor("k", waits)
	token := want(t, acquire(t, s, first), store.Granted).Token
	want(t, enqueue(t, s, second), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", waits)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", waits)
	var group sync.WaitGroup
	group.Go(func() {
		release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease, Traceparent: "00-the-release"})
	})
	poll(t, "the release to wait for the waiter's lease", func() bool {
		return pgtest.Query[bool](t, s.url, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%locksidecar:reap_one%')`)
	})
	exec(t, s.other, "COMMIT")
	group.Wait()
	if a := want(t, check(t, s, second), store.Granted); a.HandedBy != "00-the-release" {
		t.Errorf("handed over by %q", a.HandedBy)
	}
}

// Operators see in the row which release handed a lock over.
func TestHandedByIsInTheRow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, second := askFor("k", s.lease), askFor("k", s.lease)
	token := want(t, acquire(t, s, first), store.Granted).Token
	want(t, enqueue(t, s, second), store.Queued)
	row := func() string {
		return pgtest.Query[string](t, s.url, "SELECT handed_by FROM locksidecar.locks")
	}
	if got := row(); got != "" {
		t.Errorf("%q before the hand-off", got)
	}
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease, Traceparent: "00-the-release"})
	if got := row(); got != "00-the-release" {
		t.Errorf("%q after the hand-off", got)
	}
}

// A count may take seconds. Several counts at a time leave a connection for acquires.
func TestStatsLeaveAConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	exec(t, s.conn, "BEGIN")
	exec(t, s.conn, "LOCK TABLE locksidecar.waiters") // an acquire of a free key does not use this table
	var counts sync.WaitGroup
	count := func() {
		if _, err := s.Stats(t.Context()); err != nil {
			t.Error(err)
		}
	}
	counts.Go(count)
	poll(t, "the counting", func() bool {
		return pgtest.Query[int64](t, s.url, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%:stats *%' AND wait_event_type = 'Lock'`) == 1
	})
	counts.Go(count)
	for i := range 20 {
		// An acquire that waited for the counts would wait until they fail.
		if _, err := s.Acquire(t.Context(), []store.Ask{askFor("job:"+string(rune('a'+i)), s.lease)}); err != nil {
			t.Error(err)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	waiting, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Stats(waiting); err == nil || store.OutcomeUnknown(err) {
		t.Error(err)
	}
	exec(t, s.conn, "ROLLBACK")
	counts.Wait()
}
