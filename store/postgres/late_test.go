package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Trap: a statement may stay in a buffer and arrive after its withdrawal. Here each arrives an hour
// late. It must fail without effect.
// Proves: promise 9, trap late statement
func TestLateStatementsDoNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	session, byTTL := askFor("session", s.lease), askFor("ttl", s.lease)
	byTTL.TTL = time.Hour
	want(t, acquire(t, s, session), store.Granted)
	token := want(t, acquire(t, s, byTTL), store.Granted).Token
	waiter := askFor("ttl", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	statementsThatTake["rows"].makeRows(s, askFor("free", s.lease))

	table := func() string {
		return pgtest.Query[string](t, s.url, `SELECT
			(SELECT string_agg(l::text, ';' ORDER BY key) FROM locksidecar.locks l WHERE lease_id IS NOT NULL)
			|| (SELECT string_agg(w::text, ';' ORDER BY id) FROM locksidecar.waiters w)
			|| (SELECT string_agg(o.id::text || o.ttl::text, ';' ORDER BY o.id) FROM locksidecar.leases o)`)
	}
	before := table()
	// A store whose clock is wrong reads the database's clock, and again after another failure. So
	// each case has its own store, without such a read in flight.
	wrong := func() {
		s.Store = startStore(t, s.url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
		postgres.SetClock(s.Store, -time.Hour)
	}
	newTTL := askFor("new ttl", s.lease)
	newTTL.TTL = time.Hour
	for name, late := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, []store.Ask{askFor("new", s.lease)})
			return err
		},
		"acquire bind:ttl": func(ctx context.Context) error { _, err := s.Acquire(ctx, []store.Ask{newTTL}); return err },
		"acquire many": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, []store.Ask{askFor("new 1", s.lease), askFor("new 2", s.lease)})
			return err
		},
		"acquire row": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, statementsThatTake["row"].of(s, askFor("free", s.lease)))
			return err
		},
		"acquire rows": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, statementsThatTake["rows"].of(s, askFor("free", s.lease)))
			return err
		},
		"enqueue": func(ctx context.Context) error {
			_, err := s.Enqueue(ctx, []store.Ask{askFor("session", s.lease)})
			return err
		},
		"enqueue free": func(ctx context.Context) error {
			_, err := s.Enqueue(ctx, []store.Ask{askFor("new 3", s.lease)})
			return err
		},
		"amend": func(ctx context.Context) error {
			_, err := s.Amend(ctx, []store.Change{{Key: "ttl", Token: token, TTL: time.Minute}})
			return err
		},
		"withdraw": func(ctx context.Context) error { return withdraw(ctx, s, session.Attempt) },
	} {
		wrong()
		if err := late(t.Context()); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("%s: %v, want a failure that did nothing", name, err)
		}
		if after := table(); after != before {
			t.Errorf("%s changed\n%s\nto\n%s", name, before, after)
		}
		// The store reads the database's clock again.
		poll(t, "the clock to be right again", func() bool {
			_, err := s.Amend(t.Context(), []store.Change{{Key: "ttl", Token: token, SetData: true}})
			return err == nil
		})
	}
	for name, waits := range map[string][]store.Attempt{
		"one": {waiter.Attempt}, "many": {waiter.Attempt, {Key: "nothing", ID: uuid.New()}},
	} {
		wrong()
		if answers, err := s.Cancel(t.Context(), waits); err == nil && answers[0].Outcome == store.Gone {
			t.Errorf("cancel %s: %+v", name, answers[0])
		}
		want(t, check(t, s, waiter), store.Queued)
	}
}

// The same holds for a statement that arrived in time and then waited too long for a row: for one that
// somebody inserts, or for a free one that somebody has locked, as a withdrawal does.
// Proves: promise 9, trap now()
func TestStatementsThatWaitedTooLongDoNothing(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		for what, lock := range map[string]string{
			"an insertion": `INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
				VALUES ('n', 'k', locksidecar.token_at(clock_timestamp()), clock_timestamp())`,
			"a free row": `SELECT FROM locksidecar.locks WHERE key = 'k' FOR UPDATE`,
		} {
			t.Run(name+" behind "+what, func(t *testing.T) {
				t.Parallel()
				// On a busy machine the statement may arrive too late. Then it gets more time.
				inTime := 300 * time.Millisecond
				for !waitsTooLong(t, inTime, lock, take) {
					if inTime *= 2; inTime > 3*time.Second { // the server waits for a row for 4 s
						t.Fatal("the statement was always too late")
					}
				}
			})
		}
	}
}

