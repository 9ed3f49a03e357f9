package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// Each claim of a batch is checked against its own lease. The lease of a bind:ttl lock ends with
// the lock.
// Proves: promise 1
func TestABatchOfReleasesLooksAtEachLease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	expired, byTTL := askFor("expired", openLease(t, s, time.Hour)), askFor("ttl", uuid.Nil)
	byTTL.TTL = time.Hour
	var claims []store.Claim
	for _, ask := range []store.Ask{askFor("lives", s.lease), expired, byTTL} {
		token := want(t, acquire(t, s, ask), store.Granted).Token
		claims = append(claims, store.Claim{Key: ask.Key, Token: token, Lease: ask.Lease})
	}
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", expired.Lease)
	_, claims[2].Lease, _ = holder(t, s.conn, "ttl")

	verdicts, err := s.Release(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	for i, standing := range []store.ClaimStatus{store.Holds, store.Expired, store.Holds} {
		if v := verdicts[i]; v.Status != standing {
			t.Errorf("%s: status %d, want %d", claims[i].Key, v.Status, standing)
		}
	}
	if n := pgtest.Query[int](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE NOT renewed"); n > 0 {
		t.Error("the lease of the bind:ttl lock still exists")
	}
}

// A release that hands the key over foretells that the next one does, too, so that one goes the way with all steps. If the caller knew of the
// waiter, as after a recall, it says so the next time: so nothing is foretold.
func TestARecallForetellsNothing(t *testing.T) {
	t.Parallel()
	for _, awaited := range []bool{false, true} {
		s := newScene(t)
		held := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
		waiter := askFor("k", s.lease)
		want(t, enqueue(t, s, waiter), store.Queued)
		if v := release(t, s, store.Claim{Key: "k", Token: held.Token, Lease: s.lease, Awaited: awaited}); v.Status != store.Holds {
			t.Fatalf("the first release: %+v", v)
		}
		answers, err := s.Check(t.Context(), []store.Attempt{waiter.Attempt})
		if err != nil {
			t.Fatal(err)
		}
		cluster.ResetStatements(t, s.url)
		if v := release(t, s, store.Claim{Key: "k", Token: want(t, answers[0], store.Granted).Token, Lease: s.lease}); v.Status != store.Holds {
			t.Fatalf("the next release: %+v", v)
		}
		one, all := cluster.Statements(t, s.url, "%locksidecar:release_one%"), cluster.Statements(t, s.url, "%locksidecar:release */%")
		if fast := one == 1 && all == 0; fast != awaited {
			t.Errorf("the first was awaited: %v; the next one took %d statements of the fast way, %d of the other", awaited, one, all)
		}
	}
}
