package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// A lease whose row somebody keeps locked does not cost the others their lives. It is
// not said to be dead either: it is left out, with an error.
func TestARenewalGoesAroundAStuckLease(t *testing.T) {
	s := hasty(t)
	leases := []store.LeaseID{s.lease}
	for range 4 {
		leases = append(leases, openLease(t, s, time.Hour))
	}
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 min'")
	stuck := leases[2]
	others := slices.DeleteFunc(slices.Clone(leases), func(id store.LeaseID) bool { return id == stuck })
	letGo := s.operator("leases", "id = '"+stuck.String()+"'")
	for _, c := range []struct{ renewed, kept []store.LeaseID }{{leases, others}, {[]store.LeaseID{stuck}, nil}} {
		began := time.Now()
		kept, err := s.Renew(t.Context(), c.renewed)
		if !store.Unavailable(err) {
			t.Errorf("%d renewed, one of them stuck: %v, want an error", len(c.renewed), err)
		}
		if !slices.Equal(kept, c.kept) {
			t.Errorf("kept %v, want %v", kept, c.kept)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	}
	if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE expires_at > clock_timestamp() + interval '50 min'"); n != int64(len(others)) {
		t.Errorf("%d leases live for their TTL, want %d", n, len(others))
	}
	letGo()
	if kept, err := s.Renew(t.Context(), leases); err != nil || len(kept) != len(leases) {
		t.Errorf("afterwards %d of %d are kept: %v", len(kept), len(leases), err)
	}
}

// Trap: an opening that lay in a buffer lands after the lease was buried, and what it
// held is held again. One that comes too late does nothing.
func TestALeaseIsNotOpenedTooLate(t *testing.T) {
	s := newScene(t)
	buried := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", buried)), store.Granted)
	if err := s.Bury(t.Context(), []store.LeaseID{buried}); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]store.LeaseID{"new": uuid.New(), "buried": buried} {
		postgres.SetClock(s.Store, -time.Hour)
		err := s.OpenLeases(t.Context(), []store.NewLease{{ID: id, TTL: time.Hour}})
		if !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("%s: %v, want a failure that did nothing", name, err)
		}
		if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE id = $1", id); n != 0 {
			t.Errorf("%s: it was opened", name)
		}
	}
	if locks, err := s.Get(t.Context(), []string{"k"}); err != nil || locks[0].Held {
		t.Errorf("what a buried lease held: %+v, %v", locks, err)
	}
}

// Was it the clock that was wrong, it is looked at again: the next opening is in time.
func TestALateOpeningLooksAtTheClock(t *testing.T) {
	s := newScene(t)
	postgres.SetClock(s.Store, -time.Hour)
	poll(t, "a lease is opened", func() bool {
		return s.OpenLeases(t.Context(), []store.NewLease{{ID: uuid.New(), TTL: time.Hour}}) == nil
	})
}

// A repeated opening does not revive a lease that has expired.
func TestAnExpiredLeaseIsNotOpenedAgain(t *testing.T) {
	s := newScene(t)
	id := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", id)), store.Granted)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", id)
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: id, TTL: time.Hour}}); !store.Unavailable(err) {
		t.Errorf("%v, want a failure", err)
	}
	if locks, err := s.Get(t.Context(), []string{"k"}); err != nil || locks[0].Held {
		t.Errorf("what an expired lease held: %+v, %v", locks, err)
	}
}

// Trap: on a server that was just promoted a lease looks expired, for its last renewal
// is missing there. A renewal that comes first does not say that it is dead.
func TestARenewalFirstAfterAPromotion(t *testing.T) {
	own := pgtest.Start(t)
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	s := startStore(t, url, id)
	leases := []store.LeaseID{openLease(t, s, time.Hour), openLease(t, s, time.Hour)}
	own.Promote(t)
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	s = startStore(t, url, id)
	kept, err := s.Renew(t.Context(), leases)
	if err != nil || len(kept) != len(leases) {
		t.Errorf("%d of %d are kept: %v", len(kept), len(leases), err)
	}
	// That is for once. Now an expired lease is dead.
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	if kept, err := s.Renew(t.Context(), leases); err != nil || len(kept) != 0 {
		t.Errorf("%d are kept after they expired: %v", len(kept), err)
	}
}

