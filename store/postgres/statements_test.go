package postgres_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/postgres/queries"
)

// TestStatements counts the statements of each operation in its usual case.
func TestStatements(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	ctx := t.Context()
	counted := func(what string, want int64, do func() error) {
		t.Helper()
		cluster.ResetStatements(t, url)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := cluster.Statements(t, url, "%locksidecar%"); got != want {
			t.Errorf("%s: %d statements, want %d", what, got, want)
		}
	}

	const many = 1000
	one, all := askFor("one", lease), make([]store.Ask, many)
	for i := range all {
		all[i] = askFor(fmt.Sprintf("key:%d", i), lease)
		if i%2 == 0 {
			all[i].TTL = time.Hour
		}
	}
	var first, rest []store.Answer
	counted("acquire of a free key", 1, func() (err error) {
		first, err = s.Acquire(ctx, []store.Ask{one})
		return err
	})
	counted("acquire of a thousand free keys", 1, func() (err error) {
		rest, err = s.Acquire(ctx, all)
		return err
	})
	counted("held_cache", 2, func() error {
		_, err := s.Acquire(ctx, []store.Ask{askFor("one", lease)})
		return err
	})
	if _, err := s.Renew(ctx, []store.LeaseID{lease}); err != nil { // makes the connection
		t.Fatal(err)
	}
	counted("renewal", 1, func() error {
		_, err := s.Renew(ctx, []store.LeaseID{lease})
		return err
	})
	counted("enqueue", 1, func() error {
		_, err := s.Enqueue(ctx, []store.Ask{askFor("one", lease)})
		return err
	})
	counted("check of a wait", 1, func() error {
		_, err := s.Check(ctx, []store.Attempt{one.Attempt})
		return err
	})
	// A release with a hand-off is the release statement, the hand-off function, and the news in
	// the same flush.
	counted("release with hand-off", 3, func() error {
		_, err := s.Release(ctx, []store.Claim{{Key: "one", Token: first[0].Token, Lease: lease}})
		return err
	})
	var claims []store.Claim
	for i, a := range rest {
		if all[i].TTL == 0 {
			claims = append(claims, store.Claim{Key: all[i].Key, Token: a.Token, Lease: lease})
		}
	}
	counted("release of one lock", 1, func() error {
		_, err := s.Release(ctx, claims[:1])
		return err
	})
	counted("release of many locks", 1, func() error {
		_, err := s.Release(ctx, claims[1:])
		return err
	})
	counted("get", 1, func() error {
		_, err := s.Get(ctx, []string{"one", "two"})
		return err
	})
	counted("sweep with little to do", 4, func() error { return s.Sweep(ctx) })
}

// TestAReleaseExpectsWhatTheLastFound: after a hand-off, the next release of the key uses the
// statement for contended keys at once, until a release frees the key.
func TestAReleaseExpectsWhatTheLastFound(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	held := askFor("k", s.lease)
	want(t, acquire(t, s, held), store.Granted)
	released := func(state string, statements int64) {
		t.Helper()
		token := want(t, check(t, s, held), store.Granted).Token
		cluster.ResetStatements(t, s.url)
		if v := release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}); v.Status != store.Holds {
			t.Errorf("%s: status %d", state, v.Status)
		}
		if n := cluster.Statements(t, s.url, "%locksidecar%"); n != statements {
			t.Errorf("%s: %d statements, want %d", state, n, statements)
		}
	}
	for _, statements := range []int64{3, 2} {
		next := askFor("k", s.lease)
		want(t, enqueue(t, s, next), store.Queued)
		released("somebody waits", statements)
		held = next
	}
	released("nobody waits any more", 2)
	held = askFor("k", s.lease)
	want(t, acquire(t, s, held), store.Granted)
	released("nobody waited the last time", 1)
}

