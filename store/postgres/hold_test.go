package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// holdFor is an ask with a hold, under a fresh lease of its own.
func (s *scene) holdFor(key string, hold time.Duration) store.Ask {
	s.Helper()
	ask := askFor(key, openLease(s, s, time.Hour))
	ask.MinHold = hold
	return ask
}

// leaseRow reads whether a lease has hold_pending, and ends exactly with its hold.
func (s *scene) leaseRow(lease store.LeaseID) (pending, exact bool) {
	s.Helper()
	err := s.conn.QueryRow(s.Context(),
		"SELECT hold_pending, coalesce(expires_at = hold_until, false) FROM locksidecar.leases WHERE id = $1", lease).
		Scan(&pending, &exact)
	if err != nil {
		s.Fatalf("the lease: %v", err)
	}
	return pending, exact
}

// mustBePending checks that a lease lasts until its min_hold is over.
func (s *scene) mustBePending(lease store.LeaseID) {
	s.Helper()
	if pending, exact := s.leaseRow(lease); !pending || !exact {
		s.Errorf("pending: %v, until its hold is over: %v", pending, exact)
	}
}

// hearing is a scene that hears: awaitHint waits until a waiter is to look.
func hearing(t *testing.T) (s *scene, awaitHint func(store.AttemptID)) {
	url := cluster.NewDatabase(t)
	heard := make(chan store.AttemptID, 100)
	i := backend{tb: t, url: url}.open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	t.Cleanup(i.Stop)
	start(t, i, func(n store.News) { heard <- n.ID })
	s = &scene{t, i, url, connect(t, url), connect(t, url), openLease(t, i, time.Hour), nil}
	return s, func(grant store.AttemptID) {
		t.Helper()
		for {
			select {
			case id := <-heard:
				if id == grant {
					return
				}
			case <-time.After(patience):
				t.Fatal("the waiter was not told to look")
			}
		}
	}
}

// handOffIn hands a key off in a session's open transaction.
func handOffIn(t *testing.T, conn *pgx.Conn, key string, from store.LeaseID) {
	t.Helper()
	exec(t, conn, "SELECT locksidecar.hand_off('{n}', ARRAY[$1::text], ARRAY[$2::uuid], '{NULL}', '{\"\"}')", key, from)
}

// A lock that is given up at once leaves no hold behind, whether somebody waits for it or not.
func TestALockThatIsGivenUpAtOnceEndsItsHold(t *testing.T) {
	t.Parallel()
	for waiters, outcome := range []string{"it is free", "it is handed over"} {
		t.Run(outcome, func(t *testing.T) {
			s := newScene(t)
			ask := s.holdFor("k", 24*time.Hour)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			for range waiters {
				want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
			}
			release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease, AtOnce: true})
			if !pgtest.Query[bool](t, s.url, `SELECT hold_until IS NULL AND expires_at <= clock_timestamp() + ttl
				FROM locksidecar.leases WHERE id = $1`, ask.Lease) {
				t.Error("its lease still has the hold")
			}
		})
	}
}

// A renewal that is in flight when the lock is released does not prolong the hold.
func TestAReleaseWithAHoldMeetsARenewal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Minute)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	exec(t, s.other, "BEGIN")
	exec(t, s.other, `UPDATE locksidecar.leases SET expires_at = greatest(clock_timestamp() + ttl, hold_until)
		WHERE id = $1`, ask.Lease)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if v := <-released; v.Status != store.Holds {
		t.Fatalf("status %d", v.Status)
	}
	s.mustBePending(ask.Lease)
	if grant, lease, _ := holder(t, s.conn, "k"); grant != uuid.Nil || lease != ask.Lease {
		t.Errorf("the key is kept by lease %s under grant %s, want no grant", lease, grant)
	}
}

// A reap that is in flight decides: the grant has expired, and its late release
// skips nobody.
func TestReleaseDuringReapOfItsHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Hour)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	waiter := skipFor("k", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "UPDATE locksidecar.leases SET hold_pending = true, expires_at = hold_until WHERE id = $1", ask.Lease)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, success("k", token, ask.Lease)) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if v := <-released; v.Status != store.Expired {
		t.Errorf("status %d, want expired", v.Status)
	}
	want(t, check(t, s, waiter), store.Queued)
	if grant, _, _ := holder(t, s.conn, "k"); grant != ask.ID {
		t.Error("the grant was forgotten: later claims hear that it was released")
	}
}

