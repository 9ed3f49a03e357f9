package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// As in race_test.go, a race becomes a sequence: another session's transaction on a shared key is
// open when the store's statement comes, and commits then.

// asks starts an ask in the transaction of the other session. limit is an SQL literal.
func (s *scene) asks(mayWait bool, grant store.AttemptID, limit string) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	exec(s.T, s.other, `SELECT locksidecar.ask('n', 'infinity', $1, 'i', 'p', '{k}', ARRAY[$2::uuid], ARRAY[$3::uuid], '{0}',
		'{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', $4::text::integer[], NULL)`, mayWait, grant, s.lease, limit)
}

// releases starts a release in the transaction of the other session.
func (s *scene) releases(token int64) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	exec(s.T, s.other, `SELECT locksidecar.release('n', 'i', '{k}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{false}', '{false}',
		'{NULL}', '{false}', '{""}', '{""}')`, token, s.lease)
}

// meanwhile calls the store, which waits until the other transaction is committed.
func (s *scene) meanwhile(call func() error) {
	s.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	awaitBlocked(s.T, s.url)
	exec(s.T, s.other, "COMMIT")
	if err := <-done; err != nil {
		s.Fatal(err)
	}
}

// shareOf returns an attempt to get a share of the key k, with the lease of the scene.
func (s *scene) shareOf(limit int) store.Ask {
	ask := askFor("k", s.lease)
	ask.Shared, ask.Limit = true, limit
	return ask
}

func (s *scene) releaseOf(token int64) func() error {
	return func() error {
		_, err := s.Release(s.Context(), []store.Claim{{Key: "k", Token: token, Lease: s.lease}})
		return err
	}
}

// slots reads the slots of the attempts with shares.
func (s *scene) slots() map[uuid.UUID]int {
	s.Helper()
	rows, err := s.conn.Query(s.Context(), "SELECT attempt_id, slot FROM locksidecar.shares WHERE key = 'k'")
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	found := map[uuid.UUID]int{}
	for rows.Next() {
		var id uuid.UUID
		var slot int
		if err := rows.Scan(&id, &slot); err != nil {
			s.Fatal(err)
		}
		found[id] = slot
	}
	return found
}

func TestTwoReleasesOfSharesLetTheWriterIn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first := want(t, acquire(t, s, s.shareOf(0)), store.Granted).Token
	second := want(t, acquire(t, s, s.shareOf(0)), store.Granted).Token
	writer := askFor("k", s.lease)
	want(t, enqueue(t, s, writer), store.Queued)
	s.releases(first)
	s.meanwhile(s.releaseOf(second))
	if grant, _, token := holder(t, s.conn, "k"); grant != writer.ID || token <= second || len(s.slots()) > 0 {
		t.Errorf("granted to %s under %d, with shares %v", grant, token, s.slots())
	}
}

func TestSharesOfOneKeyAreReleasedInOneBatch(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var claims []store.Claim
	for range 3 {
		claims = append(claims, store.Claim{Key: "k", Lease: s.lease, Token: want(t, acquire(t, s, s.shareOf(3)), store.Granted).Token})
	}
	waiter := s.shareOf(3)
	want(t, enqueue(t, s, waiter), store.Queued)
	claims[1].Token++ // an unknown token
	verdicts, err := s.Release(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	for i, status := range []store.ClaimStatus{store.Holds, store.UnknownToken, store.Holds} {
		if verdicts[i].Status != status {
			t.Errorf("claim %d: %d, want %d", i, verdicts[i].Status, status)
		}
	}
	if got := s.slots(); len(got) != 2 || got[waiter.ID] != 0 {
		t.Errorf("shares %v, want the waiter's in slot 0 and one other", got)
	}
}

// Proves: promise 19
func TestLastReleaseOfASharedKeySeesAnEnqueueInFlight(t *testing.T) {
	t.Parallel()
	for mode, limit := range map[string]string{"writer": "{NULL}", "reader": "{1}"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			token := want(t, acquire(t, s, s.shareOf(1)), store.Granted).Token
			grant := uuid.New()
			s.asks(true, grant, limit)
			s.meanwhile(s.releaseOf(token))
			if got, _, next := holder(t, s.conn, "k"); got != grant || next <= token {
				t.Errorf("granted to %s under %d after %d", got, next, token)
			}
		})
	}
}

