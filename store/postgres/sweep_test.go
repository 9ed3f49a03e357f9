package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// freed makes rows of keys that have been free for this time.
func (s *scene) freed(prefix string, rows int, since time.Duration) {
	s.Helper()
	exec(s.T, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, acquired_at, freed_at)
		SELECT 'n', $1 || n, locksidecar.token_at(clock_timestamp() - $3::interval), clock_timestamp() - $3::interval, clock_timestamp() - $3::interval
		FROM generate_series(1, $2::integer) n`, prefix, rows, since)
}

// sweeps returns what the steps of the sweep read since the statistics were reset.
func (s *scene) sweeps() (steps, pages int64) {
	s.Helper()
	const from = ` FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND s.query LIKE '/* locksidecar:sweep%'`
	return pgtest.Query[int64](s.T, s.url, "SELECT coalesce(sum(calls), 0)::bigint"+from),
		pgtest.Query[int64](s.T, s.url, "SELECT coalesce(max((shared_blks_hit + shared_blks_read) / calls), 0)::bigint"+from)
}

// A sweep reads a large table in small parts. Otherwise its statements would time out, and each
// sweep would begin at the front.
func TestASweepReadsALargeTableInParts(t *testing.T) {
	t.Parallel()
	const rows = 50_000
	s := newScene(t)
	s.freed("young:", rows, time.Minute)
	postgres.SweepBy(s.Store, 0)
	table := pgtest.Query[int64](t, s.url, "SELECT pg_relation_size('locksidecar.locks') / 8192")
	cluster.ResetStatements(t, s.url)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	steps, pages := s.sweeps()
	if pages > table/5 {
		t.Errorf("one of %d statements read %d pages of a table with %d", pages, steps, table)
	}
	if steps < table/32 {
		t.Errorf("%d steps for %d pages: a part was left out", steps, table)
	}
}

// One sweep forgets all old rows, however many there are.
func TestASweepForgetsAll(t *testing.T) {
	t.Parallel()
	const old, young = 50_000, 1000
	s := newScene(t)
	s.freed("young:", young, time.Minute)
	s.freed("old:", old, 25*time.Hour)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("locks", "true"); n != young {
		t.Errorf("%d rows are left, want only the %d young ones", n, young)
	}
}

// A sweep continues where the last one ended, even if another sidecar made it.
func TestASweepGoesOnWhereTheLastEnded(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	s := newScene(t)
	s.freed("young:", rows, time.Minute)
	postgres.SweepBy(s.Store, 0)
	exec(t, s.conn, "UPDATE locksidecar.sweep SET walks = 'locks', page = 320, began = clock_timestamp()")
	cluster.ResetStatements(t, s.url)
	table := pgtest.Query[int64](t, s.url, "SELECT pg_relation_size('locksidecar.locks') / 8192")
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps, _ := s.sweeps(); steps != (table-320+31)/32+1 {
		t.Errorf("%d steps for the pages from 320 to %d", steps, table)
	}

	// The end of a lap is the start of the next one.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil && s.count("sweep", "walks = 'locks' AND page > 0") == 0 {
			time.Sleep(time.Millisecond) // the pause of a poll
		}
	}()
	if err := s.Sweep(ctx); err == nil {
		t.Fatal("the sweep should have been interrupted")
	}
	if n := s.count("sweep", "page = 0"); n != 0 {
		t.Error("after an interruption, the sweep begins at the front")
	}
}

// A table that was made smaller meanwhile, or has no pages, ends the lap.
func TestASweepWrapsAround(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.freed("old:", 1, 25*time.Hour)
	exec(t, s.conn, "UPDATE locksidecar.sweep SET walks = 'locks', page = 1000000")
	for range 2 {
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.count("locks", "true"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Sidecars share the sweep. A lap of one sidecar is not repeated by others, and they do not wait
// while it runs.
func TestSidecarsShareASweep(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	var sidecars []*postgres.Store
	for i := range 3 {
		s := startWith(t, postgres.Config{
			URL: url, AutoMigrate: true,
		}, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"})
		postgres.SweepBy(s, time.Minute) // a lap takes one step
		sidecars = append(sidecars, s)
	}
	conn := connect(t, url)
	sweepAll := func(want int64) {
		t.Helper()
		cluster.ResetStatements(t, url)
		for _, s := range sidecars {
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := cluster.Statements(t, url, "/* locksidecar:sweep%"); n != want {
			t.Errorf("%d statements, want %d", n, want)
		}
	}
	sweepAll(4) // the first sidecar takes a step, and does the tasks without steps
	sweepAll(3)
	exec(t, conn, "UPDATE locksidecar.sweep SET due_at = clock_timestamp() + interval '1 day'")
	sweepAll(4) // the clock was set back
	exec(t, conn, "UPDATE locksidecar.sweep SET due_at = '-infinity'")
	letGo := lock(t, connect(t, url), "SELECT FROM locksidecar.sweep FOR UPDATE")
	sweepAll(3)
	letGo()
	sweepAll(4)
	exec(t, conn, "DELETE FROM locksidecar.sweep")
	sweepAll(4) // the first sidecar inserts the missing row, the second makes the lap
}

// lock starts a transaction with a statement, and keeps it open.
func lock(t *testing.T, conn *pgx.Conn, sql string, args ...any) (letGo func()) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// meetings are operations on a key while it is being forgotten.
var meetings = map[string]func(s *scene, key string) int64{
	"acquire": func(s *scene, key string) int64 {
		return want(s.T, acquire(s.T, s, askFor(key, s.lease)), store.Granted).Token
	},
	"acquire, bind:ttl": func(s *scene, key string) int64 {
		ask := askFor(key, uuid.Nil)
		ask.TTL = time.Hour
		return want(s.T, acquire(s.T, s, ask), store.Granted).Token
	},
	"acquire of two": func(s *scene, key string) int64 {
		answers, err := s.Acquire(s.Context(), []store.Ask{askFor(key, s.lease), askFor("z", s.lease)})
		if err != nil {
			s.Fatal(err)
		}
		return want(s.T, answers[0], store.Granted).Token
	},
	"enqueue": func(s *scene, key string) int64 {
		return want(s.T, enqueue(s.T, s, askFor(key, s.lease)), store.Granted).Token
	},
	"watch": func(s *scene, key string) int64 {
		if err := s.Watch(s.Context(), []string{key}, s.lease); err != nil {
			s.Fatal(err)
		}
		if n := s.count("locks", "watched"); n != 1 {
			s.Errorf("%d keys are watched, want 1", n)
		}
		return want(s.T, acquire(s.T, s, askFor(key, s.lease)), store.Granted).Token
	},
}

// A call for a key that is being forgotten waits, and its token is greater than the forgotten one
// (promise 3).
// Proves: trap clock before the wait
func TestACallMeetsTheForgettingOfItsKey(t *testing.T) {
	t.Parallel()
	for name, call := range meetings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.freed("k", 1, 25*time.Hour)
			before := pgtest.Query[int64](t, s.url, "SELECT token FROM locksidecar.locks")
			letGo := lock(t, s.other, "SELECT FROM locksidecar.sweep_step('10 s', '1 hour', '0', '1 s')")
			done := make(chan int64, 1)
			go func() {
				defer close(done)
				done <- call(s, "k1")
			}()
			awaitBlocked(t, s.url)
			letGo()
			if token := <-done; token <= before {
				t.Errorf("token %d after %d", token, before)
			}
			if n := s.count("locks", "key = 'k1' AND lease_id IS NOT NULL"); n != 1 {
				t.Errorf("%d rows of the key are held, want 1", n)
			}
		})
	}
}

// The other order: a sweep passes over a key that a call is about to take or to watch, and does not
// wait. After the call has committed, the sweep must not forget the key.
// Proves: trap clock before the wait
func TestTheForgettingOfAKeyMeetsACall(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"acquire": `UPDATE locksidecar.locks SET lease_id = $1, attempt_id = $1, token = token + 1, freed_at = NULL`,
		"enqueue": `SELECT FROM locksidecar.ask('n', 'infinity', true, 'i', 'p', '{k1}', ARRAY[gen_random_uuid()], ARRAY[$1::uuid],
			'{0}', '{0}', '{f}', '{""}', '{""}', '{NULL}', '{""}', '{NULL}', NULL)`,
		"watch": `SELECT FROM locksidecar.watch('n', 'infinity', '{k1}', $1, 'i')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.freed("k", 2, 25*time.Hour)
			letGo := lock(t, s.other, sql+map[bool]string{true: " WHERE key = 'k1'"}[name == "acquire"], [16]byte(s.lease))
			began := time.Now()
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the sweep took %s, so it has waited", took)
			}
			letGo()
			if n := s.count("locks", "key = 'k2'"); n != 0 {
				t.Error("the other key was not forgotten")
			}
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := s.count("locks", "key = 'k1' AND (lease_id IS NOT NULL OR watched)"); n != 1 {
				t.Errorf("%d rows of the key are left, want 1", n)
			}
		})
	}
}