// A reap waits for a release or for a hand-off that is in flight, and finds a hold.
func TestReapDuringChangeOfAHold(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"one": 0, "many": 3} {
		buries := func(t *testing.T, s *scene, lease store.LeaseID) {
			leases := []store.LeaseID{lease}
			for range more {
				leases = append(leases, openLease(t, s, time.Hour))
			}
			revoked := make(chan error, 1)
			go func() { revoked <- s.Revoke(s.Context(), leases) }()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			s.mustBePending(lease)
			if n := pgtest.Query[int64](t, s.url, "SELECT count(*) FROM locksidecar.leases WHERE id <> ALL ($1)",
				[]uuid.UUID{lease, s.lease}); n != 0 {
				t.Errorf("%d leases without a hold are left", n)
			}
		}
		t.Run("release, "+name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			ask := s.holdFor("k", time.Hour)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			exec(t, s.other, "BEGIN")
			releaseIn(t, s.other, "k", token, ask.Lease)
			buries(t, s, ask.Lease)
			want(t, acquire(t, s, askFor("k", s.lease)), store.Held)
		})
		t.Run("hand-off, "+name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
			waiter, behind := s.holdFor("k", time.Hour), askFor("k", s.lease)
			want(t, enqueue(t, s, waiter), store.Queued)
			want(t, enqueue(t, s, behind), store.Queued)
			exec(t, s.other, "BEGIN")
			handOffIn(t, s.other, "k", s.lease)
			buries(t, s, waiter.Lease)
			if a := want(t, check(t, s, behind), store.Queued); !a.Lock.Holder.HoldPending || a.Lock.Holder.Lease != waiter.Lease {
				t.Errorf("held by %+v, want a lease that stands", a.Lock.Holder)
			}
			want(t, check(t, s, waiter), store.Gone)
		})
	}
}

// The other order: the waiter whose lease is reaped in the moment of the hand-off gets
// neither the lock nor a hold.
func TestHandOffToAHoldDuringReap(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	dying, next := s.holdFor("k", time.Hour), askFor("k", s.lease)
	want(t, enqueue(t, s, dying), store.Queued)
	want(t, enqueue(t, s, next), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", dying.Lease)
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	<-released
	if grant, _, _ := holder(t, s.conn, "k"); grant != next.ID {
		t.Errorf("the key is held under grant %s, want the second waiter's", grant)
	}
}

// An own lease that is reaped while a lock with a hold is asked for under it is not
// brought back to life by the hold.
func TestAcquireWithAHoldDuringReap(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Hour)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", ask.Lease)
	answers := make(chan store.Answer, 1)
	go func() { answers <- enqueue(t, s, ask) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	want(t, <-answers, store.LeaseLost)
}

// Who is just waiting behind a hold is told that it ends earlier than it read.
func TestEnqueueDuringReapWaitsForTheHold(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"one": 0, "many": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, awaitHint := hearing(t)
			ask, grant := s.holdFor("k", time.Minute), uuid.New()
			want(t, acquire(t, s, ask), store.Granted)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, `SELECT locksidecar.ask('n', 'infinity', true, 'i', 'p', '{k}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{0}',
				'{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}')`, grant, s.lease)
			leases := []store.LeaseID{ask.Lease}
			for range more {
				leases = append(leases, openLease(t, s, time.Hour))
			}
			revoked := make(chan error, 1)
			go func() { revoked <- s.Revoke(t.Context(), leases) }()
			poll(t, "the reap waits, or is over", func() bool { return len(revoked) > 0 || isBlocked(t, s.url) })
			exec(t, s.other, "COMMIT")
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			awaitHint(grant)
		})
	}
}

// A hold that is cut short: the first in the queue is served, and the next one hears that its
// new holder may end earlier.
func TestAHoldThatIsCutShortTellsTheNext(t *testing.T) {
	t.Parallel()
	s, awaitHint := hearing(t)
	ask := s.holdFor("k", 24*time.Hour)
	claim := store.Claim{Key: "k", Lease: ask.Lease, AtOnce: true}
	claim.Token = want(t, acquire(t, s, ask), store.Granted).Token
	first, second := askFor("k", s.lease), askFor("k", s.lease)
	want(t, enqueue(t, s, first), store.Queued)
	want(t, enqueue(t, s, second), store.Queued)
	release(t, s, claim)
	awaitHint(second.ID)
	want(t, check(t, s, first), store.Granted)
}

