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

// holdFor returns an ask with a hold, under a fresh lease.
func (s *scene) holdFor(key string, hold time.Duration) store.Ask {
	s.Helper()
	ask := askFor(key, openLease(s, s, time.Hour))
	ask.MinHold = hold
	return ask
}

// mustBePending checks that only a hold keeps a key, until the end that the grant set.
func (s *scene) mustBePending(key string, token int64, hold time.Duration) {
	s.Helper()
	locks, err := s.Get(s.Context(), []string{key})
	if err != nil {
		s.Fatal(err)
	}
	if l := locks[0]; !l.Held || !l.Holder.HoldPending || l.Token != token || l.Holder.Pod != "p" {
		s.Errorf("a hold does not keep the key: %+v", l)
	}
	if n := s.count("locks", "key = $1 AND hold_until = acquired_at + $2::interval", key, hold); n != 1 {
		s.Error("the hold has a wrong end")
	}
}

// holdEnds makes all holds end now.
func (s *scene) holdEnds() {
	s.Helper()
	exec(s.T, s.conn, "UPDATE locksidecar.locks SET hold_until = clock_timestamp() WHERE hold_until IS NOT NULL")
}

// hearing returns a scene that receives news. awaitHint waits for a hint to a waiter.
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
				t.Fatal("the waiter got no hint")
			}
		}
	}
}

// A lock that is released at once leaves no hold, with and without waiters.
func TestALockThatIsGivenUpAtOnceEndsItsHold(t *testing.T) {
	t.Parallel()
	for waiters, outcome := range []string{"it is free", "it is handed over", "it is free after expired waiters"} {
		t.Run(outcome, func(t *testing.T) {
			s := newScene(t)
			ask := s.holdFor("k", 24*time.Hour)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			for range waiters {
				want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
			}
			if waiters == 2 {
				exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", s.lease)
			}
			release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease, AtOnce: true})
			if n := s.count("locks", "hold_until IS NOT NULL"); n != 0 {
				t.Error("the hold was not removed")
			}
			if n := s.count("locks", "lease_id IS NULL"); (n == 0) != (waiters == 1) {
				t.Errorf("%d keys are free", n)
			}
		})
	}
}

// A release with a hold meets an enqueue. In either order, the waiter learns when the hold ends.
func TestAReleaseWithAHoldMeetsAnEnqueue(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, s *scene) (ask store.Ask, token int64, grant uuid.UUID, enqueueIn func()) {
		ask, grant = s.holdFor("k", time.Minute), uuid.New()
		token = want(t, acquire(t, s, ask), store.Granted).Token
		exec(t, s.other, "BEGIN")
		return ask, token, grant, func() {
			exec(t, s.other, `SELECT locksidecar.ask('n', 'infinity', true, 'i', 'p', '{k}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{0}',
				'{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`, grant, s.lease)
		}
	}
	t.Run("enqueue, release", func(t *testing.T) {
		s, awaitHint := hearing(t)
		ask, token, grant, enqueueIn := begin(t, s)
		enqueueIn()
		released := make(chan store.Verdict, 1)
		go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease}) }()
		awaitBlocked(t, s.url)
		exec(t, s.other, "COMMIT")
		if v := <-released; v.Status != store.Holds {
			t.Fatalf("status %d", v.Status)
		}
		awaitHint(grant)
		s.mustBePending("k", token, time.Minute)
	})
	t.Run("release, enqueue", func(t *testing.T) {
		s := newScene(t)
		ask, token, _, _ := begin(t, s)
		releaseIn(t, s.other, "k", token, ask.Lease)
		waiter := askFor("k", s.lease)
		answers := make(chan store.Answer, 1)
		go func() { answers <- enqueue(t, s, waiter) }()
		awaitBlocked(t, s.url)
		exec(t, s.other, "COMMIT")
		if l := want(t, <-answers, store.Queued).Lock; !l.Holder.HoldPending || l.Holder.ExpiresIn > time.Minute || l.Holder.ExpiresIn < time.Second {
			t.Errorf("the waiter does not know the end of the hold: %+v", l)
		}
		s.holdEnds()
		want(t, check(t, s, waiter), store.Granted)
	})
}

