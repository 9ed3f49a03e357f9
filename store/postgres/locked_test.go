package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// hasty returns a scene whose store waits for rows only as long as in production.
func hasty(t *testing.T) *scene {
	url := cluster.NewDatabase(t)
	vain := &vainWaits{}
	s := only(t, postgres.Config{URL: url, AutoMigrate: true}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"},
		func(s *postgres.Space) { postgres.Measure(s, vain) })
	start(t, s, nil)
	return &scene{t, s, url, connect(t, url), connect(t, url), openLease(t, s, time.Hour), vain}
}

// vainWaits counts the statements that waited for a row in vain. Each delayed the other items of
// its batch by one lock_timeout.
type vainWaits struct{ n atomic.Int64 }

func (v *vainWaits) Statement(_ context.Context, _ string, _ time.Duration, err error) {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		v.n.Add(1)
	}
}

func (*vainWaits) Batch(string, int) {}

func (*vainWaits) Observe(func() metrics.StoreState) {}

// operator locks a row of a key, and returns a function that unlocks it.
func (s *scene) operator(table, where string) (letGo func()) {
	exec(s.T, s.other, fmt.Sprintf("BEGIN; SELECT FROM locksidecar.%s WHERE %s FOR UPDATE", table, where))
	return func() { exec(s.T, s.other, "ROLLBACK") }
}

// Trap: one locked row could delay a whole batch. It costs the other items one lock_timeout, and
// its own item is answered as locked.
// Proves: trap locked row
func TestLockedRowIsLeftOut(t *testing.T) {
	t.Parallel()
	t.Run("acquire", func(t *testing.T) {
		s := hasty(t)
		want(t, acquire(t, s, askFor("k07", s.lease)), store.Granted)
		letGo := s.operator("locks", "key = 'k07'")
		s.outcomes(s.Acquire, s.twenty(0), 7, store.Granted)
		s.outcomes(s.Acquire, s.twenty(time.Hour), -1, store.Held) // all keys are held, so the statement does not wait
		letGo()
	})
	t.Run("acquire a free key", func(t *testing.T) {
		s := hasty(t)
		token := want(t, acquire(t, s, askFor("k07", s.lease)), store.Granted).Token
		release(t, s, store.Claim{Key: "k07", Token: token, Lease: s.lease})
		letGo := s.operator("locks", "key = 'k07'")
		s.outcomes(s.Acquire, s.twenty(time.Hour), 7, store.Granted)
		letGo()
		want(t, acquire(t, s, askFor("k07", s.lease)), store.Granted)
	})
	t.Run("enqueue", func(t *testing.T) {
		s := hasty(t)
		s.outcomes(s.Acquire, s.twenty(0), -1, store.Granted)
		letGo := s.operator("locks", "key = 'k07'")
		s.outcomes(s.Enqueue, s.twenty(0), 7, store.Queued)
		letGo()
		want(t, enqueue(t, s, askFor("k07", s.lease)), store.Queued)
	})
	t.Run("release, free and contended", func(t *testing.T) {
		for _, contended := range []bool{false, true} {
			s := hasty(t)
			asks := s.twenty(0)
			answers, err := s.Acquire(t.Context(), asks)
			if err != nil {
				t.Fatal(err)
			}
			if contended {
				s.outcomes(s.Enqueue, s.twenty(0), -1, store.Queued)
			}
			claims := make([]store.Claim, len(asks))
			for i, a := range answers {
				claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: s.lease}
			}
			letGo := s.operator("locks", "key = 'k07'")
			s.statuses(claims, 7)
			letGo()
			if v := release(t, s, claims[7]); v.Status != store.Holds {
				t.Errorf("status %d afterwards", v.Status)
			}
		}
	})
	t.Run("amend", func(t *testing.T) {
		s := hasty(t)
		asks := s.twenty(time.Hour)
		answers, err := s.Acquire(t.Context(), asks)
		if err != nil {
			t.Fatal(err)
		}
		changes := make([]store.Change, len(asks))
		for i, a := range answers {
			changes[i] = store.Change{Key: asks[i].Key, Token: a.Token, TTL: time.Minute}
		}
		defer s.operator("locks", "key = 'k07'")()
		amended, err := s.Amend(t.Context(), changes)
		judged(s, amended, func(a store.Amended) store.ClaimStatus { return a.Status }, err, 7)
	})
	t.Run("withdraw", func(t *testing.T) {
		s := hasty(t)
		asks := s.twenty(0)
		s.outcomes(s.Acquire, asks, -1, store.Granted)
		letGo := s.operator("locks", "key = 'k07'")
		attempts := make([]store.Attempt, len(asks))
		for i, a := range asks {
			attempts[i] = a.Attempt
		}
		outcomes, err := s.Withdraw(t.Context(), attempts)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range outcomes {
			if (o == store.RowLocked) != (i == 7) {
				t.Errorf("item %d: outcome %d", i, o)
			}
		}
		letGo()
		if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL"); n != 1 {
			t.Errorf("%d locks are held, want only the locked one", n)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		s := hasty(t)
		s.outcomes(s.Acquire, s.twenty(0), -1, store.Granted)
		asks := s.twenty(0)
		s.outcomes(s.Enqueue, asks, -1, store.Queued)
		attempts := make([]store.Attempt, len(asks))
		for i, a := range asks {
			attempts[i] = a.Attempt
		}
		letGo := s.operator("waiters", "key = 'k07'")
		answers, err := s.Cancel(t.Context(), attempts)
		s.answered(answers, err, 7, store.Gone)
		answers, err = s.Cancel(t.Context(), attempts[7:8])
		want(t, answer(t, answers, err), store.RowLocked)
		letGo()
		answers, err = s.Cancel(t.Context(), attempts[7:8])
		want(t, answer(t, answers, err), store.Gone)
	})
}