// A sidecar that died with many holds: they stand, after a few statements, and
// whatever waited under their leases is dropped.
func TestTheHoldsOfADeadInstance(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	dead := startStore(t, url, store.Identity{Namespace: "n", Instance: "dead", Pod: "p"})
	heir := startStore(t, url, store.Identity{Namespace: "n", Instance: "heir", Pod: "p"})
	s := &scene{t, dead, url, connect(t, url), connect(t, url), openLease(t, dead, time.Hour), nil}
	const many = 50
	var leases []uuid.UUID
	for n := range many {
		ask := s.holdFor(fmt.Sprintf("k%d", n), time.Minute)
		want(t, acquire(t, dead, ask), store.Granted)
		leases = append(leases, ask.Lease)
	}
	stray := askFor("k0", leases[1])
	want(t, enqueue(t, dead, stray), store.Queued)
	dead.Stop()
	for range 2 { // the second finds them as they are
		cluster.ResetStatements(t, url)
		if err := heir.ReapInstance(t.Context(), "dead"); err != nil {
			t.Fatal(err)
		}
		if n := cluster.Statements(t, url, "%locksidecar%"); n > 10 {
			t.Errorf("%d statements, want a few for all", n)
		}
		for _, lease := range leases {
			s.mustBePending(lease)
		}
	}
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.leases WHERE instance = 'dead'"); n != many {
		t.Errorf("%d leases are left, want those with a hold", n)
	}
	if n := waiterRows(t, url, stray.ID); n != 0 {
		t.Error("a waiter of the dead instance is left in line")
	}
}

// Whoever waits looks when the lease ends, as it was told, and has the key at once.
func TestAHoldIsTakenOverAtItsEnd(t *testing.T) {
	t.Parallel()
	ends := map[string]func(s *scene, ask store.Ask, token int64){
		"release": func(s *scene, ask store.Ask, token int64) {
			release(s, s, store.Claim{Key: ask.Key, Token: token, Lease: ask.Lease})
		},
		"reap": func(s *scene, ask store.Ask, _ int64) {
			if err := s.Revoke(s.Context(), []store.LeaseID{ask.Lease}); err != nil {
				s.Error(err)
			}
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			// On a busy machine the hold may be over before anybody looks.
			for hold := 300 * time.Millisecond; hold < 10*time.Second; hold *= 2 {
				ask := s.holdFor(fmt.Sprint("k", hold), hold)
				first := want(t, acquire(t, s, ask), store.Granted)
				waiter := askFor(ask.Key, s.lease)
				if a := want(t, enqueue(t, s, waiter), store.Queued); a.Lock.Holder.ExpiresIn < time.Minute {
					t.Fatalf("expires in %s: this test has lost its point", a.Lock.Holder.ExpiresIn)
				}
				end(s, ask, first.Token)
				a := check(t, s, waiter)
				waits := a.Outcome == store.Queued
				if waits {
					if a.Lock.Holder.ExpiresIn > hold {
						t.Fatalf("expires in %s, with a hold of %s", a.Lock.Holder.ExpiresIn, hold)
					}
					<-time.After(a.Lock.Holder.ExpiresIn + 5*time.Millisecond)
					a = check(t, s, waiter)
				}
				if early := hold - want(t, a, store.Granted).AcquiredAt.Sub(first.AcquiredAt); early > 0 {
					t.Fatalf("granted %s before the hold was over", early)
				}
				if waits {
					return
				}
			}
			t.Error("the hold was always over before anybody looked")
		})
	}
}

// An undo ends a hold of which nobody was told. Where another instance has it of the
// same attempt, somebody may have been.
func TestAnUndoLeavesTheHoldsOfOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "other", Pod: "p"})
	ask := s.holdFor("k", time.Hour)
	want(t, acquire(t, s, ask), store.Granted)
	if err := s.Revoke(t.Context(), []store.LeaseID{ask.Lease}); err != nil {
		t.Fatal(err)
	}
	if err := withdraw(t.Context(), other, ask.Attempt); err != nil {
		t.Fatal(err)
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Held)
	if err := withdraw(t.Context(), s, ask.Attempt); err != nil {
		t.Fatal(err)
	}
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// Nobody waits, or is granted anything, under a lease that stands. (Its
// sidecar would not ask so; a row that was left so must not go round for ever.)
func TestNobodyWaitsUnderALeaseWithAPendingHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("held", time.Hour)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	want(t, acquire(t, s, ask), store.Granted)
	stray := askFor("k", ask.Lease)
	want(t, enqueue(t, s, stray), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.leases SET hold_pending = true, expires_at = hold_until WHERE id = $1", ask.Lease)
	want(t, check(t, s, stray), store.Gone)
	if v := release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}); v.Status != store.Holds {
		t.Errorf("status %d", v.Status)
	}
	want(t, acquire(t, s, askFor("held", s.lease)), store.Held)
	want(t, acquire(t, s, askFor("held", ask.Lease)), store.LeaseLost)
	want(t, enqueue(t, s, askFor("k2", ask.Lease)), store.LeaseLost)
	want(t, acquire(t, s, askFor("k2", ask.Lease)), store.LeaseLost)
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: ask.Lease, TTL: time.Hour}}); !store.Unavailable(err) {
		t.Errorf("a lease that stands was opened again: %v", err)
	}
	s.mustBePending(ask.Lease)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	if n := waiterRows(t, s.url, stray.ID); n != 0 {
		t.Error("its row is left")
	}
}