// However many are first on a promoted server, tokens jump once. A lease that an
// operator keeps locked holds nobody up.
func TestAPromotionIsNotHeldUp(t *testing.T) {
	own := pgtest.Start(t, deadlocks)
	url := own.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	locked, held := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("held", held)), store.Granted)
	own.Promote(t)
	operator := connect(t, url)
	exec(t, operator, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	exec(t, operator, fmt.Sprintf("BEGIN; SELECT FROM locksidecar.leases WHERE id = '%s' FOR UPDATE", locked))

	least := secondsToTokens(t, url)
	var first sync.WaitGroup
	for i := range 5 {
		s = startStore(t, url, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"})
		s, mine := s, openLease(t, s, time.Hour)
		first.Go(func() {
			answers, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), mine)})
			if err != nil || answers[0].Outcome != store.Granted || answers[0].Token < least {
				t.Errorf("%+v, %v", answers, err)
			}
		})
	}
	first.Wait()
	if last := lastToken(t, url); last >= least+jump {
		t.Errorf("tokens jumped by %d at least, more than once", last-least)
	}
	want(t, acquire(t, s, askFor("held", openLease(t, s, time.Hour))), store.Held)
	exec(t, operator, "ROLLBACK")
}

// secondsToTokens is the least token after a promotion now.
func secondsToTokens(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, url, "SELECT floor(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00:00Z'))::bigint << 20")
}

func lastToken(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, url, "SELECT last_value FROM locksidecar.tokens")
}

// Trap: one standby is promoted and dies, then another that never heard of the first.
// Both jump from the same token, on timelines of the same number.
func TestTokensGrowOverTwoStandbys(t *testing.T) {
	own := pgtest.Start(t)
	url := own.NewDatabase(t)
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	token := func() int64 { // of the second grant
		s := startStore(t, url, id)
		defer s.Stop()
		lease := openLease(t, s, time.Hour)
		want(t, acquire(t, s, askFor(uuid.NewString(), lease)), store.Granted)
		return want(t, acquire(t, s, askFor(uuid.NewString(), lease)), store.Granted).Token
	}
	before := token()
	other := own.Copy(t)
	own.Promote(t)
	onOne, promoted := token(), time.Now()
	if onOne < before+jump {
		t.Errorf("token %d after %d", onOne, before)
	}
	other()
	poll(t, "the second failover is another second's", func() bool { return time.Since(promoted) > time.Second })
	own.Promote(t)
	if onOther := token(); onOther <= onOne {
		t.Errorf("token %d on the second standby, after %d on the first", onOther, onOne)
	}
}

// Nobody is put in line before LISTEN is committed, also when it was switched off a
// moment ago and is not ended yet.
func TestAnEnqueueWaitsForTheNextEar(t *testing.T) {
	url := cluster.NewDatabase(t)
	const idle = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '/* locksidecar:listen */%'"
	b := newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	for range 20 {
		b.awaitHearing(t)
		before := pgtest.Query[[]int32](t, url, "SELECT array_agg(pid) "+idle)
		b.Listen(false)
		b.Listen(true)
		want(t, enqueue(t, b, askFor(uuid.NewString(), b.lease)), store.Granted)
		if n := pgtest.Query[int64](t, url, "SELECT count(*) "+idle+" AND pid <> ALL ($1)", before); n != 1 {
			t.Fatalf("%d new connections listen when the enqueue has returned", n)
		}
		b.await(t, "the first look", isEveryWait)
	}
}

