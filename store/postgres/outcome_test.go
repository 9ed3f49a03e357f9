package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// skipFor returns an ask of a skip-waiter.
func skipFor(key string, lease store.LeaseID) store.Ask {
	ask := askFor(key, lease)
	ask.Skip = true
	return ask
}

// success returns a claim with a success.
func success(key string, token int64, lease store.LeaseID) store.Claim {
	return store.Claim{Key: key, Token: token, Lease: lease, Outcome: store.Success, Result: []byte(`1`)}
}

// releaseIn releases a lock with a success in a session's open transaction.
func releaseIn(t *testing.T, conn *pgx.Conn, key string, token int64, lease store.LeaseID) {
	t.Helper()
	exec(t, conn, `SELECT locksidecar.release('n', 'i', ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::uuid], '{false}',
		'{true}', '{1}', '{false}', '{t}', '{""}')`, key, token, lease)
}

// waiterRows returns the number of rows of a waiting attempt.
func waiterRows(t *testing.T, url string, grant store.AttemptID) int64 {
	t.Helper()
	return pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.waiters WHERE attempt_id = $1", grant)
}

// A success sees an enqueue that is in flight.
func TestASuccessSeesAnEnqueueUnderWay(t *testing.T) {
	t.Parallel()
	for name, others := range map[string][]string{"one": nil, "many": {"z"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			var claims []store.Claim
			for _, key := range append([]string{"k"}, others...) {
				claims = append(claims, success(key, want(t, acquire(t, s, askFor(key, s.lease)), store.Granted).Token, s.lease))
			}
			waiter := skipFor("k", s.lease)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, `SELECT locksidecar.ask('n', 'infinity', true, 'i', 'p', '{k}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{0}',
				'{0}', '{true}', '{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`, waiter.ID, s.lease)
			released := make(chan error, 1)
			go func() {
				_, err := s.Release(s.Context(), claims)
				released <- err
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if err := <-released; err != nil {
				t.Fatal(err)
			}
			if a := want(t, check(t, s, waiter), store.Skipped); string(a.Result) != "1" {
				t.Errorf("result %q", a.Result)
			}
			want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
		})
	}
}

// A waiter cancels during the success. It is not skipped, and the waiter behind it is served.
func TestASuccessMeetsACancelUnderWay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	gone, skipped, next := skipFor("k", s.lease), skipFor("k", s.lease), askFor("k", s.lease)
	for _, ask := range []store.Ask{gone, skipped, next} {
		want(t, enqueue(t, s, ask), store.Queued)
	}
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.waiters WHERE attempt_id = $1", gone.ID)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, success("k", token, s.lease)) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if v := <-released; v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	want(t, check(t, s, gone), store.Gone)
	want(t, check(t, s, skipped), store.Skipped)
	want(t, check(t, s, next), store.Granted)
}

// The other order: a waiter that cancels while it is being skipped learns of the skip, and leaves
// nothing behind.
func TestACancelMeetsASuccessUnderWay(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"one": 0, "many": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
			waiter := skipFor("k", s.lease)
			want(t, enqueue(t, s, waiter), store.Queued)
			cancelled := []store.Attempt{waiter.Attempt}
			for range more {
				cancelled = append(cancelled, store.Attempt{Key: "other", ID: uuid.New()})
			}
			exec(t, s.other, "BEGIN")
			releaseIn(t, s.other, "k", token, s.lease)
			answers := make(chan store.Answer, 1)
			go func() {
				a, err := s.Cancel(s.Context(), cancelled)
				if err != nil {
					t.Error(err)
					a = make([]store.Answer, 1)
				}
				answers <- a[0]
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if a := want(t, <-answers, store.Skipped); string(a.Result) != "1" {
				t.Errorf("result %q", a.Result)
			}
			if n := waiterRows(t, s.url, waiter.ID); n != 0 {
				t.Error("the skip is not forgotten")
			}
		})
	}
}

