package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// Trap: a standby that was behind is promoted. It knows the lease, but not its last grants and
// releases. Renewals report the lease for reconciliation. Locks in the sidecar that this server
// knows are moved, and the others end with the lease.
// Proves: A3, trap failover
func TestLeaseIsReconciledAfterAPromotion(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory())
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startWith(t, configFor(url), id)
	lease := openLease(t, s, time.Hour)
	kept, back, lost := askFor("kept", lease), askFor("back", lease), askFor("lost", lease)
	waiter := askFor("kept", lease)
	tokens := map[string]int64{}
	grant := func(s engine, ask store.Ask) {
		tokens[ask.Key] = want(t, acquire(t, s, ask), store.Granted).Token
	}
	grant(s, kept)
	grant(s, back)
	want(t, enqueue(t, s, waiter), store.Queued)
	before := renewed(t, s, lease)
	if len(before.Reconcile) != 0 {
		t.Fatalf("got %+v", before)
	}
	s.Stop()
	standby := own.Copy(t)
	own.Restart(t)

	s = startWith(t, configFor(url), id)
	grant(s, lost)
	release(t, s, store.Claim{Key: "back", Token: tokens["back"], Lease: lease})
	want(t, acquire(t, s, lost), store.Granted)
	if r := renewed(t, s, lease); len(r.Reconcile) != 0 || r.History != before.History {
		t.Fatalf("reported without a failover: %+v, before %+v", r, before)
	}
	s.Stop()
	standby()
	own.Promote(t)

	s = startWith(t, configFor(url), id)
	r := renewed(t, s, lease)
	if !slices.Equal(r.Reconcile, []store.LeaseID{lease}) || r.History == before.History {
		t.Fatalf("got %+v, before %+v", r, before)
	}
	held, err := s.HeldUnder(t.Context(), []string{"kept", "lost"})
	if want := []store.HeldGrant{{Key: "kept", Token: tokens["kept"], Lease: lease}}; err != nil || held.History != r.History || !slices.Equal(held.Grants, want) {
		t.Fatalf("got %+v, %v; renewed in %s", held, err, r.History)
	}
	if again := renewed(t, s, lease); !slices.Equal(again.Reconcile, r.Reconcile) {
		t.Errorf("the renewed lease is still reported: %+v", again)
	}
	fresh := openLease(t, s, time.Hour)
	if r := renewed(t, s, fresh); len(r.Reconcile) != 0 {
		t.Errorf("a lease of this history is reported: %+v", r)
	}
	moves := []store.Move{
		{Attempt: store.Attempt{Key: "kept"}, Token: tokens["kept"]},
		{Attempt: waiter.Attempt},
		{Attempt: store.Attempt{Key: "lost"}, Token: tokens["lost"]},
	}
	states, err := s.Move(t.Context(), lease, fresh, moves)
	if err != nil || !slices.Equal(states, []store.ClaimStatus{store.Holds, store.Holds, store.UnknownToken}) {
		t.Fatalf("%v, %v", states, err)
	}
	if err := s.Revoke(t.Context(), []store.LeaseID{lease}); err != nil {
		t.Fatal(err)
	}
	want(t, acquire(t, s, askFor("back", fresh)), store.Granted)
	want(t, check(t, s, waiter), store.Queued)
	if v := release(t, s, store.Claim{Key: "kept", Token: tokens["kept"], Lease: lease}); v.Status != store.Holds {
		t.Errorf("status %d", v.Status)
	}
	want(t, check(t, s, waiter), store.Granted)
}

func renewed(t *testing.T, s engine, lease store.LeaseID) store.Renewal {
	t.Helper()
	r, err := s.Renew(t.Context(), []store.LeaseID{lease})
	if err != nil || len(r.Renewed) != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	return r
}

