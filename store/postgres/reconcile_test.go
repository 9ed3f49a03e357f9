package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Trap: a standby that was behind is promoted. It knows the lease, and not what was
// granted or released last. Who renews the lease hears that it must count.
func TestLeaseIsReconciledAfterAPromotion(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t)
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startStore(t, url, id)
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
		t.Fatalf("%+v", before)
	}
	s.Stop()
	standby := own.Copy(t)
	own.Restart(t)

	s = startStore(t, url, id)
	grant(s, lost)
	release(t, s, store.Claim{Key: "back", Token: tokens["back"], Lease: lease})
	want(t, acquire(t, s, lost), store.Granted)
	if r := renewed(t, s, lease); len(r.Reconcile) != 0 || r.History != before.History {
		t.Fatalf("nothing has happened: %+v, before %+v", r, before)
	}
	s.Stop()
	standby()
	own.Promote(t)

	s = startStore(t, url, id)
	r := renewed(t, s, lease)
	if !slices.Equal(r.Reconcile, []store.LeaseID{lease}) || r.History == before.History {
		t.Fatalf("%+v, before %+v", r, before)
	}
	count, err := s.HeldUnderAfter(t.Context(), []store.LeaseID{lease}, "")
	if err != nil || !count.Last || count.History != r.History {
		t.Fatalf("%+v, %v, renewed in %s", count, err, r.History)
	}
	var keys []string
	for _, heldGrant := range count.Grants {
		keys = append(keys, heldGrant.Key)
		if !heldGrant.Waiting && heldGrant.Token != tokens[heldGrant.Key] {
			t.Errorf("%+v, granted under %d", heldGrant, tokens[heldGrant.Key])
		}
	}
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"back", "kept", "kept"}) {
		t.Errorf("held under the leases: %q", keys)
	}
	believed, err := s.HeldUnder(t.Context(), []store.LeaseID{lease}, []string{"kept", "lost"})
	if err != nil || believed.History != r.History || len(believed.Grants) != 2 || believed.Grants[0].Key != "kept" || believed.Grants[1].Key != "kept" {
		t.Errorf("believed %+v, %v", believed, err)
	}
	if again := renewed(t, s, lease); !slices.Equal(again.Reconcile, r.Reconcile) {
		t.Errorf("nobody has counted: %+v", again)
	}
	if err := s.Reconciled(t.Context(), []store.LeaseID{lease}, count.History); err != nil {
		t.Fatal(err)
	}
	if again := renewed(t, s, lease); len(again.Reconcile) != 0 {
		t.Errorf("counted, and %+v", again)
	}
	if again := renewed(t, s, openLease(t, s, time.Hour)); len(again.Reconcile) != 0 {
		t.Errorf("a lease of this history: %+v", again)
	}
}

// All locks are looked at, so many by a statement that each is short, and by one sidecar at
// a time.
func TestLocksUnderLeasesArePaged(t *testing.T) {
	t.Parallel()
	const part = 2000
	for _, n := range []int{part - 1, part, 2*part + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newScene(t)
			exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, grant_id, lease_id)
				SELECT m, 'é' || md5(n::text), n, gen_random_uuid(), $1
				FROM generate_series(1, $2) n, unnest(ARRAY['m', 'n', 'o']) m ORDER BY random()`, s.lease, n)
			want(t, enqueue(t, s, askFor("line", s.lease)), store.Granted)
			waiter := askFor("line", s.lease)
			want(t, enqueue(t, s, waiter), store.Queued)
			leases := []store.LeaseID{uuid.New(), s.lease}

			exec(t, s.other, "SELECT pg_advisory_lock($1)", int64(postgres.ReconcileLock))
			if p, err := s.HeldUnderAfter(t.Context(), leases, ""); err != nil || p.Last || p.Next != "" || len(p.Grants) > 0 {
				t.Fatalf("while another looks: %d grants, next %q, last %v, %v", len(p.Grants), p.Next, p.Last, err)
			}
			exec(t, s.other, "SELECT pg_advisory_unlock($1)", int64(postgres.ReconcileLock))

			seen, waits := map[string]bool{}, 0
			for after, parts := "", 1; ; parts++ {
				p, err := s.HeldUnderAfter(t.Context(), leases, after)
				if err != nil {
					t.Fatal(err)
				}
				grants := 0
				for _, r := range p.Grants {
					if r.Waiting {
						waits++
						continue
					}
					if grants++; r.Key <= after || seen[r.Key] {
						t.Fatalf("%q behind %q", r.Key, after)
					}
					seen[r.Key] = true
				}
				if grants > part {
					t.Errorf("%d in a part", grants)
				}
				if p.Last {
					if parts != (n+1)/part+1 {
						t.Errorf("%d parts", parts)
					}
					break
				}
				after = p.Next
			}
			if len(seen) != n+1 || waits != 1 {
				t.Errorf("%d grants and %d waits", len(seen), waits)
			}
			if p, err := s.HeldUnderAfter(t.Context(), leases[:1], ""); err != nil || len(p.Grants) > 0 {
				t.Errorf("on a lease with nothing: %d grants, %v", len(p.Grants), err)
			}
		})
	}
}

// A part costs as much as it has, however many come after it: also where the planner knows
// nothing of the table, as after a backup was restored.
func TestAPartCostsWhatItHas(t *testing.T) {
	t.Parallel()
	const rows, few = 200_000, 500
	s := newScene(t)
	admin := connect(t, pgtest.Admin(s.url))
	exec(t, admin, "ALTER TABLE locksidecar.locks SET (autovacuum_enabled = off)")
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, grant_id, lease_id)
		SELECT 'n', to_char(n, '00000000'), n, gen_random_uuid(), $1 FROM generate_series(1, $2) n`, s.lease, rows)
	cluster.ResetStatements(t, s.url)
	if p, err := s.HeldUnderAfter(t.Context(), []store.LeaseID{s.lease}, ""); err != nil || len(p.Grants) != 2000 {
		t.Fatalf("%d grants, %v", len(p.Grants), err)
	}
	if n := pgtest.Query[int64](t, s.url, `SELECT sum(shared_blks_hit + shared_blks_read)::bigint FROM pg_stat_statements
		WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND query LIKE '%pg_try_advisory_xact_lock%' AND query NOT LIKE '%pg_stat_statements%'`); n == 0 || n > few {
		t.Errorf("%d blocks were read", n)
	}
}