// twenty returns asks for twenty keys.
func (s *scene) twenty(ttl time.Duration) []store.Ask {
	asks := make([]store.Ask, 20)
	for i := range asks {
		asks[i] = askFor(fmt.Sprintf("k%02d", i), s.lease)
		asks[i].TTL = ttl
	}
	return asks
}

type asking func(context.Context, []store.Ask) ([]store.Answer, error)

// outcomes checks that one item is locked (-1: none), and the outcome of the others. A key that the
// asking attempt holds already counts as granted.
func (s *scene) outcomes(do asking, asks []store.Ask, locked int, others store.Outcome) {
	s.Helper()
	before := s.vain.n.Load()
	answers, err := do(s.Context(), asks)
	s.answered(answers, err, locked, others)
	if n := s.vain.n.Load() - before; n > 1 {
		s.Errorf("%d statements waited for the locked row", n)
	}
}

func (s *scene) answered(answers []store.Answer, err error, locked int, others store.Outcome) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	for i, a := range answers {
		switch {
		case i == locked && a.Outcome != store.RowLocked && a.Outcome != store.Held:
			s.Errorf("item %d, whose row is locked: outcome %d", i, a.Outcome)
		case i != locked && a.Outcome != others:
			s.Errorf("item %d: outcome %d, want %d", i, a.Outcome, others)
		}
	}
}

func (s *scene) statuses(claims []store.Claim, locked int) {
	s.Helper()
	verdicts, err := s.Release(s.Context(), claims)
	judged(s, verdicts, func(v store.Verdict) store.ClaimStatus { return v.Status }, err, locked)
}

func judged[T any](s *scene, answers []T, status func(T) store.ClaimStatus, err error, locked int) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	for i, a := range answers {
		if want := map[bool]store.ClaimStatus{true: store.ClaimRowLocked, false: store.Holds}[i == locked]; status(a) != want {
			s.Errorf("item %d: status %d, want %d", i, status(a), want)
		}
	}
}

// A dead holder's keys are handed off although one row is locked. The key of this row follows when
// the row is unlocked.
// Proves: trap locked row
func TestReapGoesAroundALockedKey(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	dying := openLease(t, s, time.Hour)
	var waits []store.Ask
	for _, key := range []string{"a", "b", "c"} {
		want(t, acquire(t, s, askFor(key, dying)), store.Granted)
		waits = append(waits, askFor(key, s.lease))
		want(t, enqueue(t, s, waits[len(waits)-1]), store.Queued)
	}
	letGo := s.operator("locks", "key = 'b'")
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dying)
	for i, outcome := range []store.Outcome{store.Granted, store.Queued, store.Granted} {
		want(t, check(t, s, waits[i]), outcome)
	}
	if err := s.Revoke(t.Context(), []store.LeaseID{dying}); !store.Unavailable(err) {
		t.Errorf("a reap that left out a key: %v, want an error, so that it is repeated", err)
	}
	letGo()
	want(t, check(t, s, waits[1]), store.Granted)
}