// TestRefusedAcquireWritesNothing: a conflict in a refused INSERT would lock the row, and the server would
// flush its log for that.
func TestRefusedAcquireWritesNothing(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", lease)), store.Granted)
	conn := connect(t, url)
	lockedBy := func() (xmax uint32) {
		if err := conn.QueryRow(t.Context(), "SELECT xmax FROM locksidecar.locks").Scan(&xmax); err != nil {
			t.Fatal(err)
		}
		return xmax
	}
	for range 3 {
		want(t, acquire(t, s, askFor("k", lease)), store.Held)
	}
	if xmax := lockedBy(); xmax != 0 {
		t.Errorf("transaction %d locked the row", xmax)
	}
}

// TestSweep checks the rows, which callers of the store cannot see.
// Proves: promise 3, trap clock before the wait
func TestSweep(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	conn := connect(t, url)
	count := func(table string) (n int) {
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM locksidecar."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	dying := openLease(t, s, time.Millisecond)
	dead, freed, kept := askFor("dead", lease), askFor("freed", lease), askFor("kept", lease)
	ttl := askFor("ttl", uuid.Nil)
	ttl.TTL = time.Millisecond
	want(t, acquire(t, s, dead), store.Granted)
	want(t, acquire(t, s, ttl), store.Granted)
	want(t, acquire(t, s, kept), store.Granted)
	token := want(t, acquire(t, s, freed), store.Granted).Token
	release(t, s, store.Claim{Key: "freed", Token: token, Lease: lease})
	// The row of a dead holder, and of a waiter whose enqueue a reap did not see.
	exec(t, conn, "UPDATE locksidecar.locks SET lease_id = $1 WHERE key = 'dead'", dying)
	exec(t, conn, `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		VALUES (gen_random_uuid(), 'n', 'kept', gen_random_uuid())`)

	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := count("locks"); got != 4 {
		t.Errorf("%d lock rows, want 4, because they were freed just now", got)
	}
	postgres.SweepAtOnce(s.Space)
	poll(t, "the sweep to leave only what is alive", func() bool {
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		return count("locks") == 1 && count("leases") == 1 && count("waiters") == 0
	})
	want(t, acquire(t, s, askFor("kept", lease)), store.Held)
}

// pagesRead returns the number of pages that the store's statements read meanwhile.
func pagesRead(t *testing.T, url string, do func() error) int64 {
	t.Helper()
	cluster.ResetStatements(t, url)
	if err := do(); err != nil {
		t.Fatal(err)
	}
	return pgtest.Query[int64](t, url, `
		SELECT coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)::bigint
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND s.query LIKE '/* locksidecar:%'`)
}

// The reap of a lock's own lease reads only the waiters of its key, because sidecars reap such
// leases one by one.
func TestReapLooksAtItsOwnKeyOnly(t *testing.T) {
	t.Parallel()
	const many = 10_000
	s := newScene(t)
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, lease_id, attempt_id, acquired_at, contended)
		SELECT 'n', 'w' || n, locksidecar.token_at(clock_timestamp()), $1, gen_random_uuid(), clock_timestamp(), true
		FROM generate_series(1, $2) n`, s.lease, many)
	exec(t, s.conn, `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'n', 'w' || n, $1 FROM generate_series(1, $2) n`, s.lease, many)
	revoke := func(lease store.LeaseID) func() error {
		return func() error { return s.Revoke(t.Context(), []store.LeaseID{lease}) }
	}
	if n := pagesRead(t, s.url, revoke(openLease(t, s, time.Hour))); n < many {
		t.Fatalf("%d pages for a lease with any keys: this does not test the rule", n)
	}

	const few = many / 10
	hold, next := s.holdFor("hold", time.Hour), askFor("hold", s.lease)
	token := want(t, acquire(t, s, hold), store.Granted).Token
	want(t, enqueue(t, s, next), store.Queued)
	release(t, s, store.Claim{Key: "hold", Token: token, Lease: hold.Lease})
	s.holdEnds()
	if n := pagesRead(t, s.url, func() error { want(t, check(t, s, next), store.Granted); return nil }); n > few {
		t.Errorf("%d pages for the end of a hold", n)
	}
	for name, hold := range map[string]time.Duration{"acquired": 0, "acquired with a hold": time.Microsecond} {
		byTTL, next := askFor(name, uuid.Nil), askFor(name, s.lease)
		byTTL.TTL, byTTL.MinHold = time.Hour, hold
		want(t, acquire(t, s, byTTL), store.Granted)
		want(t, enqueue(t, s, next), store.Queued)
		exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE NOT renewed")
		if n := pagesRead(t, s.url, func() error { want(t, check(t, s, next), store.Granted); return nil }); n > few {
			t.Errorf("%d pages for a bind:ttl lock, %s", n, name)
		}
	}
}

// A call that joins a long queue with many others costs as little as one that joins a short queue
// alone. The queue is read once. A plan from the time when the queue was empty does not read it
// once for each call.
func TestManyJoinALongQueue(t *testing.T) {
	t.Parallel()
	const long, many = 500, 200
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", lease)), store.Granted)
	conn := connect(t, url)
	exec(t, conn, "SET plan_cache_mode = force_generic_plan")
	join := func(n int) (read int64) {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var queued int
		if err := tx.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE state = 'queued') FROM locksidecar.ask(
				'n', clock_timestamp() + interval '1 minute', true, 'i', 'p', array_fill('k'::text, ARRAY[$1::integer]),
				ARRAY(SELECT gen_random_uuid() FROM generate_series(1, $1)), array_fill($2::uuid, ARRAY[$1]),
				array_fill(interval '0', ARRAY[$1]), array_fill(interval '0', ARRAY[$1]), array_fill(false, ARRAY[$1]),
				array_fill(''::text, ARRAY[$1]), array_fill(''::text, ARRAY[$1]), array_fill(NULL::text, ARRAY[$1]),
				array_fill(''::text, ARRAY[$1]), array_fill(NULL::integer, ARRAY[$1]), NULL)`, n, [16]byte(lease)).Scan(&queued); err != nil || queued != n {
			t.Fatalf("%d of %d wait: %v", queued, n, err)
		}
		if err := tx.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE schemaname = 'locksidecar' AND relname = 'waiters'`).Scan(&read); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return read
	}
	join(1) // the server makes its plans, and keeps them
	join(long)
	if read := join(many); read > long+5*many {
		t.Errorf("%d waiters were read for %d new ones behind %d", read, many, long)
	}
}

// An open snapshot keeps the rows of waiters that were served long ago. They do not make hand-offs
// and waits slower.
func TestServedWaitersAreNotReadAgain(t *testing.T) {
	t.Parallel()
	const long = 20_000
	s := newScene(t)
	// If the server analyzes the table while it has only dead rows, its plan reads all of them: see bench/LIMITS.md. Here it does not, by chance, either.
	exec(t, s.conn, "ALTER TABLE locksidecar.waiters SET (autovacuum_enabled = false)")
	exec(t, s.other, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	exec(t, s.other, "SELECT count(*) FROM locksidecar.meta")
	holder := askFor("k", s.lease)
	token := want(t, acquire(t, s, holder), store.Granted).Token
	exec(t, s.conn, `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'n', 'k', $1 FROM generate_series(1, $2::integer)`, s.lease, long)
	exec(t, s.conn, "DELETE FROM locksidecar.waiters")

	served := false
	turn := func() {
		t.Helper()
		next := askFor("k", s.lease)
		want(t, enqueue(t, s, next), store.Queued)
		c := store.Claim{Key: "k", Token: token, Lease: s.lease, Awaited: true}
		if served { // by its sidecar; this one had left before
			c.Served = []store.AttemptID{uuid.New()}
		}
		if v := release(t, s, c); v.Status != store.Holds {
			t.Fatalf("status %d", v.Status)
		}
		token = want(t, check(t, s, next), store.Granted).Token
	}
	turn() // passes over these rows, and stores that
	const turns, most = 10, 2000
	for _, served = range []bool{false, true} {
		pages := pagesRead(t, s.url, func() error {
			for range turns {
				turn()
			}
			return nil
		})
		if pages > most {
			t.Errorf("%d pages were read for %d waits and hand-offs, want at most %d (the releases name a served waiter: %v)", pages, turns, most, served)
		}
	}

	// Positions are counted from there, and a call that leaves gets the right one.
	leaving := []store.Ask{askFor("k", s.lease), askFor("k", s.lease)}
	for i, ask := range leaving {
		if a := want(t, enqueue(t, s, ask), store.Queued); a.Position != i+1 {
			t.Errorf("ask %d has the position %d", i, a.Position)
		}
	}
	answers, err := s.Cancel(t.Context(), []store.Attempt{leaving[1].Attempt, leaving[0].Attempt})
	if err != nil || answers[0].Position != 2 || answers[1].Position != 1 {
		t.Errorf("got %+v, %v", answers, err)
	}
}

// A waiter that was passed over, because its lease had expired, is served after its renewal, before
// waiters that came later.
// Proves: promise 5
func TestAWaiterThatWasPassedOverIsNotForgotten(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	slow := openLease(t, s, time.Hour)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	passed, next := askFor("k", slow), askFor("k", s.lease)
	want(t, enqueue(t, s, passed), store.Queued)
	want(t, enqueue(t, s, next), store.Queued)
	// The waiter is being renewed at this moment, so it cannot be reaped.
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", slow)
	exec(t, s.other, "COMMIT")
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", slow)
	exec(t, s.conn, "SELECT locksidecar.hand_off('{n}', '{k}', ARRAY[$1::uuid], ARRAY[$2::bigint], '{\"\"}')", s.lease, token)
	exec(t, s.other, "COMMIT")
	token = want(t, check(t, s, next), store.Granted).Token
	want(t, check(t, s, passed), store.Queued)
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	want(t, check(t, s, passed), store.Granted)
}

// After the sequence of positions is set back, all waiters are still served, whether they queued alone or with
// others in one call.
func TestRestartedPositionsAreServed(t *testing.T) {
	t.Parallel()
	for _, together := range []int{1, 4} {
		t.Run(strconv.Itoa(together), func(t *testing.T) {
			s := newScene(t)
			token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
			for range 2 {
				asks := make([]store.Ask, together)
				for i := range asks {
					asks[i] = askFor("k", s.lease)
				}
				answers, err := s.Enqueue(t.Context(), asks)
				if err != nil {
					t.Fatal(err)
				}
				for i, next := range asks {
					want(t, answers[i], store.Queued)
					release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
					token = want(t, check(t, s, next), store.Granted).Token
				}
				exec(t, s.conn, "ALTER TABLE locksidecar.waiters ALTER COLUMN id RESTART")
			}
		})
	}
}

// Waiters that leave together learn their positions, and the queue is counted once.
func TestManyLeaveALongQueue(t *testing.T) {
	t.Parallel()
	const long, many = 1000, 500
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	asks := make([]store.Ask, long)
	for i := range asks {
		asks[i] = askFor("k", s.lease)
	}
	if _, err := s.Enqueue(t.Context(), asks); err != nil {
		t.Fatal(err)
	}
	leaving, grants := make([]store.Attempt, many), make([][16]byte, many)
	for i := range leaving {
		leaving[i] = asks[2*i+1].Attempt
		grants[i] = leaving[i].ID
	}

	tx, err := s.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), queries.All()["cancel_many"], "n", grants, time.Now().Add(time.Hour), "i"); err != nil {
		t.Fatal(err)
	}
	var read int
	if err := tx.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
		WHERE schemaname = 'locksidecar' AND relname = 'waiters'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := long + 5*many; read > most {
		t.Errorf("%d waiters were read for %d that leave a queue of %d, want at most %d", read, many, long, most)
	}

	answers, err := s.Cancel(t.Context(), leaving)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if want(t, a, store.Gone); a.Position != 2*i+2 {
			t.Errorf("attempt %d had the position %d, want %d", i, a.Position, 2*i+2)
		}
	}
}