// What a hold costs.
func TestStatementsOfAHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var asks []store.Ask
	for n := range 100 {
		asks = append(asks, s.holdFor(fmt.Sprintf("k%d", n), time.Hour))
	}
	counted := func(what string, most int64, do func() error) {
		t.Helper()
		cluster.ResetStatements(t, s.url)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := cluster.Statements(t, s.url, "%locksidecar%"); n > most {
			t.Errorf("%s: %d statements, want %d", what, n, most)
		}
	}
	claims := make([]store.Claim, len(asks))
	leases := make([]store.LeaseID, len(asks))
	counted("acquire", 2, func() error {
		answers, err := s.Acquire(t.Context(), asks)
		for i, a := range answers {
			claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: asks[i].Lease}
			leases[i] = asks[i].Lease
		}
		return err
	})
	counted("release", 3, func() error {
		verdicts, err := s.Release(t.Context(), claims)
		if slices.ContainsFunc(verdicts, func(v store.Verdict) bool { return v.Status != store.Holds }) {
			t.Errorf("%+v", verdicts)
		}
		return err
	})
	counted("reap", 3, func() error { return s.Revoke(t.Context(), leases) })
}

// A promoted server prolongs leases for holders whose renewal may be missing. What
// stands has no holder.
func TestAPromotionProlongsNoHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Minute)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease})
	exec(t, s.conn, "UPDATE locksidecar.meta SET epoch = 'another'")
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 s' WHERE id = $1", s.lease)
	if after := want(t, acquire(t, s, askFor("after", s.lease)), store.Granted); after.ExpiresIn < time.Minute {
		t.Fatalf("expires in %s: this test has lost its point", after.ExpiresIn)
	}
	s.mustBePending(ask.Lease)
}

// A bind:ttl grant of which another instance would tell, in the moment in which its lease
// begins to stand, is over.
func TestDeliveryNoteDuringReapOfItsHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "other", Pod: "p"})
	ask := askFor("k", s.lease)
	ask.TTL, ask.MinHold = time.Hour, time.Hour
	want(t, acquire(t, s, ask), store.Granted)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "UPDATE locksidecar.leases SET hold_pending = true, expires_at = hold_until WHERE NOT renewed")
	answers := make(chan store.Answer, 1)
	go func() { answers <- check(t, other, ask) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	want(t, <-answers, store.Gone)
}

// A hold that was given back, at once or because nobody was told of it, leaves no lease
// that stands for a day and holds nothing; nor one that lives as long, if its sidecar dies.
func TestHandedBackHoldLeavesNoLease(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*scene, store.Ask, int64){
		"at once": func(s *scene, a store.Ask, token int64) {
			release(s, s, store.Claim{Key: a.Key, Token: token, Lease: a.Lease, AtOnce: true})
		},
		"undone": func(s *scene, a store.Ask, _ int64) {
			if err := withdraw(s.Context(), s, a.Attempt); err != nil {
				s.Error(err)
			}
		},
	} {
		for _, contended := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", contended: ", contended), func(t *testing.T) {
				s := newScene(t)
				ask := s.holdFor("k", 24*time.Hour)
				token := want(t, acquire(t, s, ask), store.Granted).Token
				if contended {
					want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
				}
				end(s, ask, token)
				if n := s.count("leases", "expires_at > clock_timestamp() + ttl"); n != 0 {
					t.Error("its lease lives as long as the hold would have lasted")
				}
				if err := s.Revoke(t.Context(), []store.LeaseID{ask.Lease}); err != nil {
					t.Fatal(err)
				}
				if n := s.count("leases", "id = $1", ask.Lease); n != 0 {
					t.Error("its lease stands, and holds nothing")
				}
			})
		}
	}
}