// An ask that comes while the last permit of a semaphore is being released waits for the release, and gets the permit. It is not told that the key is held,
// neither because the row is locked nor because its statement began before the commit.
// Proves: promise 19, trap old snapshot
func TestAnAskMeetsTheReleaseOfAShare(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*postgres.Store, context.Context, []store.Ask) ([]store.Answer, error){
		"acquire": (*postgres.Store).Acquire, "enqueue": (*postgres.Store).Enqueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			token := want(t, acquire(t, s, s.shareOf(2)), store.Granted).Token
			want(t, acquire(t, s, s.shareOf(2)), store.Granted)
			s.releases(token)
			var answers []store.Answer
			s.meanwhile(func() (err error) {
				answers, err = do(s.Store, t.Context(), []store.Ask{s.shareOf(2)})
				return err
			})
			if got := want(t, answers[0], store.Granted); got.Slot != 0 || got.Token <= token {
				t.Errorf("slot %d under %d", got.Slot, got.Token)
			}
		})
	}
}

// The enqueue does not lock the leases of shared holders, so the reap does not wait for it.
// Proves: promise 19
func TestReapOfAShareSeesAnEnqueueInFlight(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	share := s.shareOf(0)
	share.Lease = dying
	want(t, acquire(t, s, share), store.Granted)
	grant := uuid.New()
	s.asks(true, grant, "{NULL}")
	s.meanwhile(func() error { return s.Revoke(t.Context(), []store.LeaseID{dying}) })
	if got, _, _ := holder(t, s.conn, "k"); got != grant {
		t.Errorf("granted to %s, want the waiter", got)
	}
}

// A share is granted under a lease that is reaped before the grant is committed. The share does not
// block others.
func TestShareUnderADeadLeaseBlocksNoOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	living := s.lease
	s.lease = dying
	s.asks(false, uuid.New(), "{1}")
	s.lease = living
	if err := s.Revoke(t.Context(), []store.LeaseID{dying}); err != nil {
		t.Fatal(err)
	}
	exec(t, s.other, "COMMIT")
	waiter := s.shareOf(1)
	if got := want(t, enqueue(t, s, waiter), store.Granted); got.Slot != 0 {
		t.Errorf("slot %d", got.Slot)
	}
	if got := s.slots(); len(got) != 1 {
		t.Errorf("shares %v", got)
	}
}

// Proves: promise 19
func TestLimitIsKeptBesideAGrantInFlight(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			first := want(t, acquire(t, s, s.shareOf(limit)), store.Granted).Token
			if limit > 1 {
				want(t, acquire(t, s, s.shareOf(limit)), store.Granted)
			}
			if verdict := release(t, s, store.Claim{Key: "k", Token: first, Lease: s.lease}); verdict.Status != store.Holds {
				t.Fatalf("released: %+v", verdict)
			}
			s.asks(false, uuid.New(), fmt.Sprintf("{%d}", limit))
			s.meanwhile(func() error {
				answers, err := s.Acquire(t.Context(), []store.Ask{s.shareOf(limit)})
				if err == nil && answers[0].Outcome != store.Held {
					err = fmt.Errorf("outcome %d, want %d", answers[0].Outcome, store.Held)
				}
				return err
			})
			slots := map[int]bool{}
			for _, slot := range s.slots() {
				slots[slot] = true
			}
			if len(s.slots()) != limit || len(slots) != limit {
				t.Errorf("shares %v with limit %d", s.slots(), limit)
			}
		})
	}
}

// Proves: promise 19
func TestSlotsDifferBesideAGrantInFlight(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other := uuid.New()
	s.asks(false, other, "{2}")
	mine := s.shareOf(2)
	s.meanwhile(func() error {
		answers, err := s.Acquire(t.Context(), []store.Ask{mine})
		if err == nil && (answers[0].Outcome != store.Granted || answers[0].Slot != 1) {
			err = fmt.Errorf("answered %+v", answers[0])
		}
		return err
	})
	if got := s.slots(); got[other] != 0 || got[mine.ID] != 1 {
		t.Errorf("slots %v", got)
	}
}