func renewed(t *testing.T, s engine, lease store.LeaseID) store.Renewal {
	t.Helper()
	r, err := s.Renew(t.Context(), []store.LeaseID{lease})
	if err != nil || len(r.Kept) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	return r
}

// Trap: the first to come to a promoted server renews a lease that is alive there, too.
// Were that confirmed as ever, its sidecar would not count before it renews again.
func TestARenewalBeginsTheEpoch(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one": 1, "many": 2} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			leases := []store.LeaseID{s.lease}
			for range n - 1 {
				leases = append(leases, openLease(t, s, time.Hour))
			}
			exec(t, s.conn, "UPDATE locksidecar.meta SET epoch = 'another'")
			before := lastToken(t, s.url)
			r, err := s.Renew(t.Context(), leases)
			if err != nil || len(r.Kept) != n || len(r.Reconcile) != n || r.History == uuid.Nil {
				t.Fatalf("%+v, %v", r, err)
			}
			if last := lastToken(t, s.url); last < before+jump {
				t.Errorf("the last token is %d after %d: new_epoch did not come first", last, before)
			}
		})
	}
}

// Trap: new_epoch passes by the leases that somebody has locked, for they are being renewed.
// A renewal that finds that it must come first has none of them locked meanwhile: it is
// withdrawn, and another server's clock may judge the lease before it comes again.
func TestARenewalAsksForTheEpochBeforeItLocks(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	exec(t, s.conn, `CREATE OR REPLACE FUNCTION locksidecar.in_epoch() RETURNS boolean LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END'`)
	exec(t, s.other, "BEGIN; SELECT pg_advisory_xact_lock(7)")
	done := s.renewing(a, b)
	awaitBlocked(t, s.url)
	free := pgtest.Query[int64](t, s.url, `WITH free AS (SELECT FROM locksidecar.leases WHERE id IN ($1, $2) FOR NO KEY UPDATE SKIP LOCKED)
		SELECT count(*) FROM free`, a, b)
	exec(t, s.other, "COMMIT")
	if r := done(); len(r.Kept) != 2 {
		t.Errorf("kept %v", r.Kept)
	}
	if free != 2 {
		t.Errorf("%d of 2 leases can be prolonged while a renewal asks for the epoch", free)
	}
}

// Two standbys that know nothing of each other are promoted to the same timeline. What
// follows has another name all the same.
func TestHistoriesOfOneTimelineDiffer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	seen := map[store.History]bool{}
	for range 3 {
		exec(t, s.conn, "UPDATE locksidecar.meta SET epoch = 'another'")
		seen[renewed(t, s, s.lease).History] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d names for 3 histories", len(seen))
	}
}

// Trap: by the clock of a promoted server the asker's own lease may have expired. Were
// that told, the sidecar would give up all that is held under it.
func TestAnAskerIsNotJudgedByANewClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	holder := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", holder)), store.Granted)
	exec(t, s.conn, "UPDATE locksidecar.meta SET epoch = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	want(t, acquire(t, s, askFor("k", s.lease)), store.Held)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min' WHERE id = '"+s.lease.String()+"'")
	want(t, acquire(t, s, askFor("k", s.lease)), store.LeaseLost)
}

// Trap: the same for a claim. A holder that is told that its lock has expired, and whose
// lease then gets its time once more, has a lock that it does not believe in.
func TestAClaimIsNotJudgedByANewClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := askFor("k", store.LeaseID{})
	ask.TTL = time.Hour
	claim := store.Claim{Key: "k", Token: want(t, acquire(t, s, ask), store.Granted).Token}
	exec(t, s.conn, "UPDATE locksidecar.meta SET epoch = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 s'")
	verdicts, err := s.Amend(t.Context(), []store.Change{{Claim: claim}})
	if err != nil || verdicts[0].Status != store.Holds {
		t.Errorf("%+v, %v", verdicts, err)
	}
}