// Trap: the first operation on a promoted server is the renewal of a lease that is alive there. If
// it were only confirmed, the sidecar would not reconcile before its next renewal.
// Proves: trap failover
func TestARenewalBeginsTheHistory(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one": 1, "many": 2} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			leases := []store.LeaseID{s.lease}
			for range n - 1 {
				leases = append(leases, openLease(t, s, time.Hour))
			}
			exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
			before := lastToken(t, s.url)
			r, err := s.Renew(t.Context(), leases)
			if err != nil || len(r.Renewed) != n || len(r.Reconcile) != n || r.History == uuid.Nil {
				t.Fatalf("got %+v, %v", r, err)
			}
			if last := lastToken(t, s.url); last < before+jump {
				t.Errorf("the last token is %d after %d: new_history did not run first", last, before)
			}
		})
	}
}

// Trap: new_history skips locked leases, because they are being renewed. A renewal that finds that
// new_history must run first holds no such lock meanwhile. Otherwise its own lease would not be
// extended, and may expire by the new server's clock.
// Proves: trap failover
func TestARenewalAsksForTheHistoryBeforeItLocks(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	exec(t, s.conn, `CREATE OR REPLACE FUNCTION locksidecar.in_history() RETURNS boolean LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END'`)
	exec(t, s.other, "BEGIN; SELECT pg_advisory_xact_lock(7)")
	done := s.renewing(a, b)
	awaitBlocked(t, s.url)
	free := pgtest.Query[int64](t, s.url, `WITH free AS (SELECT FROM locksidecar.leases WHERE id IN ($1, $2) FOR NO KEY UPDATE SKIP LOCKED)
		SELECT count(*) FROM free`, a, b)
	exec(t, s.other, "COMMIT")
	if r := done(); len(r.Renewed) != 2 {
		t.Errorf("renewed %v", r.Renewed)
	}
	if free != 2 {
		t.Errorf("%d of 2 leases can be extended while a renewal asks for the history", free)
	}
}

// Two standbys that do not know each other are promoted to the same timeline. Their histories still
// have different names.
// Proves: trap failover
func TestHistoriesOfOneTimelineDiffer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	seen := map[store.History]bool{}
	for range 3 {
		exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
		seen[renewed(t, s, s.lease).History] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d names of 3 histories", len(seen))
	}
}

// Trap: by the clock of a promoted server, the lease of an ask may have expired. If this were
// reported, the sidecar would lose all locks under it.
// Proves: trap failover
func TestAnAskerIsNotJudgedByANewClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	holder := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", holder)), store.Granted)
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	want(t, acquire(t, s, askFor("k", s.lease)), store.Held)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min' WHERE id = '"+s.lease.String()+"'")
	want(t, acquire(t, s, askFor("k", s.lease)), store.LeaseLost)
}

// The same if another session begins the history at this moment: after the statement has read the lease as it was before.
// Proves: trap failover
func TestAnAskerIsNotJudgedWhileTheHistoryBegins(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	exec(t, s.conn, `ALTER FUNCTION locksidecar.in_history() RENAME TO really`)
	exec(t, s.conn, `DO $do$ BEGIN EXECUTE 'CREATE FUNCTION locksidecar.in_history() RETURNS boolean LANGUAGE plpgsql '
		|| (SELECT CASE provolatile WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END FROM pg_proc WHERE oid = 'locksidecar.really'::regproc)
		|| ' AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN locksidecar.really(); END $$'; END $do$`)
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	exec(t, s.other, "BEGIN; SELECT pg_advisory_xact_lock(7)")
	answers := make(chan store.Answer, 1)
	go func() { answers <- acquire(t, s, askFor("k", s.lease)) }()
	awaitBlocked(t, s.url)
	exec(t, s.conn, "SELECT locksidecar.new_history()")
	exec(t, s.other, "COMMIT")
	want(t, <-answers, store.Held)
}

// Trap: the same for a claim. The holder would be told that its lock expired, and then the lease
// gets its TTL again. The lock would stay held without a holder.
// Proves: trap failover
func TestAClaimIsNotJudgedByANewClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := askFor("k", store.LeaseID{})
	ask.TTL = time.Hour
	claim := store.Claim{Key: "k", Token: want(t, acquire(t, s, ask), store.Granted).Token}
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 s'")
	verdicts, err := s.Amend(t.Context(), []store.Change{{Key: claim.Key, Token: claim.Token, Lease: claim.Lease}})
	if err != nil || verdicts[0].Status != store.Holds {
		t.Errorf("got %+v, %v", verdicts, err)
	}
}
