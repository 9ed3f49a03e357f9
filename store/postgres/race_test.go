package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// These tests hold a transaction open in a session of their own. The store's statement waits for
// it, and then the transaction ends. So a race becomes a sequence.

// holder reads the holder of a key from the table.
func holder(t *testing.T, conn *pgx.Conn, key string) (grant, lease uuid.UUID, token int64) {
	t.Helper()
	var attemptID, leaseID *uuid.UUID
	err := conn.QueryRow(t.Context(), "SELECT attempt_id, lease_id, token FROM locksidecar.locks WHERE key = $1", key).
		Scan(&attemptID, &leaseID, &token)
	if err != nil {
		t.Fatal(err)
	}
	if attemptID != nil {
		grant = *attemptID
	}
	if leaseID != nil {
		lease = *leaseID
	}
	return grant, lease, token
}

type scene struct {
	*testing.T
	*postgres.Store
	url   string
	conn  *pgx.Conn // reads
	other *pgx.Conn // has the open transaction
	lease store.LeaseID
	vain  *vainWaits // of a hasty scene
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return newSceneOn(t, cluster.NewDatabase(t))
}

func newSceneOn(t *testing.T, url string) *scene {
	t.Helper()
	return sceneOf(t, url, startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"}))
}

func sceneOf(t *testing.T, url string, s *postgres.Store) *scene {
	t.Helper()
	return &scene{t, s, url, connect(t, url), connect(t, url), openLease(t, s, time.Hour), nil}
}

// Trap: the waiter of a hand-off is renewing at this moment, and looks expired.
// Proves: promise 5, trap waiter renews
func TestAWaiterThatIsRenewingIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, let := range map[string]func(s *scene, first store.Ask, token int64) error{
		"release": func(s *scene, first store.Ask, token int64) error {
			_, err := s.Release(s.Context(), []store.Claim{{Key: "k", Token: token, Lease: first.Lease}})
			return err
		},
		"revoke": func(s *scene, first store.Ask, _ int64) error {
			return s.Revoke(s.Context(), []store.LeaseID{first.Lease})
		},
		"withdraw": func(s *scene, first store.Ask, _ int64) error {
			return withdraw(s.Context(), s, first.Attempt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			first := askFor("k", s.lease)
			token := want(t, acquire(t, s, first), store.Granted).Token
			waiter := askFor("k", openLease(t, s, time.Hour))
			want(t, enqueue(t, s, waiter), store.Queued)
			exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", waiter.Lease)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", waiter.Lease)

			done := make(chan error, 1)
			go func() { done <- let(s, first, token) }()
			awaitBlocked(t, s.url) // the reap is waiting for the renewal
			exec(t, s.other, "COMMIT")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if grant, lease, _ := holder(t, s.conn, "k"); grant != waiter.ID || lease != waiter.Lease {
				t.Errorf("the key is held by lease %s under grant %s, want the waiter's", lease, grant)
			}
		})
	}
}

