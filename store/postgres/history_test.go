package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
)

// jump is the least distance by which tokens jump at a promotion.
const jump = 64_000_000

// Trap: after a failover, rows may be older, and the clock that decides expiries may be behind.
// Tokens still grow, for every first operation. No lease is reaped before its holder could renew
// it, because its last renewal may be missing.
// Proves: promise 3, A2, trap failover
func TestPromotion(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startStore(t, url, id)
	first := openLease(t, s, time.Hour)
	held, contended := askFor("held", first), askFor("contended", first)
	want(t, acquire(t, s, held), store.Granted)
	want(t, acquire(t, s, contended), store.Granted)
	waiter := askFor("contended", first)
	want(t, enqueue(t, s, waiter), store.Queued)
	want(t, enqueue(t, s, askFor("contended", first)), store.Queued)

	for name, first := range map[string]func(s engine, mine store.LeaseID) error{
		"acquire": func(s engine, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), mine)})
			return err
		},
		"take-over": func(s engine, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor("held", mine)})
			return err
		},
		"several leases": func(s engine, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), among(askFor(uuid.NewString(), mine)))
			return err
		},
		"many": func(s engine, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor("held", mine), askFor(uuid.NewString(), mine)})
			return err
		},
		"enqueue": func(s engine, mine store.LeaseID) error {
			_, err := s.Enqueue(t.Context(), []store.Ask{askFor("held", mine)})
			return err
		},
		"check": func(s engine, _ store.LeaseID) error {
			_, err := s.Check(t.Context(), []store.Attempt{waiter.Attempt})
			return err
		},
		"release with hand-off": func(s engine, _ store.LeaseID) error {
			token := pgtest.Query[int64](t, url, "SELECT token FROM locksidecar.locks WHERE key = 'contended'")
			_, err := s.Release(t.Context(), []store.Claim{{Key: "contended", Token: token, Lease: held.Lease}})
			return err
		},
		"sweep": func(s engine, _ store.LeaseID) error { return s.Sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			before := lastToken(t, url)
			own.Promote(t)
			exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
			s := startStore(t, url, id)
			mine := openLease(t, s, time.Hour)
			if err := first(s, mine); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.leases WHERE id = '"+held.Lease.String()+"' AND expires_at > clock_timestamp() + interval '55 min'"); n != 1 {
				t.Fatal("the holder's lease does not get its full TTL on the new server")
			}
			if n := pgtest.Query[int64](t, url, fmt.Sprintf("SELECT count(*) FROM locksidecar.locks WHERE token > %d AND token < %d", before, before+jump)); n != 0 {
				t.Error("a lock was granted before the jump")
			}
			want(t, acquire(t, s, askFor("held", mine)), store.Held)
			if a := want(t, acquire(t, s, askFor(uuid.NewString(), mine)), store.Granted); a.Token < before+jump {
				t.Errorf("token %d after %d", a.Token, before)
			}
		})
	}
}

// Trap: on a promoted server a lease looks expired, because its last renewal is missing. The first
// operation is a renewal, and it must keep the lease.
// Proves: trap failover
func TestARenewalFirstAfterAPromotion(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startStore(t, url, id)
	leases := []store.LeaseID{openLease(t, s, time.Hour), openLease(t, s, time.Hour)}
	own.Promote(t)
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	s = startStore(t, url, id)
	renewal, err := s.Renew(t.Context(), leases)
	if kept := renewal.Renewed; err != nil || len(kept) != len(leases) {
		t.Errorf("%d of %d are kept: %v", len(kept), len(leases), err)
	}
	// The extension happens once. Now an expired lease is dead.
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	if renewal, err := s.Renew(t.Context(), leases); err != nil || len(renewal.Renewed) != 0 {
		t.Errorf("%d are kept after they expired: %v", len(renewal.Renewed), err)
	}
}

