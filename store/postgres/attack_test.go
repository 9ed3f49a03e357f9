package postgres_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// What an attack on this package found, and what must not come back.

// Namespaces know nothing of each other, not even when the same request comes in
// two of them: neither takes the other's waiter out of its queue.
func TestSameGrantInTwoNamespaces(t *testing.T) {
	url := cluster.NewDatabase(t)
	a := startStore(t, url, store.Identity{Namespace: "a", Instance: "a", Pod: "p"})
	b := startStore(t, url, store.Identity{Namespace: "b", Instance: "b", Pod: "p"})
	inA, inB := openLease(t, a, time.Hour), openLease(t, b, time.Hour)
	held := want(t, acquire(t, a, askFor("k", inA)), store.Granted)
	want(t, acquire(t, b, askFor("k", inB)), store.Granted)
	waitA, waitB := askFor("k", inA), askFor("k", inB)
	waitB.Grant = waitA.Grant
	want(t, enqueue(t, a, waitA), store.Queued)
	want(t, enqueue(t, b, waitB), store.Queued)
	want(t, check(t, a, waitA), store.Queued)
	if _, err := b.CancelWaits(t.Context(), []store.Attempt{waitB.Attempt}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Undo(t.Context(), []store.Attempt{waitB.Attempt}); err != nil {
		t.Fatal(err)
	}
	release(t, a, store.Claim{Key: "k", Token: held.Token, Lease: inA})
	want(t, check(t, a, waitA), store.Granted)
}

// A database whose default hides warnings does not hide that a commit was not
// replicated.
func TestHiddenWarning(t *testing.T) {
	own := pgtest.Start(t)
	url := own.NewDatabase(t)
	admin := connect(t, url)
	exec(t, admin, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = error', current_database()); END $$")
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease := openLease(t, s, time.Hour)
	exec(t, admin, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	exec(t, admin, "SELECT pg_reload_conf()")
	poll(t, "commits wait", func() bool {
		return pgtest.Query[string](t, url, "SHOW synchronous_standby_names") == "nobody"
	})
	const waiting = "wait_event = 'SyncRep' AND application_name = 'locksidecar'"
	failed := make(chan error, 1)
	go func() {
		for { // the backend reads the new setting between two statements
			if _, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), lease)}); err != nil {
				failed <- err
				return
			}
		}
	}()
	var err error
	poll(t, "the commit that was cancelled to fail", func() bool {
		pgtest.Query[int64](t, url, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "+waiting)
		select {
		case err = <-failed:
			return true
		default:
			return false
		}
	})
	if !store.OutcomeUnknown(err) {
		t.Errorf("a commit that no standby confirmed: %v, want an unknown outcome", err)
	}
}

// One connection that hangs, with a renewal in it or when it is tried before one,
// does not stop the renewals: leases would die although the server is fine.
func TestHungRenewalConnection(t *testing.T) {
	const timeout = 2 * time.Second
	for name, rest := range map[string]time.Duration{"in the statement": 0, "before it": 1200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			s, err := postgres.New(postgres.Config{
				URL: url, Identity: store.Identity{Namespace: "n", Instance: "i", Pod: "p"}, AutoMigrate: true, Timeout: timeout,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			awaitReady(t, s)
			leases := []store.LeaseID{openLease(t, s, time.Hour)}
			if _, err := s.Renew(t.Context(), leases); err != nil {
				t.Fatal(err)
			}
			pid := pgtest.Query[int](t, url, `SELECT pid FROM pg_stat_activity
				WHERE application_name = 'locksidecar' AND datname = current_database() AND query LIKE '%:lease_renew %'`)
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			time.Sleep(rest) // a connection that has rested for a second is tried before it is used

			began := time.Now()
			poll(t, "a renewal", func() bool {
				_, err := s.Renew(t.Context(), leases)
				return err == nil
			})
			if took := time.Since(began); took > 2*timeout {
				t.Errorf("renewed after %s", took)
			}
		})
	}
}

// A burial that fails half-way does not say that nothing was done.
func TestBuryHalfWay(t *testing.T) {
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", dying)), store.Granted)
	want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
	exec(t, s.other, "BEGIN; SELECT FROM locksidecar.locks FOR UPDATE")
	err := s.Bury(t.Context(), []store.LeaseID{dying})
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE id = $1", dying); n != 0 {
		t.Fatal("the lease is still there: this test has lost its point")
	}
	if !store.OutcomeUnknown(err) {
		t.Errorf("the lease is dead, its keys are stuck: %v, want an unknown outcome", err)
	}
}

// A lease that is past its expiry is not opened again.
func TestOpenExpired(t *testing.T) {
	s := newScene(t)
	lease := openLease(t, s, time.Hour)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp()")
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}); err == nil {
		t.Error("an expired lease was opened again")
	}
}