// An acquire meets the release or the reap of a holder. It does not take the key before the hold is
// over.
func TestAcquireDuringTheEndOfAHolder(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *scene, ask store.Ask, token int64){
		"release": func(s *scene, ask store.Ask, token int64) { releaseIn(s.T, s.other, "k", token, ask.Lease) },
		"reap": func(s *scene, ask store.Ask, _ int64) {
			exec(s.T, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", ask.Lease)
		},
	} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(name, ttl), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				ask := s.holdFor("k", time.Hour)
				token := want(t, acquire(t, s, ask), store.Granted).Token
				exec(t, s.other, "BEGIN")
				end(s, ask, token)
				// The statement behaves as if it had seen a dead holder.
				grant := uuid.New()
				state := make(chan string, 1)
				go func() {
					state <- pgtest.Query[string](t, s.url, `SELECT state FROM locksidecar.ask('n', 'infinity', false, 'i', 'p', '{k}',
						ARRAY[$1::uuid], ARRAY[$2::uuid], ARRAY[$3::interval], '{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`, grant, s.lease, ttl)
				}()
				poll(t, "the acquire to wait", func() bool {
					return pgtest.Query[int64](t, s.url, "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0") > 0
				})
				exec(t, s.other, "COMMIT")
				if got := <-state; got != "held" {
					t.Errorf("the key is %s before its hold is over", got)
				}
				s.mustBePending("k", token, time.Hour)
				next := askFor("k", s.lease)
				next.TTL = ttl
				want(t, acquire(t, s, next), store.Held)
				s.holdEnds()
				want(t, acquire(t, s, next), store.Granted)
			})
		}
	}
}

// A break meets a release. In either order, the hold is over afterwards, and the first waiter holds
// the key.
func TestABreakMeetsAReleaseWithAHold(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, time.Hour} {
		begin := func(t *testing.T) (s *scene, claim store.Claim, waiter store.Ask) {
			s = newScene(t)
			ask := s.holdFor("k", time.Hour)
			ask.TTL = ttl
			claim = store.Claim{Key: "k", Token: want(t, acquire(t, s, ask), store.Granted).Token, Lease: ask.Lease}
			waiter = askFor("k", s.lease)
			want(t, enqueue(t, s, waiter), store.Queued)
			exec(t, s.other, "BEGIN")
			return s, claim, waiter
		}
		t.Run(fmt.Sprint("break, release ", ttl), func(t *testing.T) {
			t.Parallel()
			s, claim, waiter := begin(t)
			exec(t, s.other, "SELECT locksidecar.signal('n', 'infinity', '{k}', '{0}', '{break}', '{why}')")
			released := make(chan store.Verdict, 1)
			go func() { released <- release(t, s, claim) }()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if v := <-released; (v.Status == store.Holds) != (ttl == 0) {
				t.Errorf("status %d", v.Status)
			}
			want(t, check(t, s, waiter), store.Granted)
		})
		t.Run(fmt.Sprint("release, break ", ttl), func(t *testing.T) {
			t.Parallel()
			s, claim, waiter := begin(t)
			releaseIn(t, s.other, "k", claim.Token, claim.Lease)
			done := s.signalling(store.Signal{Kind: store.Break, Key: "k", Token: claim.Token})
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if got := done(); got != store.Holds {
				t.Errorf("status %d", got)
			}
			want(t, check(t, s, waiter), store.Granted)
		})
	}
}