// Who waits looks again when the lock ends. Is that to be earlier, the first is told
// who can have it then; a dead waiter in front of it cannot.
func TestAShortenedLockHintsTheFirstLivingWaiter(t *testing.T) {
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenAuto)
	holder := askFor("k", a.lease)
	holder.TTL = time.Hour
	token := want(t, acquire(t, a, holder), store.Granted).Token
	dead := openLease(t, a, time.Hour)
	want(t, enqueue(t, a, askFor("k", dead)), store.Queued)
	living := askFor("k", a.lease)
	want(t, enqueue(t, a, living), store.Queued)
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead)

	verdicts, err := a.Amend(t.Context(), []store.Change{{Claim: store.Claim{Key: "k", Token: token}, TTL: time.Minute}})
	if err != nil || verdicts[0].Standing != store.Holds {
		t.Fatalf("%+v, %v", verdicts, err)
	}
	a.await(t, "a hint for the living waiter", func(n store.News) bool {
		return n.Grant == living.Grant && n.Answer.Outcome == 0
	})
}

// The same when the next holder's lease may end before the last one's would have.
func TestAHandOffToAShorterLeaseHintsTheNext(t *testing.T) {
	for name, end := range map[string]func(*listener, store.Claim) error{
		"release": func(a *listener, c store.Claim) error {
			_, err := a.Release(context.Background(), []store.Claim{c})
			return err
		},
		"bury": func(a *listener, c store.Claim) error {
			return a.Bury(context.Background(), []store.LeaseID{c.Lease})
		},
	} {
		for _, byTTL := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", by ttl: ", byTTL), func(t *testing.T) {
				url := cluster.NewDatabase(t)
				a := newListener(t, url, "a", postgres.ListenAuto)
				long, short := openLease(t, a, time.Hour), openLease(t, a, time.Minute)
				token := want(t, acquire(t, a, askFor("k", long)), store.Granted).Token
				brief := askFor("k", short)
				if byTTL {
					brief = askFor("k", a.lease)
					brief.TTL = time.Minute
				}
				dead, next := openLease(t, a, time.Hour), askFor("k", a.lease)
				want(t, enqueue(t, a, brief), store.Queued)
				want(t, enqueue(t, a, askFor("k", dead)), store.Queued)
				want(t, enqueue(t, a, next), store.Queued)
				exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead)

				if err := end(a, store.Claim{Key: "k", Token: token, Lease: long}); err != nil {
					t.Fatal(err)
				}
				a.await(t, "a hint for who is first in line now", func(n store.News) bool {
					return n.Grant == next.Grant && n.Answer.Outcome == 0
				})
				want(t, check(t, a, brief), store.Granted)
			})
		}
	}
}

// Trap: a pooler's connections outlive a failover, and lead to a standby. Without
// sessions of its own a store is told by another error, and is not ready either.
func TestAStandbyBehindAPoolerIsNotReady(t *testing.T) {
	own := pgtest.Start(t)
	url := own.NewDatabase(t)
	s := backend{t, own.Pooler(t, url, 5), postgres.ListenNever}.Open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("a", lease)), store.Granted)

	own.Demote(t)
	poll(t, "it is not ready, because of the standby", func() bool {
		if answers, err := s.Acquire(t.Context(), []store.Ask{askFor("b", lease)}); !store.Unavailable(err) {
			t.Fatalf("a standby grants: %+v, %v", answers, err)
		}
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "standby")
	})
	own.Lead(t)
	awaitReady(t, s)
	want(t, acquire(t, s, askFor("b", lease)), store.Granted)
	want(t, acquire(t, s, askFor("a", lease)), store.Held)
}

// Trap: a migrator needs two connections, and those who wait for their turn must leave
// it the second one.
func TestMigrationsThroughASmallPooler(t *testing.T) {
	url := cluster.NewDatabase(t)
	through := cluster.Pooler(t, url, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var migrators sync.WaitGroup
	for range 6 {
		migrators.Go(func() {
			if _, to, err := postgres.Migrate(ctx, through); err != nil || to == 0 {
				t.Errorf("migrated to version %d: %v", to, err)
			}
		})
	}
	migrators.Wait()
	startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
}
