package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// As in race_test.go, what would be a race is a sequence: another session's transaction on a shared key is
// open when the store comes, and commits then.

// asks begins an ask in the other session's transaction, which is open after that. limit is a literal.
func (s *scene) asks(mayWait bool, grant store.AttemptID, limit string) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	exec(s.T, s.other, `SELECT locksidecar.ask('n', 'infinity', $1, 'i', 'p', '{k}', ARRAY[$2::uuid], ARRAY[$3::uuid], '{0}',
		'{0}', '{false}', '{s}', '{o}', '{NULL}', '{t}', $4::text::integer[])`, mayWait, grant, s.lease, limit)
}

// releases begins a release in the other session's transaction, which is open after that.
func (s *scene) releases(token int64) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	exec(s.T, s.other, `SELECT locksidecar.release('n', 'i', '{k}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{false}', '{false}',
		'{NULL}', '{false}', '{""}', '{""}')`, token, s.lease)
}

// meanwhile calls the store, which waits for the other transaction until that is committed.
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

// shareOf is an attempt to get a share of the key of these tests, with the shared lease of the scene.
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

// slots reads which attempts have shares, with their slots.
func (s *scene) slots() map[uuid.UUID]int {
	s.Helper()
	rows, err := s.conn.Query(s.Context(), "SELECT grant_id, slot FROM locksidecar.shares WHERE key = 'k'")
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
	claims[1].Token++ // nobody has it
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
		t.Errorf("shares %v, want the waiter's in slot 0 and one more", got)
	}
}

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

// The enqueue locks no lease of a shared holder, so the reap is not kept waiting by one.
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

// A share is granted under a lease that a reap deletes before the grant is committed.
func TestShareUnderADeadLeaseIsInTheWayOfNobody(t *testing.T) {
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

// The writer's row is deleted while a release that has seen it makes the key a shared one.
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

// Nothing of a key that was shared is left in its row: exclusive locks cost what they did.
func TestKeyThatWasSharedIsFreeForAll(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, s.shareOf(2)), store.Granted).Token
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	if free := pgtest.Query[bool](t, s.url, "SELECT lease_id IS NULL AND places IS NULL AND grant_id IS NULL FROM locksidecar.locks WHERE key = 'k'"); !free {
		t.Error("the row is not that of a free key")
	}
	if next := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted); next.Token <= token {
		t.Errorf("token %d after %d", next.Token, token)
	}
}

// Trap: of two shares of one attempt, any could be found, and a batch read with it would fail.
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
		return pgtest.Query[int](t, s.url, fmt.Sprintf("SELECT count(*)::integer FROM locksidecar.shares WHERE grant_id = '%s'", first.ID))
	}
	if n := shares(); n != 1 {
		t.Errorf("the attempt has %d shares", n)
	}
	if _, err := s.Withdraw(t.Context(), attempts); err != nil || shares() != 0 {
		t.Errorf("%d shares after the withdrawal (%v)", shares(), err)
	}
}

// Such shares may be left by an older version: the youngest is found, and batches do not fail.
func TestTheYoungestShareOfAnAttemptIsFound(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ask := s.shareOf(3)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	exec(t, s.conn, `INSERT INTO locksidecar.shares (namespace, key, token, lease_id, grant_id, slot, session, owner, acquired_at, traceparent, handed_by, hold_until)
		SELECT namespace, key, token - 32, gen_random_uuid(), grant_id, 1, session, owner, acquired_at, traceparent, handed_by,
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

// settles hands the key off as a reap or a check does. It returns how many waiters are to look.
func (s *scene) settles() (looks int) {
	s.Helper()
	err := s.conn.QueryRow(s.Context(), `SELECT coalesce(sum(cardinality(hints)), 0)::integer
		FROM locksidecar.hand_off('{n}', '{k}', ARRAY[locksidecar.shared_lease()], '{NULL}', '{""}')`).Scan(&looks)
	if err != nil {
		s.Fatal(err)
	}
	return looks
}

// A released share keeps its place by its min_hold for long. That is told when it is released, not each time.
func TestSettlingThatChangesNothingTellsNobody(t *testing.T) {
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
			t.Errorf("%d waiters are to look, and nothing is new", n)
		}
	}
}

// The reap of a share that a min_hold keeps is news once, by whatever lease it is named.
func TestReapOfAKeptShareTellsItsWaiters(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	kept := s.shareOf(0)
	kept.Lease, kept.MinHold = dying, time.Hour
	want(t, acquire(t, s, kept), store.Granted)
	want(t, enqueue(t, s, askFor("k", s.lease)), store.Queued)
	exec(t, s.conn, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
	looks := pgtest.Query[int](t, s.url, fmt.Sprintf(`SELECT coalesce(sum(cardinality(hints)), 0)::integer
		FROM locksidecar.hand_off('{n}', '{k}', ARRAY['%s'::uuid], '{NULL}', '{""}')`, dying))
	if looks != 1 {
		t.Errorf("%d waiters are to look, want the only one", looks)
	}
	if n := s.settles(); n != 0 {
		t.Errorf("%d waiters are to look again", n)
	}
}

// Trap: no lease has the id that a shared key is held under, and so each seemed to be left behind.
func TestSweepLeavesSharedKeysThatLiveAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, s.shareOf(0)), store.Granted)
	dangling := func() int {
		exec(t, s.conn, "UPDATE locksidecar.sweep SET walks = 'locks', page = 0, due_at = clock_timestamp()")
		return pgtest.Query[int](t, s.url, "SELECT cardinality(dangling_keys) FROM locksidecar.sweep_step('1 day', '1 day', '1 day', '1 minute')")
	}
	if n := dangling(); n != 0 {
		t.Errorf("%d keys to be handed off", n)
	}
	exec(t, s.conn, "DELETE FROM locksidecar.leases")
	if n := dangling(); n != 1 {
		t.Errorf("%d keys to be handed off, want the one whose share is dead", n)
	}
}

func TestEndOfADeadShareIsToldOnceInTheQuietTime(t *testing.T) {
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
		return pgtest.Query[int](t, s.url, `SELECT count(ended)::integer
			FROM locksidecar.hand_off('{n}', '{k}', ARRAY[(SELECT lease_id FROM locksidecar.locks WHERE key = 'k')], '{NULL}', '{""}')`)
	}
	if n := ends(); n != 1 {
		t.Errorf("told %d times", n)
	}
	claim := store.Claim{Key: "k", Token: token, Lease: dying}
	if verdict := release(t, s, claim); verdict.Status != store.Expired {
		t.Errorf("the claim is answered %+v", verdict)
	}
	exec(t, s.conn, "SELECT locksidecar.end_quiet()")
	if n := ends(); n != 0 {
		t.Errorf("told %d times again", n)
	}
}