// A release has seen the writer and makes the key shared. The writer's row is deleted meanwhile.
// Proves: promise 19
func TestCancelOfAWriterMeetsAGrantOfTheReaderBefore(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	before, writer, behind := s.shareOf(0), askFor("k", s.lease), s.shareOf(0)
	for _, ask := range []store.Ask{before, writer, behind} {
		want(t, enqueue(t, s, ask), store.Queued)
	}
	s.releases(token)
	s.meanwhile(func() error {
		_, err := s.Cancel(t.Context(), []store.Attempt{writer.Attempt})
		return err
	})
	got := s.slots()
	if _, ok := got[behind.ID]; !ok || len(got) != 2 {
		t.Errorf("shares %v, want %s and %s", got, before.ID, behind.ID)
	}
}

func TestCancelOfAWriterMeetsTheEnqueueOfAReader(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, s.shareOf(0)), store.Granted)
	writer, grant := askFor("k", s.lease), uuid.New()
	want(t, enqueue(t, s, writer), store.Queued)
	s.asks(true, grant, "{0}")
	s.meanwhile(func() error {
		_, err := s.Cancel(t.Context(), []store.Attempt{writer.Attempt})
		return err
	})
	if got := s.slots(); len(got) != 2 {
		t.Errorf("shares %v, want %s among them", got, grant)
	}
}

// The row of a key that was shared has no traces of that, so exclusive locks cost as little as
// before.
func TestRowOfAFormerlySharedKeyIsPlain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, s.shareOf(2)), store.Granted).Token
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	if free := pgtest.Query[bool](t, s.url, "SELECT lease_id IS NULL AND share_limit IS NULL AND attempt_id IS NULL FROM locksidecar.locks WHERE key = 'k'"); !free {
		t.Error("the row is not that of a free key")
	}
	if next := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted); next.Token <= token {
		t.Errorf("token %d after %d", next.Token, token)
	}
}

// Trap: if one attempt had two shares, either could be found, and a batch that reads both would
// fail.
// Proves: promise 19
func TestAnAttemptHasOneShareAtMost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	first := s.shareOf(3)
	first.Lease, first.MinHold = dying, time.Hour
	want(t, acquire(t, s, first), store.Granted)
	if err := s.Revoke(t.Context(), []store.LeaseID{dying}); err != nil {
		t.Fatal(err)
	}
	again := first
	again.Lease, again.MinHold = s.lease, 0
	for range 3 {
		want(t, acquire(t, s, again), store.Held)
		want(t, enqueue(t, s, again), store.Queued)
	}
	attempts := []store.Attempt{again.Attempt, {Key: "other", ID: uuid.New()}}
	if _, err := s.Check(t.Context(), attempts); err != nil {
		t.Error(err)
	}
	if _, err := s.Cancel(t.Context(), attempts); err != nil {
		t.Error(err)
	}
	shares := func() int {
		return pgtest.Query[int](t, s.url, fmt.Sprintf("SELECT count(*)::integer FROM locksidecar.shares WHERE attempt_id = '%s'", first.ID))
	}
	if n := shares(); n != 1 {
		t.Errorf("the attempt has %d shares", n)
	}
	if _, err := s.Withdraw(t.Context(), attempts); err != nil || shares() != 0 {
		t.Errorf("%d shares after the withdrawal (%v)", shares(), err)
	}
}

// An older version may have left several shares of an attempt. The youngest is found, and batches
// do not fail.
func TestTheYoungestShareOfAnAttemptIsFound(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.shareOf(3)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	exec(t, s.conn, `INSERT INTO locksidecar.shares (namespace, key, token, lease_id, attempt_id, slot, session, owner, acquired_at, traceparent, handed_by, hold_until)
		SELECT namespace, key, token - 32, gen_random_uuid(), attempt_id, 1, session, owner, acquired_at, traceparent, handed_by,
			clock_timestamp() + interval '1 hour' FROM locksidecar.shares`)
	if got := want(t, acquire(t, s, ask), store.Granted); got.Token != token {
		t.Errorf("token %d, want %d", got.Token, token)
	}
	answers, err := s.Check(t.Context(), []store.Attempt{ask.Attempt, {Key: "other", ID: uuid.New()}})
	if err != nil {
		t.Fatal(err)
	}
	if got := want(t, answers[0], store.Granted); got.Token != token {
		t.Errorf("token %d, want %d", got.Token, token)
	}
}