// A hand-off to a waiter with a hold meets the reap of its lease. The hold keeps the key, or the
// next waiter gets it.
func TestAHandOffToAHoldMeetsAReap(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter, behind := s.holdFor("k", time.Hour), askFor("k", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	want(t, enqueue(t, s, behind), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT locksidecar.hand_off('{n}', '{k}', ARRAY[$1::uuid], ARRAY[$2::bigint], '{\"\"}')", s.lease, token)
	revoked := make(chan error, 1)
	go func() { revoked <- s.Revoke(t.Context(), []store.LeaseID{waiter.Lease}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	_, _, token = holder(t, s.conn, "k")
	s.mustBePending("k", token, time.Hour)
	want(t, check(t, s, waiter), store.Gone)
	want(t, check(t, s, behind), store.Queued)
	s.holdEnds()
	want(t, check(t, s, behind), store.Granted)
}

// The lease of a release has expired, and may be renewed at this moment. The release ends the
// grant, but not the hold.
func TestALateReleaseMeetsARenewal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Hour)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", ask.Lease)
	claim := store.Claim{Key: "k", Token: token, Lease: ask.Lease}
	for range 2 {
		if v := release(t, s, claim); v.Status != store.Expired {
			t.Errorf("status %d", v.Status)
		}
		exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", ask.Lease)
		s.mustBePending("k", token, time.Hour)
	}
	s.holdEnds()
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// The first waiter gets the key when the hold is over, even if its check is lost, because the sweep
// hands the key off. Earlier sweeps do not.
func TestTheSweepHandsOffAtTheEndOfAHold(t *testing.T) {
	t.Parallel()
	for _, released := range []bool{true, false} {
		t.Run(fmt.Sprint("released: ", released), func(t *testing.T) {
			s := newScene(t)
			postgres.SweepAtOnce(s.Space)
			ask := s.holdFor("k", time.Hour)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
			if released {
				release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease})
			} else if err := s.Revoke(t.Context(), []store.LeaseID{ask.Lease}); err != nil {
				t.Fatal(err)
			}
			sweep := func() {
				t.Helper()
				if err := s.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			sweep()
			s.mustBePending("k", token, time.Hour)
			s.holdEnds()
			sweep()
			if _, lease, next := holder(t, s.conn, "k"); lease != s.lease || next <= token {
				t.Errorf("held under %s, token %d after %d", lease, next, token)
			}
		})
	}
}

// A call is being queued behind a hold. It learns that the hold ends earlier than it had read.
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
				'{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`, grant, s.lease)
			leases := []store.LeaseID{ask.Lease}
			for range more {
				leases = append(leases, openLease(t, s, time.Hour))
			}
			revoked := make(chan error, 1)
			go func() { revoked <- s.Revoke(t.Context(), leases) }()
			poll(t, "the reap to wait or end", func() bool { return len(revoked) > 0 || isBlocked(t, s.url) })
			exec(t, s.other, "COMMIT")
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			awaitHint(grant)
		})
	}
}

// A hold is cut short. The first waiter is served. The next waiter with another lease gets a hint,
// because its holder may end earlier. Waiters with the holder's lease would end with it.
func TestShortenedHoldHintsTheNextWaiter(t *testing.T) {
	t.Parallel()
	s, awaitHint := hearing(t)
	ask := s.holdFor("k", 24*time.Hour)
	claim := store.Claim{Key: "k", Lease: ask.Lease, AtOnce: true}
	claim.Token = want(t, acquire(t, s, ask), store.Granted).Token
	first, same, other := askFor("k", s.lease), askFor("k", s.lease), askFor("k", openLease(t, s, time.Hour))
	for _, waiter := range []store.Ask{first, same, other} {
		want(t, enqueue(t, s, waiter), store.Queued)
	}
	release(t, s, claim)
	awaitHint(other.ID)
	want(t, check(t, s, first), store.Granted)
}

// The answer to a release is lost, and with it the hint to the waiter that now has to wait for the end of the hold. A repeat of the release
// sends the hint again.
func TestARepeatedReleaseHintsAgainBehindAHold(t *testing.T) {
	t.Parallel()
	s, awaitHint := hearing(t)
	ask := s.holdFor("k", 24*time.Hour)
	claim := store.Claim{Key: "k", Lease: ask.Lease}
	claim.Token = want(t, acquire(t, s, ask), store.Granted).Token
	waiter := askFor("k", openLease(t, s, time.Hour))
	want(t, enqueue(t, s, waiter), store.Queued)
	for _, status := range []store.ClaimStatus{store.Holds, store.Released} {
		if v := release(t, s, claim); v.Status != status {
			t.Fatalf("status %d, want %d", v.Status, status)
		}
		awaitHint(waiter.ID)
	}
}