// A locked row of a lease delays a reap and a take-over only for a bounded time.
// Proves: trap locked row
func TestLockedLease(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	dead := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", dead)), store.Granted)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead)
	letGo := s.operator("leases", "id = '"+dead.String()+"'")
	want(t, acquire(t, s, askFor("k", s.lease)), store.RowLocked)
	want(t, enqueue(t, s, askFor("k", s.lease)), store.RowLocked)
	want(t, acquire(t, s, askFor("other", s.lease)), store.Granted)
	letGo()
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// If a step of a sweep fails, the other steps still run.
func TestASweepGoesOn(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	dead := uuid.New()
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, lease_id, attempt_id, acquired_at)
		VALUES ('n', 'dangling', locksidecar.token_at(clock_timestamp()), $1, $1, clock_timestamp())`, dead)
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
		VALUES ('n', 'free', 1, clock_timestamp() - interval '1 year')`)
	letGo := s.operator("locks", "key = 'dangling'")
	_ = s.Sweep(t.Context())
	letGo()
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.locks WHERE key = 'free'"); n != 0 {
		t.Error("the row of a free key was not swept")
	}
}

// A signal ends with its lease. If the signal's row is locked, the sweep continues, and the next
// one deletes it.
func TestASweepGoesAroundALockedSignal(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	exec(t, s.conn, `WITH dead AS (
			INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
			VALUES (gen_random_uuid(), 'i', 'p', true, '1 s', '-infinity') RETURNING id)
		INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, requested_at)
		SELECT id, 'n', 'k', 1, 'stop', clock_timestamp() FROM dead`)
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
		VALUES ('n', 'free', 1, clock_timestamp() - interval '1 year')`)
	letGo := s.operator("signals", "true")
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if n := s.count("locks", "key = 'free'"); n != 0 {
		t.Error("the row of a free key was not swept")
	}
	letGo()
	exec(t, s.conn, "UPDATE locksidecar.sweep SET due_at = '-infinity'")
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if n := s.count("signals", "true"); n != 0 {
		t.Error("the signal was not swept")
	}
}

// A locked row of a lease does not stop the renewal of other leases. The answer does not say that this lease
// is dead: it leaves the lease out, and has an error.
func TestRenewalGoesAroundALockedLease(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	leases := []store.LeaseID{s.lease}
	for range 4 {
		leases = append(leases, openLease(t, s, time.Hour))
	}
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 min'")
	locked := leases[2]
	others := slices.DeleteFunc(slices.Clone(leases), func(id store.LeaseID) bool { return id == locked })
	letGo := s.operator("leases", "id = '"+locked.String()+"'")
	for _, c := range []struct{ due, renewed []store.LeaseID }{{leases, others}, {[]store.LeaseID{locked}, nil}} {
		began := time.Now()
		renewal, err := s.Renew(t.Context(), c.due)
		renewed := renewal.Renewed
		if !store.Unavailable(err) {
			t.Errorf("%d renewed, of which one is locked: %v, want an error", len(c.due), err)
		}
		slices.SortFunc(renewed, compareIDs)
		slices.SortFunc(c.renewed, compareIDs)
		if !slices.Equal(renewed, c.renewed) {
			t.Errorf("renewed %v, want %v", renewed, c.renewed)
		}
		if took := time.Since(began); took > 4*time.Second { // less than the statement's limit
			t.Errorf("it took %s", took)
		}
	}
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE expires_at > clock_timestamp() + interval '50 min'"); n != int64(len(others)) {
		t.Errorf("%d leases have their full TTL, want %d", n, len(others))
	}
	letGo()
	if renewal, err := s.Renew(t.Context(), leases); err != nil || len(renewal.Renewed) != len(leases) {
		t.Errorf("afterwards %d of %d are renewed: %v", len(renewal.Renewed), len(leases), err)
	}
}

func compareIDs(a, b store.LeaseID) int { return bytes.Compare(a[:], b[:]) }

// A reap that fails half-way reports an unknown outcome.
func TestRevokeHalfWay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", dying)), store.Granted)
	want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
	exec(t, s.other, "BEGIN; SELECT FROM locksidecar.locks FOR UPDATE")
	err := s.Revoke(t.Context(), []store.LeaseID{dying})
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE id = $1", dying); n != 0 {
		t.Fatal("the lease still exists: this does not test the rule")
	}
	if !store.OutcomeUnknown(err) {
		t.Errorf("the lease is dead, its keys are locked: %v, want an unknown outcome", err)
	}
}