// waitsTooLong sends a statement with a time limit that ends while it waits for a row. The result
// is false if the statement arrived too late to wait.
func waitsTooLong(t *testing.T, inTime time.Duration, lock string, take func(*scene, store.Ask) ([]store.Answer, error)) bool {
	t.Helper()
	s := newScene(t)
	if strings.HasPrefix(lock, "SELECT") {
		statementsThatTake["rows"].makeRows(s, askFor("k", s.lease))
	}
	exec(t, s.other, "BEGIN")
	exec(t, s.other, lock)
	postgres.SetClock(s.Store, inTime-5*time.Second) // the store's timeout
	failed := make(chan error, 1)
	go func() { _, err := take(s, askFor("k", s.lease)); failed <- err }()
	poll(t, "the statement to wait or end", func() bool { return len(failed) > 0 || isBlocked(t, s.url) })
	waited := len(failed) == 0
	poll(t, "the end of its time", func() bool {
		return len(failed) > 0 || pgtest.Query[bool](t, s.url, `SELECT coalesce(bool_or(clock_timestamp() > xact_start + $1::interval), false)
			FROM pg_stat_activity WHERE `+blocked, inTime+100*time.Millisecond)
	})
	exec(t, s.other, "COMMIT")
	if err := <-failed; !store.Unavailable(err) {
		t.Errorf("%v, want a failure", err)
	}
	if grant, lease, _ := holder(t, s.conn, "k"); lease != uuid.Nil {
		t.Errorf("granted after its time: %s", grant)
	}
	return waited
}

// Trap: the opening of a lease stays in a buffer and arrives after the revocation. Its locks would
// be held again. A late opening has no effect.
// Proves: promise 9, trap late statement
func TestALeaseIsNotOpenedTooLate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	revoked := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", revoked)), store.Granted)
	if err := s.Revoke(t.Context(), []store.LeaseID{revoked}); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]store.LeaseID{"new": uuid.New(), "revoked": revoked} {
		// This store has not read the database's clock after a failure.
		late := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
		postgres.SetClock(late, -time.Hour)
		err := late.OpenLeases(t.Context(), []store.NewLease{{ID: id, TTL: time.Hour}})
		if !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("%s: %v, want a failure that did nothing", name, err)
		}
		if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE id = $1", id); n != 0 {
			t.Errorf("%s: the lease was opened", name)
		}
	}
	if locks, err := s.Get(t.Context(), []string{"k"}); err != nil || locks[0].Held {
		t.Errorf("the locks of a revoked lease: %+v, %v", locks, err)
	}
}

// If the clock was wrong, the store reads it again, and the next opening is in time.
func TestALateOpeningLooksAtTheClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	postgres.SetClock(s.Store, -time.Hour)
	poll(t, "a new lease", func() bool {
		return s.OpenLeases(t.Context(), []store.NewLease{{ID: uuid.New(), TTL: time.Hour}}) == nil
	})
}

// A lease that is past its expiry is not opened again.
func TestOpenExpired(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	lease := openLease(t, s, time.Hour)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp()")
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}); err == nil {
		t.Error("an expired lease was opened again")
	}
}

// A lease ends while a release waits for a row. The release decides after its wait.
// Proves: promise 1, trap now()
func TestAReleaseThatWaitedJudgesTheLeaseAfterwards(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	short := openLease(t, s, time.Hour)
	var claims []store.Claim
	for _, key := range []string{"a", "b"} {
		token := want(t, acquire(t, s, askFor(key, short)), store.Granted).Token
		claims = append(claims, store.Claim{Key: key, Token: token, Lease: short})
	}
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT FROM locksidecar.locks WHERE key = 'a' FOR UPDATE")
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 s' WHERE id = $1", short)
	verdicts := make(chan []store.Verdict, 1)
	go func() {
		v, err := s.Release(t.Context(), claims)
		if err != nil {
			t.Error(err)
		}
		verdicts <- v
	}()
	awaitBlocked(t, s.url)
	poll(t, "the lease expires", func() bool {
		return pgtest.Query[bool](t, s.url, "SELECT expires_at <= clock_timestamp() FROM locksidecar.leases WHERE id = $1", short)
	})
	exec(t, s.other, "ROLLBACK")
	for i, v := range <-verdicts {
		if v.Status != store.Expired {
			t.Errorf("%s: status %d, want expired", claims[i].Key, v.Status)
		}
	}
}

// A waiter of the same instance gets its news when the release's answer arrives. The remaining time
// of the grant counts from the call to the server.
// Proves: promise 2
func TestTheNewsOfALateAnswer(t *testing.T) {
	t.Parallel()
	const late = 300 * time.Millisecond
	proxy := pgproxy.Start(t, cluster.NewDatabase(t))
	s := newListener(t, proxy.URL(), "b", postgres.ListenAuto)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter := askFor("k", s.lease)
	waiter.TTL = time.Minute
	want(t, enqueue(t, s, waiter), store.Queued)
	for _, statement := range []string{"release_one", "release"} {
		proxy.On(statement, pgproxy.AfterCommandComplete, func() { time.Sleep(late) })
	}
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	if told := s.awaitGrant(t, waiter); told.ExpiresIn > waiter.TTL-late {
		t.Errorf("%s are left of %s, but the answer was late by %s", told.ExpiresIn, waiter.TTL, late)
	}
}