// A holder that is renewing looks expired to an attempt that wants its lock. Its lease then gets
// half a minute, which is a short time for a lease that counts as dead shortly before its end.
// Proves: promise 1
func TestAHolderThatIsRenewingKeepsItsLock(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(s *scene) ([]store.Answer, error){
		"acquire": func(s *scene) ([]store.Answer, error) {
			return s.Acquire(s.Context(), []store.Ask{askFor("k", s.lease)})
		},
		"enqueue": func(s *scene) ([]store.Answer, error) {
			return s.Enqueue(s.Context(), []store.Ask{askFor("k", s.lease)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			ask := askFor("k", openLease(t, s, 30*time.Second))
			want(t, acquire(t, s, ask), store.Granted)
			exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", ask.Lease)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", ask.Lease)
			answers := make(chan store.Answer, 1)
			go func() {
				a, err := try(s)
				if err != nil {
					t.Error(err)
					a = make([]store.Answer, 1)
				}
				answers <- a[0]
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if a := <-answers; a.Outcome != store.Held && a.Outcome != store.Queued {
				t.Errorf("outcome %d: the lock was stolen", a.Outcome)
			}
			if grant, lease, _ := holder(t, s.conn, "k"); grant != ask.ID || lease != ask.Lease {
				t.Errorf("the key is held by lease %s under grant %s", lease, grant)
			}
		})
	}
}

// Trap: an enqueue is in flight when its holder is reaped.
// Proves: promise 5
func TestReapSeesAnEnqueueInFlight(t *testing.T) {
	t.Parallel()
	for name, arrays := range map[string]string{
		"one": `'{k}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{0}', '{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', '{NULL}'`,
		"together": `'{k,k,k,k}', array_prepend($1::uuid, ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 3))), ARRAY[$2::uuid, $2, $2, $2],
			'{0,0,0,0}', '{0,0,0,0}', '{f,f,f,f}', '{s,s,s,s}', '{o,o,o,o}', '{NULL,NULL,NULL,NULL}', '{t,t,t,t}', '{NULL,NULL,NULL,NULL}'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			dying := openLease(t, s, time.Hour)
			want(t, acquire(t, s, askFor("k", dying)), store.Granted)
			grant := uuid.New()
			exec(t, s.other, "BEGIN")
			exec(t, s.other, "SELECT locksidecar.ask('n', 'infinity', true, 'i', 'p', "+arrays+", NULL)", grant, s.lease)

			revoked := make(chan error, 1)
			go func() { revoked <- s.Revoke(t.Context(), []store.LeaseID{dying}) }()
			poll(t, "the reap to wait or end", func() bool { return len(revoked) > 0 || isBlocked(t, s.url) })
			exec(t, s.other, "COMMIT")
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			if got, lease, _ := holder(t, s.conn, "k"); got != grant || lease != s.lease {
				t.Errorf("the key is held by lease %s under grant %s, want the waiter's", lease, got)
			}
		})
	}
}

// The other order: the reap is in flight when a call wants to wait.
// Proves: promise 5
func TestEnqueueWaitsForAReapInFlight(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]store.Outcome{"one": nil, "together": {store.Queued, store.Queued, store.Queued}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			dying := openLease(t, s, time.Hour)
			first := want(t, acquire(t, s, askFor("k", dying)), store.Granted)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
			asks := []store.Ask{askFor("k", s.lease)}
			for range more {
				asks = append(asks, askFor("k", s.lease))
			}
			done := make(chan []store.Answer, 1)
			go func() {
				answers, _ := s.Enqueue(t.Context(), asks)
				done <- answers
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			answers := <-done
			if len(answers) != len(asks) {
				t.Fatalf("%d answers", len(answers))
			}
			if a := want(t, answers[0], store.Granted); a.Token <= first.Token {
				t.Errorf("token %d after %d", a.Token, first.Token)
			}
			for i, outcome := range more {
				want(t, answers[i+1], outcome)
			}
		})
	}
}

// Trap: a statement that waits for a lock row, and decides by a missing lease, uses the snapshot
// from before its wait.
// Proves: promise 1, trap old snapshot
func TestATakeOverThatWaitedDoesNotSteal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dead := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", dead)), store.Granted)
	if err := s.Revoke(t.Context(), []store.LeaseID{dead}); err != nil {
		t.Fatal(err)
	}
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT FROM locksidecar.locks FOR UPDATE")
	answers := make(chan store.Answer, 1)
	go func() { answers <- acquire(t, s, askFor("k", s.lease)) }()
	awaitBlocked(t, s.url)
	rival, grant := uuid.New(), uuid.New()
	exec(t, s.other, `INSERT INTO locksidecar.leases VALUES ($1, 'rival', 'p', true, '1 h', clock_timestamp() + interval '1 h')`, rival)
	exec(t, s.other, `UPDATE locksidecar.locks SET lease_id = $1, attempt_id = $2, token = token + 1`, rival, grant)
	exec(t, s.other, "COMMIT")
	a := want(t, <-answers, store.Held)
	if a.Lock.Holder.Instance != "rival" {
		t.Errorf("held by %+v, want the rival", a.Lock.Holder)
	}
}

// A waiter whose lease is being reaped during the hand-off is not granted the lock. Otherwise, the
// waiter behind would wait for a dead holder.
// Proves: promise 5
func TestWaiterBeingReapedIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, dying, next := askFor("k", s.lease), askFor("k", openLease(t, s, time.Hour)), askFor("k", s.lease)
	token := want(t, acquire(t, s, first), store.Granted).Token
	want(t, enqueue(t, s, dying), store.Queued)
	want(t, enqueue(t, s, next), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", dying.Lease)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}) }()
	poll(t, "the hand-off to wait or end", func() bool { return len(released) > 0 || isBlocked(t, s.url) })
	exec(t, s.other, "COMMIT")
	if v := <-released; v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	if grant, _, _ := holder(t, s.conn, "k"); grant != next.ID {
		t.Errorf("the key is held under grant %s, want the second waiter's", grant)
	}
}

// A waiter that cancels during the hand-off is passed over.
// Proves: promise 5, trap waiter cancels
func TestACancelUnderWayIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, gone, next := askFor("k", s.lease), askFor("k", s.lease), askFor("k", s.lease)
	token := want(t, acquire(t, s, first), store.Granted).Token
	want(t, enqueue(t, s, gone), store.Queued)
	want(t, enqueue(t, s, next), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.waiters WHERE attempt_id = $1", gone.ID)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if v := <-released; v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	if grant, _, _ := holder(t, s.conn, "k"); grant != next.ID {
		t.Errorf("the key is held under grant %s, want the second waiter's", grant)
	}
}

// A key is marked as contended, but its waiter has cancelled and its holder has died. The next
// acquire gets the key.
func TestADeadHolderWithoutWaitersIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(*scene, []store.Ask) ([]store.Answer, error){
		"acquire": func(s *scene, asks []store.Ask) ([]store.Answer, error) { return s.Acquire(s.Context(), asks) },
		"enqueue": func(s *scene, asks []store.Ask) ([]store.Answer, error) { return s.Enqueue(s.Context(), asks) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			first, waiter := askFor("k", openLease(t, s, time.Hour)), askFor("k", s.lease)
			want(t, acquire(t, s, first), store.Granted)
			want(t, enqueue(t, s, waiter), store.Queued)
			cancelled, err := s.Cancel(t.Context(), []store.Attempt{waiter.Attempt})
			want(t, answer(t, cancelled, err), store.Gone)
			if err := s.Revoke(t.Context(), []store.LeaseID{first.Lease}); err != nil {
				t.Fatal(err)
			}
			answers, err := try(s, []store.Ask{askFor("k", s.lease)})
			want(t, answer(t, answers, err), store.Granted)
		})
	}
}

// A withdrawal waits for an attempt in flight, whatever row it inserts.
// Proves: promise 9
func TestWithdrawalWaitsForTheAttempt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := askFor("k", s.lease)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, `INSERT INTO locksidecar.locks (namespace, key, lease_id, attempt_id, token, acquired_at)
		VALUES ('n', 'k', $1, $2, locksidecar.token_at(clock_timestamp()), clock_timestamp())`, s.lease, ask.ID)
	done := make(chan error, 1)
	go func() { done <- withdraw(t.Context(), s, ask.Attempt) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// TestNoDeadlocks runs shuffled batches at the same time. The store repeats a statement after a
// deadlock, so the test reads the server's counter.
// Proves: promise 1, trap deadlock
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	const instances, workers, rounds, keys = 3, 3, 25, 24
	stores := make([]*postgres.Store, instances)
	for i := range stores {
		stores[i] = startStore(t, url, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"})
	}
	var group sync.WaitGroup
	for n := range instances * workers {
		group.Go(func() {
			s := stores[n%instances]
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for range rounds {
				mingle(t, s, r, keys)
			}
		})
	}
	group.Wait()
	for _, s := range stores {
		s.Stop()
		s.Space.Stop()
	}
	mustHaveNoDeadlocks(t, url)
}

// mustHaveNoDeadlocks is called after the stores have stopped, because sessions report when they
// end.
func mustHaveNoDeadlocks(t *testing.T, url string) {
	t.Helper()
	poll(t, "the sessions have ended", func() bool {
		return pgtest.Query[int64](t, url, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'locksidecar'`) == 0
	})
	if n := pgtest.Query[int64](t, url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// mingle does all kinds of operations with many keys in random order.
func mingle(t *testing.T, s engine, r *rand.Rand, keys int) {
	ctx := t.Context()
	leases := []store.LeaseID{uuid.New(), uuid.New()}
	fail := func(what string, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	fail("open", s.OpenLeases(ctx, []store.NewLease{{ID: leases[0], TTL: time.Hour}, {ID: leases[1], TTL: 20 * time.Millisecond}}))
	batch := func() []store.Ask {
		asks := make([]store.Ask, 0, keys/2)
		usual := r.IntN(2) == 0 // all are for session locks under one lease
		for _, k := range r.Perm(keys)[:keys/2] {
			asks = append(asks, askFor(fmt.Sprintf("k%d", k), leases[0]))
			if !usual {
				asks[len(asks)-1].Lease = leases[r.IntN(2)]
			}
			if !usual && r.IntN(3) == 0 {
				asks[len(asks)-1].TTL = time.Duration(1+r.IntN(50)) * time.Millisecond
			}
			asks[len(asks)-1].Skip = r.IntN(3) == 0
		}
		return asks
	}
	// withHolds adds a hold to some of the asks.
	withHolds := func(asks []store.Ask) []store.Ask {
		for i := range asks {
			if r.IntN(3) == 0 {
				asks[i].MinHold = time.Duration(1+r.IntN(50)) * time.Millisecond
			}
		}
		return asks
	}
	acquired, waiting := withHolds(batch()), withHolds(batch())
	answers, err := s.Acquire(ctx, acquired)
	fail("acquire", err)
	_, err = s.Enqueue(ctx, waiting)
	fail("enqueue", err)
	_, err = s.Renew(ctx, leases)
	fail("renew", err)
	var claims []store.Claim
	var changes []store.Change
	for i, a := range answers {
		claim := store.Claim{Key: acquired[i].Key, Token: a.Token, Lease: acquired[i].Lease}
		claim.Outcome, claim.AtOnce = store.ReleaseOutcome(r.IntN(3)), r.IntN(3) == 0
		claims = append(claims, claim)
		changes = append(changes, store.Change{Key: claim.Key, Token: claim.Token, Lease: claim.Lease, TTL: time.Millisecond, SetData: true})
	}
	attempts := make([]store.Attempt, len(waiting))
	for i, w := range waiting {
		attempts[i] = w.Attempt
	}
	_, err = s.Amend(ctx, changes[:len(changes)/2])
	fail("amend", err)
	_, err = s.Downgrade(ctx, changes[len(changes)/2:])
	fail("downgrade", err)
	_, err = s.Check(ctx, attempts)
	fail("check", err)
	_, err = s.Release(ctx, claims)
	fail("release", err)
	half := len(attempts) / 2
	_, err = s.Cancel(ctx, attempts[:half])
	fail("cancel", err)
	fail("withdraw", withdraw(ctx, s, attempts...))
	fail("sweep", s.Sweep(ctx))
	fail("revoke", s.Revoke(ctx, leases))
}

// Namespaces are separate. The same request in two namespaces does not remove the other namespace's
// waiter.
func TestSameGrantInTwoNamespaces(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := startStore(t, url, store.Identity{Namespace: "a", Instance: "a", Pod: "p"})
	b := startStore(t, url, store.Identity{Namespace: "b", Instance: "b", Pod: "p"})
	inA, inB := openLease(t, a, time.Hour), openLease(t, b, time.Hour)
	held := want(t, acquire(t, a, askFor("k", inA)), store.Granted)
	want(t, acquire(t, b, askFor("k", inB)), store.Granted)
	waitA, waitB := askFor("k", inA), askFor("k", inB)
	waitB.ID = waitA.ID
	want(t, enqueue(t, a, waitA), store.Queued)
	want(t, enqueue(t, b, waitB), store.Queued)
	want(t, check(t, a, waitA), store.Queued)
	if _, err := b.Cancel(t.Context(), []store.Attempt{waitB.Attempt}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Withdraw(t.Context(), []store.Attempt{waitB.Attempt}); err != nil {
		t.Fatal(err)
	}
	release(t, a, store.Claim{Key: "k", Token: held.Token, Lease: inA})
	want(t, check(t, a, waitA), store.Granted)
}
