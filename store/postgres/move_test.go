package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func configFor(url string) postgres.Config {
	return postgres.Config{URL: url, Timeout: patience, AutoMigrate: true, Failover: store.FailoverQuick}
}

// move moves one item while another session has an open transaction.
func (s *scene) moves(from, to store.LeaseID, m store.Move) (done func() store.ClaimStatus) {
	s.Helper()
	states := make(chan []store.ClaimStatus, 1)
	go func() {
		found, err := s.Move(s.Context(), from, to, []store.Move{m})
		if err != nil {
			s.Error(err)
			found = make([]store.ClaimStatus, 1)
		}
		states <- found
	}()
	return func() store.ClaimStatus { return (<-states)[0] }
}

// moving starts a move in the transaction of the other session.
func (s *scene) moving(from, to store.LeaseID, m store.Move) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	var state string
	err := s.other.QueryRow(s.Context(), "SELECT state FROM locksidecar.move('n', 'infinity', 'i', $1, $2, ARRAY[$3], ARRAY[$4::bigint], ARRAY[$5::uuid])",
		from, to, m.Key, m.Token, m.ID).Scan(&state)
	if err != nil || state != "holds" {
		s.Fatalf("%s, %v", state, err)
	}
}

// A move meets the end of the lock or its hand-off, in flight. The move decides by the row after
// that.
// Proves: trap failover
func TestMoveDuringAChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // of the key k under the lease $1
		state  store.ClaimStatus
	}{
		"release":                  {"UPDATE locksidecar.locks SET lease_id = NULL, attempt_id = NULL WHERE lease_id = $1", store.Released},
		"reap":                     {"DELETE FROM locksidecar.leases WHERE id = $1", store.Expired},
		"renewal of the old lease": {"UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", store.Holds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			to := openLease(t, s, time.Hour)
			ask := askFor("k", s.lease)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			exec(t, s.other, "BEGIN")
			exec(t, s.other, c.change, s.lease)
			done := s.moves(s.lease, to, store.Move{Attempt: ask.Attempt, Token: token})
			if c.state != store.Holds {
				awaitBlocked(t, s.url)
			}
			if c.state == store.Holds { // the move does not wait
				if state := done(); state != c.state {
					t.Errorf("status %d, want %d", state, c.state)
				}
				exec(t, s.other, "COMMIT")
				return
			}
			exec(t, s.other, "COMMIT")
			if state := done(); state != c.state {
				t.Errorf("status %d, want %d", state, c.state)
			}
			if _, lease, _ := holder(t, s.conn, "k"); lease == to {
				t.Error("a lock that had ended is held under the new lease")
			}
		})
	}
}

// The new lease is being reaped. The lock is not moved to it.
func TestMoveToALeaseThatIsBeingReaped(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	to := openLease(t, s, time.Hour)
	ask := askFor("k", s.lease)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", to)
	done := s.moves(s.lease, to, store.Move{Attempt: ask.Attempt, Token: token})
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if state := done(); state != store.Expired {
		t.Errorf("status %d", state)
	}
	if _, lease, _ := holder(t, s.conn, "k"); lease != s.lease {
		t.Errorf("held under %s", lease)
	}
}

// A hand-off to a waiter is in flight when the waiter is moved. The waiter's lock is moved.
// Proves: trap failover
func TestMoveDuringAHandOff(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	to, theirs := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	token := want(t, acquire(t, s, askFor("k", theirs)), store.Granted).Token
	waiter := askFor("k", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT locksidecar.hand_off('{n}', '{k}', ARRAY[$1::uuid], ARRAY[$2::bigint], '{\"\"}')", theirs, token)
	done := s.moves(s.lease, to, store.Move{Attempt: waiter.Attempt})
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if state := done(); state != store.Holds {
		t.Errorf("status %d", state)
	}
	if grant, lease, _ := holder(t, s.conn, "k"); grant != waiter.ID || lease != to {
		t.Errorf("held by %s under %s", grant, lease)
	}
}

// The other order: a move is in flight when the lock is released, when its old lease is reaped, or
// when its waiter gets the key.
// Proves: trap failover
func TestChangeDuringAMove(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *scene, ask store.Ask, token int64){
		"release": func(s *scene, ask store.Ask, token int64) {
			if v := release(s.T, s, store.Claim{Key: "k", Token: token, Lease: ask.Lease}); v.Status != store.Holds {
				s.Errorf("status %d", v.Status)
			}
		},
		"releases": func(s *scene, ask store.Ask, token int64) {
			verdicts, err := s.Release(s.Context(), []store.Claim{{Key: "k", Token: token, Lease: ask.Lease}, {Key: "z", Token: 1, Lease: ask.Lease}})
			if err != nil || verdicts[0].Status != store.Holds {
				s.Errorf("got %+v, %v", verdicts, err)
			}
		},
		"change of data": func(s *scene, ask store.Ask, token int64) {
			claim := store.Claim{Key: "k", Token: token, Lease: ask.Lease}
			verdicts, err := s.Amend(s.Context(), []store.Change{{Key: claim.Key, Token: claim.Token, Lease: claim.Lease, SetData: true, Data: []byte("1")}})
			if err != nil || verdicts[0].Status != store.Holds {
				s.Errorf("got %+v, %v", verdicts, err)
			}
			release(s.T, s, claim)
		},
		"withdrawal": func(s *scene, ask store.Ask, _ int64) {
			if err := withdraw(s.Context(), s, ask.Attempt); err != nil {
				s.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			to := openLease(t, s, time.Hour)
			ask := askFor("k", s.lease)
			token := want(t, acquire(t, s, ask), store.Granted).Token
			s.moving(s.lease, to, store.Move{Attempt: ask.Attempt, Token: token})
			done := make(chan struct{})
			go func() { defer close(done); change(s, ask, token) }()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			<-done
			if _, lease, _ := holder(t, s.conn, "k"); lease != uuid.Nil {
				t.Errorf("held under %s", lease)
			}
		})
	}
}