// Trap: a waiter is handed the lock just before a promotion, and then checks. By the new server's
// clock the grant looks expired. If the check reported that, the waiter would leave. But new_history
// gives the lease its TTL again, so the lock would stay held without a holder.
// Proves: A2, trap failover
func TestAGrantIsNotOverAfterAPromotion(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(engine, store.Attempt) ([]store.Answer, error){
		"check": func(s engine, a store.Attempt) ([]store.Answer, error) {
			return s.Check(t.Context(), []store.Attempt{a})
		},
		"cancel": func(s engine, a store.Attempt) ([]store.Answer, error) {
			return s.Cancel(t.Context(), []store.Attempt{a})
		},
	} {
		t.Run(name, func(t *testing.T) {
			sc := newScene(t)
			waiter := askFor("k", sc.lease)
			held := askFor("k", openLease(t, sc, time.Hour))
			token := want(t, acquire(t, sc, held), store.Granted).Token
			want(t, enqueue(t, sc, waiter), store.Queued)
			if _, err := sc.Release(t.Context(), []store.Claim{{Key: "k", Token: token, Lease: held.Lease}}); err != nil {
				t.Fatal(err)
			}
			exec(t, sc.conn, "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
			answers, err := ask(sc, waiter.Attempt)
			if err != nil || answers[0].Outcome != store.Granted {
				t.Errorf("got %+v, %v; the lock is the waiter's", answers, err)
			}
		})
	}
}

// If many operations are first on a promoted server, tokens jump once. A locked row of a lease does
// not delay them.
// Proves: trap failover
func TestAPromotionIsNotHeldUp(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), deadlocks, pgroles.Template())
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	locked, held := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("held", held)), store.Granted)
	own.Promote(t)
	operator := connect(t, url)
	exec(t, operator, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	exec(t, operator, fmt.Sprintf("BEGIN; SELECT FROM locksidecar.leases WHERE id = '%s' FOR UPDATE", locked))

	least := leastPromoted(t, url)
	var first sync.WaitGroup
	for i := range 5 {
		s = startStore(t, url, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"})
		s, mine := s, openLease(t, s, time.Hour)
		first.Go(func() {
			answers, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), mine)})
			if err != nil || answers[0].Outcome != store.Granted || answers[0].Token < least {
				t.Errorf("got %+v, %v", answers, err)
			}
		})
	}
	first.Wait()
	if last := lastToken(t, url); last >= least+jump {
		t.Errorf("tokens jumped by at least %d, which is more than one jump", last-least)
	}
	want(t, acquire(t, s, askFor("held", openLease(t, s, time.Hour))), store.Held)
	exec(t, operator, "ROLLBACK")
}

// leastPromoted is the least possible token after a promotion at this time.
func leastPromoted(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, pgtest.Admin(url), "SELECT locksidecar.token_at(clock_timestamp())") + jump
}

// lastToken is the greatest granted token, or the floor if the floor is greater.
func lastToken(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, pgtest.Admin(url), "SELECT greatest((SELECT began_token FROM locksidecar.meta), (SELECT max(token) FROM locksidecar.locks))")
}

// Trap: one standby is promoted and dies, and then a second one, which does not know the first.
// Both have the same floor, which is ahead of the clock, and the same timeline number.
// Proves: promise 3, trap failover
func TestTokensGrowOverTwoStandbys(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	token := func() int64 { // the token of the second grant
		s := startStore(t, url, id)
		defer s.Stop()
		lease := openLease(t, s, time.Hour)
		want(t, acquire(t, s, askFor(uuid.NewString(), lease)), store.Granted)
		return want(t, acquire(t, s, askFor(uuid.NewString(), lease)), store.Granted).Token
	}
	token()
	own.Promote(t) // the promotion is recent, so the floor is ahead of the clock
	before := token()
	other := own.Copy(t)
	own.Promote(t)
	onOne := token()
	if onOne < before+jump {
		t.Errorf("token %d after %d", onOne, before)
	}
	other()
	own.Promote(t)
	if onOther := token(); onOther <= onOne {
		t.Errorf("token %d on the second standby, after %d on the first", onOther, onOne)
	}
}

// Two sessions notice a promotion at the same time. One prepares the server, and the other waits
// for it.
// Proves: trap failover
func TestOnePreparesAPromotedServer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("held", s.lease)), store.Granted)
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
	exec(t, s.other, "BEGIN; SELECT locksidecar.new_history()")
	_, _, before := holder(t, s.conn, "held")
	var floor int64
	if err := s.other.QueryRow(t.Context(), "SELECT began_token FROM locksidecar.meta").Scan(&floor); err != nil || floor < before+jump {
		t.Errorf("the floor is %d after %d: %v", floor, before, err)
	}
	answers := make(chan store.Answer, 1)
	go func() { answers <- acquire(t, s, askFor("k", s.lease)) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if a := want(t, <-answers, store.Granted); a.Token < floor || a.Token >= floor+jump {
		t.Errorf("token %d, the floor is %d", a.Token, floor)
	}
}

// meta is empty, as before a restore of its rows. Locks are not granted, and leases are not
// extended by each statement that finds meta empty.
func TestNoHistoryWithoutItsRow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	exec(t, s.conn, "DELETE FROM locksidecar.meta")
	if r, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); err == nil {
		t.Errorf("renewed: %+v", r)
	}
	if a, err := s.Enqueue(t.Context(), []store.Ask{askFor("k", s.lease)}); err == nil {
		t.Errorf("asked: %+v", a)
	}
	if n := s.count("locks", "lease_id IS NOT NULL"); n != 0 {
		t.Errorf("%d locks were granted", n)
	}
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE expires_at > clock_timestamp()"); n != 0 {
		t.Errorf("%d leases live again", n)
	}
}