// settles hands off the key like a reap or a check. It returns how many waiters get a hint.
func (s *scene) settles() (looks int) {
	s.Helper()
	err := s.conn.QueryRow(s.Context(), `SELECT coalesce(sum(cardinality((handed).hints)), 0)::integer
		FROM locksidecar.hand_off('{n}', '{k}', ARRAY[locksidecar.shared_lease()], '{NULL}', '{""}')`).Scan(&looks)
	if err != nil {
		s.Fatal(err)
	}
	return looks
}

// A min_hold keeps a released share. Waiters get a hint at the release, but not at each later
// hand-off.
func TestHandOffWithoutAChangeSendsNoHints(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	kept := s.shareOf(2)
	kept.MinHold = time.Hour
	token := want(t, acquire(t, s, kept), store.Granted).Token
	want(t, acquire(t, s, s.shareOf(2)), store.Granted)
	for range 3 {
		want(t, enqueue(t, s, s.shareOf(2)), store.Queued)
	}
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	for range 3 {
		if n := s.settles(); n != 0 {
			t.Errorf("%d waiters get a hint, although nothing changed", n)
		}
	}
}

// The reap of a share that a min_hold keeps sends hints once, for either lease.
func TestReapOfAKeptShareHintsItsWaiters(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	kept := s.shareOf(0)
	kept.Lease, kept.MinHold = dying, time.Hour
	want(t, acquire(t, s, kept), store.Granted)
	want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
	exec(t, s.conn, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
	looks := pgtest.Query[int](t, s.url, fmt.Sprintf(`SELECT coalesce(sum(cardinality((handed).hints)), 0)::integer
		FROM locksidecar.hand_off('{n}', '{k}', ARRAY['%s'::uuid], '{NULL}', '{""}')`, dying))
	if looks != 1 {
		t.Errorf("%d waiters get a hint, want 1", looks)
	}
	if n := s.settles(); n != 0 {
		t.Errorf("%d waiters get a second hint", n)
	}
}

// Trap: a shared key is held under the id of a lease that does not exist. Each shared key would
// look like one whose lease is dead.
func TestSweepLeavesSharedKeysThatLiveAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, s.shareOf(0)), store.Granted)
	dangling := func() int {
		exec(t, s.conn, "UPDATE locksidecar.sweep SET walks = 'locks', page = 0, due_at = clock_timestamp()")
		return pgtest.Query[int](t, s.url, "SELECT cardinality(dangling_keys) FROM locksidecar.sweep_step('1 day', '1 day', '1 day', '1 minute')")
	}
	if n := dangling(); n != 0 {
		t.Errorf("%d keys to hand off", n)
	}
	exec(t, s.conn, "DELETE FROM locksidecar.leases")
	if n := dangling(); n != 1 {
		t.Errorf("%d keys to hand off, want only the one with the dead share", n)
	}
}

func TestEndOfADeadShareIsReportedOnceInTheQuietTime(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	share := s.shareOf(3)
	share.Lease = dying
	token := want(t, acquire(t, s, share), store.Granted).Token
	want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.meta SET quiet_until = clock_timestamp() + interval '1 hour'")
	exec(t, s.conn, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
	ends := func() int {
		return pgtest.Query[int](t, s.url, `SELECT count((handed).ended)::integer
			FROM locksidecar.hand_off('{n}', '{k}', ARRAY[(SELECT lease_id FROM locksidecar.locks WHERE key = 'k')], '{NULL}', '{""}')`)
	}
	if n := ends(); n != 1 {
		t.Errorf("reported %d times", n)
	}
	claim := store.Claim{Key: "k", Token: token, Lease: dying}
	if verdict := release(t, s, claim); verdict.Status != store.Expired {
		t.Errorf("the claim returns %+v", verdict)
	}
	exec(t, s.conn, "SELECT locksidecar.end_quiet()")
	if n := ends(); n != 0 {
		t.Errorf("reported %d times more", n)
	}
}