// A reap of the old lease waits for the move. Then the lock is under the new lease, and is not
// handed to its waiters.
// Proves: trap failover
func TestReapDuringAMove(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	to := openLease(t, s, time.Hour)
	ask, waiter := askFor("k", s.lease), askFor("k", openLease(t, s, time.Hour))
	token := want(t, acquire(t, s, ask), store.Granted).Token
	want(t, enqueue(t, s, waiter), store.Queued)
	s.moving(s.lease, to, store.Move{Attempt: ask.Attempt, Token: token})
	revoked := make(chan error, 1)
	go func() { revoked <- s.Revoke(t.Context(), []store.LeaseID{s.lease}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if grant, lease, is := holder(t, s.conn, "k"); grant != ask.ID || lease != to || is != token {
		t.Errorf("held by %s under %s", grant, lease)
	}
	want(t, check(t, s, waiter), store.Queued)
}

// A waiter that is being moved gets the lock under the new lease.
func TestHandOffDuringAMove(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	to, theirs := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	held, waiter := askFor("k", theirs), askFor("k", s.lease)
	token := want(t, acquire(t, s, held), store.Granted).Token
	want(t, enqueue(t, s, waiter), store.Queued)
	s.moving(s.lease, to, store.Move{Attempt: waiter.Attempt})
	released := make(chan store.Verdict, 1)
	go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: theirs}) }()
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	<-released
	if grant, lease, _ := holder(t, s.conn, "k"); grant != waiter.ID || lease != to {
		t.Errorf("held by %s under %s", grant, lease)
	}
}

// A move that arrives late from a buffer has no effect (promise 9). A move that is the first
// operation on a promoted server does not apply its clock to leases.
// Proves: trap late statement
func TestMoveComesLateOrFirst(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	to := openLease(t, s, time.Hour)
	ask := askFor("k", s.lease)
	token := want(t, acquire(t, s, ask), store.Granted).Token
	if _, err := s.conn.Exec(t.Context(), "SELECT locksidecar.move('n', clock_timestamp(), 'i', $1, $2, '{k}', ARRAY[$3::bigint], ARRAY[$4::uuid])", s.lease, to, token, ask.ID); err == nil {
		t.Error("a late move was carried out")
	}
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	if state := s.moves(s.lease, to, store.Move{Attempt: ask.Attempt, Token: token})(); state != store.Holds {
		t.Errorf("status %d", state)
	}
	if _, lease, _ := holder(t, s.conn, "k"); lease != to {
		t.Errorf("held under %s", lease)
	}
}

// A locked row does not stop the moves of other items.
func TestMoveGoesAroundALockedRow(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	to := openLease(t, s, time.Hour)
	var moves []store.Move
	for _, ask := range s.twenty(0) {
		want(t, acquire(t, s, ask), store.Granted)
		moves = append(moves, store.Move{Attempt: ask.Attempt})
	}
	letGo := s.operator("locks", "key = '"+moves[3].Key+"'")
	states, err := s.Move(t.Context(), s.lease, to, moves)
	if err != nil {
		t.Fatal(err)
	}
	for i, state := range states {
		if locked := i == 3; locked != (state == store.ClaimRowLocked) || !locked && state != store.Holds {
			t.Errorf("%s: status %d", moves[i].Key, state)
		}
	}
	letGo()
}
