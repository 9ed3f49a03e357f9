package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// alone, among and beside make batches for the statements that take free keys.
func alone(ask store.Ask) []store.Ask { return []store.Ask{ask} }

func among(ask store.Ask) []store.Ask {
	byTTL := askFor("among "+ask.Key, uuid.Nil)
	byTTL.TTL = time.Hour
	return []store.Ask{ask, byTTL}
}

// beside adds asks under the same lease.
func beside(ask store.Ask) []store.Ask {
	return []store.Ask{ask, askFor("beside "+ask.Key, ask.Lease)}
}

// taking is a statement that takes free keys. With rows it is for keys that were released a short time ago.
type taking struct {
	batch func(store.Ask) []store.Ask
	rows  bool
}

var statementsThatTake = map[string]taking{
	"one": {batch: alone}, "row": {alone, true}, "session": {batch: beside}, "rows": {beside, true}, "many": {batch: among},
}

// of returns asks for which the store uses this statement.
func (w taking) of(s *scene, ask store.Ask) []store.Ask {
	asks := w.batch(ask)
	postgres.SetReleased(s.Store, w.keys(asks)...)
	return asks
}

// makeRows inserts free rows for the keys of such asks if the statement needs rows.
func (w taking) makeRows(s *scene, ask store.Ask) {
	s.Helper()
	exec(s.T, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
		SELECT 'n', unnest($1::text[]), 1, clock_timestamp() ON CONFLICT DO NOTHING`, w.keys(w.batch(ask)))
}

func (w taking) keys(asks []store.Ask) (keys []string) {
	for _, a := range asks {
		if w.rows {
			keys = append(keys, a.Key)
		}
	}
	return keys
}

// A dead lease gets no lock, also in a batch with living leases.
// Proves: promise 1
func TestNothingIsTakenUnderADeadLease(t *testing.T) {
	t.Parallel()
	for name, take := range statementsThatTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			expired := openLease(t, s, time.Hour)
			exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", expired)
			var all []store.Ask
			for key, lease := range map[string]store.LeaseID{"expired": expired, "missing": uuid.New(), "lives": s.lease} {
				take.makeRows(s, askFor(key, lease))
				batch := take.of(s, askFor(key, lease))
				if name == "many" {
					all = append(all, batch...)
					continue
				}
				s.wantUnder(batch)
			}
			s.wantUnder(all)
		})
	}
}

// wantUnder asks for free keys, and checks the outcome of each.
func (s *scene) wantUnder(asks []store.Ask) {
	s.Helper()
	answers, err := s.Acquire(s.Context(), asks)
	if err != nil {
		s.Fatal(err)
	}
	for i, a := range answers {
		outcome := store.LeaseLost
		if asks[i].Lease == s.lease || asks[i].TTL > 0 {
			outcome = store.Granted
		}
		if a.Outcome != outcome {
			s.Errorf("%s: outcome %d, want %d", asks[i].Key, a.Outcome, outcome)
		}
		if a.Outcome == store.Granted && (a.ExpiresIn <= time.Minute || a.ExpiresIn > time.Hour) {
			s.Errorf("%s: expires in %s", asks[i].Key, a.ExpiresIn)
		}
	}
}

// A key was free when the statement began, and was taken while the statement waited for the row.
// The statement does not take it again.
// Proves: promise 1, trap old snapshot
func TestAnAcquireThatWaitedDoesNotSteal(t *testing.T) {
	t.Parallel()
	for name, take := range statementsThatTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
			release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
			take.makeRows(s, askFor("k", s.lease))
			rival := askFor("k", openLease(t, s, time.Hour))
			exec(t, s.other, "BEGIN")
			exec(t, s.other, `UPDATE locksidecar.locks SET lease_id = $1, attempt_id = $2, token = token + 1,
				acquired_at = clock_timestamp(), freed_at = NULL`, rival.Lease, rival.ID)
			answers := make(chan []store.Answer, 1)
			go func() {
				a, err := s.Acquire(t.Context(), take.of(s, askFor("k", s.lease)))
				if err != nil {
					t.Error(err)
					a = make([]store.Answer, 1)
				}
				answers <- a
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if a := (<-answers)[0]; a.Outcome != store.Held {
				t.Errorf("outcome %d: the lock was stolen", a.Outcome)
			}
			if grant, lease, _ := holder(t, s.conn, "k"); grant != rival.ID || lease != rival.Lease {
				t.Errorf("the key is held by lease %s under grant %s", lease, grant)
			}
		})
	}
}

// On a promoted server, tokens jump before the first grant.
// Proves: promise 1, promise 3
func TestNothingIsTakenInAnotherHistory(t *testing.T) {
	t.Parallel()
	for name, take := range statementsThatTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			before := want(t, acquire(t, s, askFor("before", s.lease)), store.Granted).Token
			take.makeRows(s, askFor("after", s.lease))
			exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
			answers, err := s.Acquire(t.Context(), take.of(s, askFor("after", s.lease)))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range answers {
				if want(t, a, store.Granted).Token < before+jump {
					t.Errorf("token %d after %d", a.Token, before)
				}
			}
			if history := pgtest.Query[string](t, s.url, "SELECT server FROM locksidecar.meta"); history == "another" {
				t.Error("the history did not change")
			}
		})
	}
}

// In a quiet time, others may believe in grants that a failover has forgotten.
func TestNothingIsTakenInAQuietTime(t *testing.T) {
	t.Parallel()
	for name, take := range statementsThatTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			take.makeRows(s, askFor("k", s.lease))
			exec(t, s.conn, "UPDATE locksidecar.meta SET quiet_until = clock_timestamp() + interval '1 hour'")
			answers, err := s.Acquire(t.Context(), take.of(s, askFor("k", s.lease)))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range answers {
				want(t, a, store.Quiet)
			}
		})
	}
}

// The sweep may have deleted the row of a key that was released a short time ago.
func TestAKeyWhoseRowIsGone(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]func(store.Ask) []store.Ask{"one": alone, "many": beside} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			batch := asks(askFor("k", s.lease))
			before := make([]int64, len(batch))
			for i, ask := range batch {
				before[i] = s.takeAndFree(ask.Key)
			}
			exec(t, s.conn, "DELETE FROM locksidecar.locks WHERE key = 'k'")
			answers, err := s.Acquire(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range answers {
				if token := want(t, a, store.Granted).Token; token <= before[i] {
					t.Errorf("%s: token %d after %d", batch[i].Key, token, before[i])
				}
			}
		})
	}
}
