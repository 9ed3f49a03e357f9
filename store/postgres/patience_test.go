package postgres_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pace"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Many sessions that lock a row get it in turn. A statement that gave up once waits longer the next
// time. The log stays empty.
// Proves: trap locked row
func TestBusyRowIsServedPatiently(t *testing.T) {
	t.Parallel()
	const sessions, turn = 14, "0.01" // in seconds; the sum exceeds a lock_timeout
	var said logtest.Log
	url := cluster.NewDatabase(t)
	s := startWith(t, postgres.Config{
		URL: url, AutoMigrate: true,
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	token := want(t, acquire(t, s, askFor("k", lease)), store.Granted).Token

	ctx, cancel := context.WithCancel(t.Context())
	var turns sync.WaitGroup
	defer turns.Wait()
	defer cancel()
	for range sessions {
		conn := connect(t, url)
		turns.Go(func() {
			for ctx.Err() == nil {
				_, _ = conn.Exec(context.Background(), "BEGIN; SELECT FROM locksidecar.locks WHERE key = 'k' FOR UPDATE; SELECT pg_sleep("+turn+"); COMMIT")
			}
		})
	}
	waiting := func() int64 {
		return pgtest.Query[int64](t, url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	}
	poll(t, "a queue for the row", func() bool { return waiting() >= sessions-2 })

	const most = 5 // on an idle machine, one that gives up and one with the longer wait
	for what, try := range map[string]func() bool{
		"a wait": func() bool { return enqueue(t, s, askFor("k", lease)).Outcome == store.Queued },
		"a stop": func() bool {
			statuses, err := s.Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: "k", Token: token}})
			return err == nil && statuses[0] == store.Holds
		},
	} {
		if !succeeds(most, try) {
			t.Errorf("%s found the row locked %d times", what, most)
		}
	}
	released := func() bool {
		return release(t, s, store.Claim{Key: "k", Token: token, Lease: lease, Awaited: true}).Status == store.Holds
	}
	if !succeeds(most, released) {
		t.Errorf("a release found the row locked %d times", most)
	}
	if strings.Contains(said.String(), "keeps a row locked") {
		t.Errorf("the log calls a busy row locked:\n%s", said.String())
	}
}

// succeeds reports whether one of so many tries is successful.
func succeeds(most int, try func() bool) bool {
	for range most {
		if try() {
			return true
		}
	}
	return false
}

// A row that stays locked is logged once, with its key.
// Proves: trap locked row
func TestLockedRowIsNamed(t *testing.T) {
	t.Parallel()
	var said logtest.Log
	url := cluster.NewDatabase(t)
	s := startWith(t, postgres.Config{
		URL: url, AutoMigrate: true,
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", lease)), store.Granted)
	conn := connect(t, url)
	exec(t, conn, "BEGIN; SELECT FROM locksidecar.locks WHERE key = 'k' FOR UPDATE")
	for range 3 {
		want(t, enqueue(t, s, askFor("k", lease)), store.RowLocked)
	}
	exec(t, conn, "ROLLBACK")
	if n := strings.Count(said.String(), "keeps a row locked"); n != 1 || !strings.Contains(said.String(), "key=k") {
		t.Errorf("logged %d times that the row of k stays locked, want once, with the key:\n%s", n, said.String())
	}
}

// A locked row of a signal does not delay other operations, and its lease ends.
func TestLockedSignalDelaysNoOthers(t *testing.T) {
	t.Parallel()
	why := "why"
	signalled := func(s *scene, key string, lease store.LeaseID) {
		want(t, acquire(t, s, askFor(key, lease)), store.Granted)
		s.signal(store.Signal{Kind: store.Stop, Key: key, Reason: &why}, store.Holds)
	}
	t.Run("acquire", func(t *testing.T) {
		s := hasty(t)
		dying, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
		signalled(s, "k00", dying)
		want(t, acquire(t, s, askFor("k01", other)), store.Granted)
		exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id IN ($1, $2)", dying, other)
		defer s.operator("signals", "true")()
		s.outcomes(s.Acquire, s.twenty(0), -1, store.Granted)
	})
	t.Run("revoke", func(t *testing.T) {
		s := hasty(t)
		dying, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
		signalled(s, "k", dying)
		defer s.operator("signals", "true")()
		if err := s.Revoke(t.Context(), []store.LeaseID{dying, other}); err != nil {
			t.Error(err)
		}
		if n := s.count("leases", "id <> $1", s.lease); n != 0 {
			t.Errorf("%d leases still exist", n)
		}
	})
	t.Run("release past expired waiters", func(t *testing.T) {
		s := hasty(t)
		dying, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
		signalled(s, "x", dying)
		asks := s.twenty(0)
		answers, err := s.Acquire(t.Context(), asks)
		s.answered(answers, err, -1, store.Granted)
		want(t, enqueue(t, s, askFor("k07", dying)), store.Queued)
		want(t, enqueue(t, s, askFor("k07", other)), store.Queued)
		exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id IN ($1, $2)", dying, other)
		claims := make([]store.Claim, len(asks))
		for i, a := range answers {
			claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: s.lease, Awaited: true}
		}
		defer s.operator("signals", "true")()
		s.statuses(claims, -1)
	})
	t.Run("break a lock that only a hold keeps", func(t *testing.T) {
		s := hasty(t)
		asks := s.twenty(0)
		asks[7] = s.holdFor("k07", time.Hour)
		answers, err := s.Acquire(t.Context(), asks)
		s.answered(answers, err, -1, store.Granted)
		s.signal(store.Signal{Kind: store.Stop, Key: "k07", Reason: &why}, store.Holds)
		release(t, s, store.Claim{Key: "k07", Token: answers[7].Token, Lease: asks[7].Lease})
		defer s.operator("signals", "key = 'k07'")()
		signals := make([]store.Signal, len(asks))
		for i := range asks {
			signals[i] = store.Signal{Kind: store.Break, Key: asks[i].Key}
		}
		statuses, err := s.Signal(t.Context(), signals)
		if err != nil || slices.ContainsFunc(statuses, func(st store.ClaimStatus) bool { return st != store.Holds }) {
			t.Errorf("%v, %v", statuses, err)
		}
	})
}

// Keys beside a locked one do not wait for the longer time of a repeated statement: neither in the
// first batch with the locked key, nor when the locked key is asked for again.
func TestPatienceIsForOneRowAlone(t *testing.T) {
	t.Parallel()
	machine := pace.Start(t)
	s := hasty(t)
	for _, key := range []string{"locked", "other"} {
		want(t, acquire(t, s, askFor(key, s.lease)), store.Granted)
	}
	defer s.operator("locks", "key = 'locked'")()
	want(t, enqueue(t, s, askFor("locked", s.lease)), store.RowLocked) // a first statement, with the short wait
	before := s.vain.n.Load()
	for range 3 {
		began := time.Now()
		answers, err := s.Enqueue(t.Context(), []store.Ask{askFor("locked", s.lease), askFor("other", s.lease)})
		if err != nil || answers[0].Outcome != store.RowLocked || answers[1].Outcome != store.Queued {
			t.Fatalf("got %+v, %v", answers, err)
		}
		if took, slow := time.Since(began), machine.Since(began); took >= time.Second+slow {
			t.Errorf("another key waited %s, on a machine that was %s slow", took, slow)
		}
	}
	if n := s.vain.n.Load() - before; n != 3 {
		t.Errorf("%d statements waited in vain, want 3", n)
	}
}