// A skipped waiter is reported as forgotten only after its row is deleted, also if the row was
// locked.
func TestLockedRowOfASkippedWaiter(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter := skipFor("k", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	release(t, s, success("k", token, s.lease))
	letGo := s.operator("waiters", "key = 'k'")
	one := []store.Attempt{waiter.Attempt}
	many := []store.Attempt{waiter.Attempt, {Key: "other", ID: uuid.New()}}
	for _, cancelled := range [][]store.Attempt{one, many} {
		answers, err := s.Cancel(t.Context(), cancelled)
		if err != nil {
			t.Fatal(err)
		}
		want(t, answers[0], store.RowLocked)
	}
	want(t, check(t, s, waiter), store.Skipped)
	letGo()
	answers, err := s.Cancel(t.Context(), many)
	if err != nil {
		t.Fatal(err)
	}
	want(t, answers[0], store.Skipped)
	if n := waiterRows(t, s.url, waiter.ID); n != 0 {
		t.Error("the skip is not forgotten")
	}
}

// A waiter's lease is reaped during the skip. The reap does not wait for the waiter's row, and the
// row has no effect afterwards.
func TestReapDuringASkip(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter := skipFor("k", openLease(t, s, time.Hour))
	want(t, enqueue(t, s, waiter), store.Queued)
	exec(t, s.other, "BEGIN")
	releaseIn(t, s.other, "k", token, s.lease)
	if err := s.Revoke(t.Context(), []store.LeaseID{waiter.Lease}); err != nil {
		t.Fatal(err)
	}
	exec(t, s.other, "COMMIT")
	want(t, check(t, s, waiter), store.Gone)
	waiter.Lease = s.lease
	want(t, enqueue(t, s, waiter), store.Granted) // the attempt is repeated under a fresh lease
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := waiterRows(t, s.url, waiter.ID); n != 0 {
		t.Error("the waiter's row was not swept")
	}
}

// A skipped waiter does not block the queue. A hand-off that finds only skipped waiters frees the
// key, and a reap does not search for waiters behind them.
func TestSkippedWaitersDoNotBlock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter := skipFor("k", dying)
	want(t, enqueue(t, s, waiter), store.Queued)
	release(t, s, success("k", token, s.lease))
	// Its sidecar has not acknowledged the skip, and its lease has expired.
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dying)
	first, next := askFor("k", s.lease), askFor("k", s.lease)
	token = want(t, acquire(t, s, first), store.Granted).Token
	if a := want(t, enqueue(t, s, next), store.Queued); a.Position != 1 || a.Lock.QueueLength != 1 {
		t.Errorf("position %d of %d, want the first of one", a.Position, a.Lock.QueueLength)
	}
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	token = want(t, check(t, s, next), store.Granted).Token
	if pgtest.Query[bool](t, s.url, "SELECT contended FROM locksidecar.locks") {
		t.Error("the key is marked as contended without waiters")
	}
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	if n := waiterRows(t, s.url, waiter.ID); n != 1 {
		t.Error("an operation reaped the skipped waiter's lease needlessly")
	}
}

// Many waiters are skipped by a few statements, and each is notified.
func TestManyAreSkippedByFewStatements(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	const each = 100
	var stores []*postgres.Store
	var leases []store.LeaseID
	var told [2]atomic.Int64
	for i, name := range []string{"a", "b"} {
		s := backend{tb: t, url: url}.open(store.Identity{Namespace: "n", Instance: name, Pod: "p"})
		t.Cleanup(s.Stop)
		start(t, s, func(n store.News) {
			if n.ID != (store.AttemptID{}) {
				told[i].Add(1)
			}
		})
		s.Listen(true)
		poll(t, "it hears", func() bool { return !s.Traits().Polls })
		stores, leases = append(stores, s), append(leases, openLease(t, s, time.Hour))
	}
	token := want(t, acquire(t, stores[0], askFor("k", leases[0])), store.Granted).Token
	waits := [2][]store.Attempt{}
	for range each {
		for i, s := range stores {
			ask := skipFor("k", leases[i])
			want(t, enqueue(t, s, ask), store.Queued)
			waits[i] = append(waits[i], ask.Attempt)
		}
	}
	cluster.ResetStatements(t, url)
	release(t, stores[0], success("k", token, leases[0]))
	for i := range told {
		poll(t, fmt.Sprintf("instance %d to be notified of all", i), func() bool { return told[i].Load() == each })
	}
	// The release takes two statements. Its news is sent in batches, in more statements on a busier
	// machine.
	if n := cluster.Statements(t, url, "%locksidecar%"); n > each/2 {
		t.Errorf("%d statements, want two for the release and a few for the news of %d", n, 2*each)
	}
	for _, s := range stores {
		quiet(t, s) // the sender may still use its connection
	}
	cluster.ResetStatements(t, url)
	for i, s := range stores {
		for _, do := range []func(context.Context, []store.Attempt) ([]store.Answer, error){s.Check, s.Cancel} {
			answers, err := do(t.Context(), waits[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range answers {
				want(t, a, store.Skipped)
			}
		}
	}
	if n := cluster.Statements(t, url, "%locksidecar%"); n != 6 {
		t.Errorf("%d statements for checks and cancels, want 6", n)
	}
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.waiters"); n != 0 {
		t.Errorf("%d skips are not forgotten", n)
	}
}