// Vacuum does not truncate tables from which many rows were deleted, because that would lock out
// all other statements.
func TestVacuumDoesNotTruncate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.freed("k", 10_000, 25*time.Hour)
	exec(t, s.conn, `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'n', 'k' || n, gen_random_uuid() FROM generate_series(1, 10000) n`)
	exec(t, s.conn, `INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
		SELECT gen_random_uuid(), 'i', 'p', false, '1 s', '-infinity' FROM generate_series(1, 10000)`)
	for _, table := range []string{"locks", "waiters", "leases"} {
		size := func() int64 {
			return pgtest.Query[int64](t, s.url, "SELECT pg_relation_size('locksidecar."+table+"')")
		}
		before := size()
		exec(t, s.conn, "DELETE FROM locksidecar."+table)
		exec(t, s.conn, "VACUUM locksidecar."+table)
		if after := size(); after < before {
			t.Errorf("%s was %d bytes, and is %d", table, before, after)
		}
	}
}

// A free key keeps its row for much longer than any statement can take (promise 3).
// Proves: trap clock before the wait
func TestForgetAfterIsFarLongerThanTimeout(t *testing.T) {
	t.Parallel()
	config := postgres.Config{URL: "postgres://x/y", Timeout: time.Second, ForgetAfter: 10 * time.Second}
	if _, err := postgres.NewSpace(config); err != nil {
		t.Error(err)
	}
	config.ForgetAfter--
	if _, err := postgres.NewSpace(config); err == nil {
		t.Errorf("%s was accepted", config.ForgetAfter)
	}
}