// A sidecar with many holds dies. A few statements keep their keys and drop the waiters of its
// leases.
func TestTheHoldsOfADeadInstance(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	dead := startStore(t, url, store.Identity{Namespace: "n", Instance: "dead", Pod: "p"})
	heir := startStore(t, url, store.Identity{Namespace: "n", Instance: "heir", Pod: "q"})
	s := &scene{t, dead, url, connect(t, url), connect(t, url), openLease(t, dead, time.Hour), nil}
	const many = 50
	asks := make([]store.Ask, many)
	for n := range asks {
		asks[n] = askFor(fmt.Sprintf("k%d", n), s.lease)
		asks[n].MinHold = time.Minute
	}
	answers, err := dead.Acquire(t.Context(), asks)
	if err != nil {
		t.Fatal(err)
	}
	left := askFor("k0", s.lease)
	want(t, enqueue(t, dead, left), store.Queued)
	dead.Stop()
	cluster.ResetStatements(t, url)
	if err := heir.ReapInstance(t.Context(), "dead"); err != nil {
		t.Fatal(err)
	}
	if n := cluster.Statements(t, url, "%locksidecar%"); n > 10 {
		t.Errorf("%d statements, want a few for all holds", n)
	}
	s.Store = heir
	for n, a := range answers {
		s.mustBePending(asks[n].Key, a.Token, time.Minute)
	}
	if locks, err := heir.List(t.Context(), store.Query{Instance: "dead", Limit: many + 1}); err != nil || len(locks) != many {
		t.Errorf("%d locks of the dead instance, %v; want %d", len(locks), err, many)
	}
	if n := waiterRows(t, url, left.ID); n != 0 {
		t.Error("a waiter of the dead instance is still queued")
	}
}

// A waiter checks at the reported end of the lease, and gets the key at once.
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
			// On a slow machine the hold may be over before the check. Then the hold is doubled.
			for hold := 300 * time.Millisecond; hold < 10*time.Second; hold *= 2 {
				ask := s.holdFor(fmt.Sprint("k", hold), hold)
				first := want(t, acquire(t, s, ask), store.Granted)
				waiter := askFor(ask.Key, s.lease)
				if a := want(t, enqueue(t, s, waiter), store.Queued); a.Lock.Holder.ExpiresIn < time.Minute {
					t.Fatalf("expires in %s: this does not test the rule", a.Lock.Holder.ExpiresIn)
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
			t.Error("the hold was always over before the check")
		})
	}
}

// A withdrawal ends an undelivered hold. If another instance has the same attempt's hold, it may be
// delivered, and stays.
func TestAWithdrawalLeavesTheHoldsOfOthers(t *testing.T) {
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

// TestStatementsOfAHold counts the statements for a hold.
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
	counted("acquire", 2, func() error {
		answers, err := s.Acquire(t.Context(), asks)
		for i, a := range answers {
			claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: asks[i].Lease}
		}
		return err
	})
	counted("release", 3, func() error {
		verdicts, err := s.Release(t.Context(), claims)
		if slices.ContainsFunc(verdicts, func(v store.Verdict) bool { return v.Status != store.Holds }) {
			t.Errorf("got %+v", verdicts)
		}
		return err
	})
}

// A promotion extends leases, because renewals may be missing. It does not extend holds.
// Proves: trap failover
func TestAPromotionProlongsNoHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.holdFor("k", time.Minute)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	release(t, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease})
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 s' WHERE id = $1", s.lease)
	if after := want(t, acquire(t, s, askFor("after", s.lease)), store.Granted); after.ExpiresIn < time.Minute {
		t.Fatalf("expires in %s: this does not test the rule", after.ExpiresIn)
	}
	s.mustBePending("k", token, time.Minute)
}

// An undelivered grant is withdrawn with its hold, even if its lease is dead. The lease's other
// locks stay.
func TestAWithdrawalEndsTheHold(t *testing.T) {
	t.Parallel()
	for _, reaped := range []bool{false, true} {
		for _, contended := range []bool{false, true} {
			t.Run(fmt.Sprint("reaped: ", reaped, ", contended: ", contended), func(t *testing.T) {
				s := newScene(t)
				ask := s.holdFor("k", 24*time.Hour)
				want(t, acquire(t, s, ask), store.Granted)
				other := askFor("other", ask.Lease)
				want(t, acquire(t, s, other), store.Granted)
				waiter := askFor("k", s.lease)
				if contended {
					want(t, enqueue(t, s, waiter), store.Queued)
				}
				if reaped {
					if err := s.Revoke(t.Context(), []store.LeaseID{ask.Lease}); err != nil {
						t.Fatal(err)
					}
				}
				if err := withdraw(t.Context(), s, ask.Attempt); err != nil {
					t.Fatal(err)
				}
				if contended {
					want(t, check(t, s, waiter), store.Granted)
				} else {
					want(t, acquire(t, s, waiter), store.Granted)
				}
				if n := s.count("leases", "id = $1", ask.Lease); (n == 0) != reaped {
					t.Errorf("%d leases are left", n)
				}
			})
		}
	}
}
