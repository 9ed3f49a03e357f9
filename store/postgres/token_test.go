package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// shiftClock moves the clock for tokens ahead, or behind if by is negative.
func shiftClock(t *testing.T, url string, by time.Duration) {
	t.Helper()
	exec(t, connect(t, url), fmt.Sprintf(`CREATE OR REPLACE FUNCTION locksidecar.token_at(at timestamptz) RETURNS bigint
		LANGUAGE sql STABLE AS 'SELECT floor((date_part(''epoch'', at) + %f) * 1000000)::bigint'`, by.Seconds()))
}

// tokenNow returns the token of the current time.
func tokenNow(t *testing.T, url string) int64 {
	t.Helper()
	return pgtest.Query[int64](t, pgtest.Admin(url), "SELECT locksidecar.token_at(clock_timestamp())")
}

// waysToTake are the ways to get a free key.
var waysToTake = func() map[string]func(*scene, store.Ask) ([]store.Answer, error) {
	ways := map[string]func(*scene, store.Ask) ([]store.Answer, error){
		"ask": func(s *scene, ask store.Ask) ([]store.Answer, error) { return s.Enqueue(s.Context(), alone(ask)) },
	}
	for name, take := range statementsThatTake {
		ways[name] = func(s *scene, ask store.Ask) ([]store.Answer, error) { return s.Acquire(s.Context(), take.of(s, ask)) }
	}
	return ways
}()

// inBackground takes a key in the background, and sends the answer.
func (s *scene) inBackground(take func(*scene, store.Ask) ([]store.Answer, error), ask store.Ask) <-chan store.Answer {
	answers := make(chan store.Answer, 1)
	go func() {
		a, err := take(s, ask)
		if err != nil {
			s.Error(err)
			a = make([]store.Answer, 1)
		}
		answers <- a[0]
	}()
	return answers
}

// takeAndFree grants a key and releases it.
func (s *scene) takeAndFree(key string) (token int64) {
	s.Helper()
	token = want(s.T, acquire(s.T, s, askFor(key, s.lease)), store.Granted).Token
	release(s.T, s, store.Claim{Key: key, Token: token, Lease: s.lease})
	return token
}

// Trap: an INSERT reads the clock before it waits for a conflicting row. The row's token may be
// greater after the wait.
// Proves: promise 3, trap clock before the wait
func TestTokenIsGreaterThanThatOfTheLockedRow(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		for first, made := range map[string]string{
			"of an insertion": `INSERT INTO locksidecar.locks (namespace, key, token) VALUES ('n', 'k', 1)`,
			"of an update":    `UPDATE locksidecar.locks SET freed_at = NULL`,
		} {
			t.Run(name+" "+first, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				if first == "of an update" {
					s.takeAndFree("k")
				}
				exec(t, s.other, "BEGIN")
				exec(t, s.other, made)
				answers := s.inBackground(take, askFor("k", s.lease))
				awaitBlocked(t, s.url) // the statement has read the clock
				earlier := tokenNow(t, s.url) + 1<<20
				exec(t, s.other, "UPDATE locksidecar.locks SET token = $1, freed_at = clock_timestamp()", earlier)
				exec(t, s.other, "COMMIT")
				if a := want(t, <-answers, store.Granted); a.Token != earlier+store.TokensPerGrant {
					t.Errorf("token %d after %d", a.Token, earlier)
				}
			})
		}
	}
}

// Two sessions insert the row of one key. The first transaction fails, and the second inserts the
// row.
// Proves: promise 3
func TestTheSecondInsertionGrants(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			exec(t, s.other, "BEGIN")
			exec(t, s.other, `INSERT INTO locksidecar.locks (namespace, key, token) VALUES ('n', 'k', 1)`)
			before := tokenNow(t, s.url)
			answers := s.inBackground(take, askFor("k", s.lease))
			awaitBlocked(t, s.url)
			exec(t, s.other, "ROLLBACK")
			if a := want(t, <-answers, store.Granted); a.Token < before {
				t.Errorf("token %d after the clock %d", a.Token, before)
			}
		})
	}
}

// A key's tokens grow even if the clock is set back by minutes, and if hand-offs are faster than
// the clock.
// Proves: promise 3
func TestTokensGrowWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			last := s.takeAndFree("k")
			shiftClock(t, s.url, -10*time.Minute)
			answers, err := take(s, askFor("k", s.lease))
			if err != nil {
				t.Fatal(err)
			}
			if a := want(t, answers[0], store.Granted); a.Token != last+store.TokensPerGrant {
				t.Errorf("token %d after %d", a.Token, last)
			}
		})
	}
	t.Run("hand-offs", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		ask := askFor("k", s.lease)
		token := want(t, acquire(t, s, ask), store.Granted).Token
		shiftClock(t, s.url, -10*time.Minute)
		for range 3 {
			next := askFor("k", s.lease)
			want(t, enqueue(t, s, next), store.Queued)
			release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
			grant, _, is := holder(t, s.conn, "k")
			if grant != next.ID || is != token+store.TokensPerGrant {
				t.Fatalf("token %d after %d for grant %s, want %s", is, token, grant, next.ID)
			}
			token = is
		}
	})
}

// A key's row was swept. Then the clock is set back by much more than the hour for which such rows
// stay.
// Proves: promise 3
func TestTokensOfSweptKeysAreNotGivenAgain(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			last := s.takeAndFree("k")
			postgres.SweepAtOnce(s.Space)
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := s.count("locks", "true"); n != 0 {
				t.Fatalf("%d rows are left", n)
			}
			shiftClock(t, s.url, -24*time.Hour)
			answers, err := take(s, askFor("k", s.lease))
			if err != nil {
				t.Fatal(err)
			}
			if a := want(t, answers[0], store.Granted); a.Token <= last {
				t.Errorf("token %d after %d", a.Token, last)
			}
		})
	}
}

// A row whose token is ahead of the clock is not swept, however long its key has been free, because
// the key's next row would take its token from the clock.
// Proves: promise 3
func TestARowAheadOfTheClockIsNotSwept(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.freed("k", 1, 25*time.Hour)
	last := tokenNow(t, s.url) + 1<<30
	exec(t, s.conn, "UPDATE locksidecar.locks SET token = $1", last)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := want(t, acquire(t, s, askFor("k1", s.lease)), store.Granted); a.Token <= last {
		t.Errorf("token %d after %d", a.Token, last)
	}
}

// If the row of meta is locked, the sweep does not wait for it. The sweep keeps rows with the
// greatest tokens, because it cannot store these tokens in meta.
// Proves: promise 3
func TestASweepDoesNotWaitForMeta(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.freed("k", 1, 25*time.Hour)
	first := pgtest.Query[int64](t, s.url, "SELECT first_token FROM locksidecar.meta")
	exec(t, s.conn, "UPDATE locksidecar.locks SET token = $1", first)
	postgres.SweepAtOnce(s.Space)
	letGo := lock(t, s.other, "SELECT FROM locksidecar.meta FOR UPDATE")
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("locks", "true"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	letGo()
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("locks", "true"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A grant that meets the start of a history has a token from before, or from the new history, because
// the history and first_token are read from one row.
// Proves: promise 3
func TestAGrantDuringANewHistory(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			last := s.takeAndFree("k")
			exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
			exec(t, s.other, "BEGIN; SELECT locksidecar.new_history()")
			var first int64
			if err := s.other.QueryRow(t.Context(), "SELECT began_token FROM locksidecar.meta").Scan(&first); err != nil || first < last+jump {
				t.Errorf("the history begins with %d after %d: %v", first, last, err)
			}
			keys := []string{"k", "new"}
			var answers []<-chan store.Answer
			for _, key := range keys {
				answers = append(answers, s.inBackground(take, askFor(key, s.lease)))
			}
			poll(t, "both wait", func() bool {
				return pgtest.Query[int64](t, s.url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == int64(len(keys))
			})
			exec(t, s.other, "COMMIT")
			for i, key := range keys {
				if a := want(t, <-answers[i], store.Granted); a.Token < first || a.Token >= first+jump {
					t.Errorf("%s: token %d, the history begins with %d", key, a.Token, first)
				}
			}
			later, err := take(s, askFor("later", s.lease))
			if err != nil {
				t.Fatal(err)
			}
			if a := want(t, later[0], store.Granted); a.Token < first || a.Token >= first+jump {
				t.Errorf("token %d, the history begins with %d", a.Token, first)
			}
		})
	}
}

// A hand-off after a promotion has a token of the new history.
// Proves: promise 3
func TestAHandOffInANewHistory(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
	waiter := askFor("k", s.lease)
	want(t, enqueue(t, s, waiter), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
	release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	grant, _, is := holder(t, s.conn, "k")
	if grant != waiter.ID || is < token+jump {
		t.Errorf("token %d after %d for grant %s", is, token, grant)
	}
}

// Trap: operators fail over, and later back to the old primary, which does not begin a new history.
// Its sidecars are new, so they have not seen the other server.
// Proves: promise 3
func TestTokensGrowWhenTheOldPrimaryServesAgain(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"timeline", "server"} {
		t.Run(source, func(t *testing.T) {
			p := newPair(t, refused[source])
			// grant acquires and releases keys as a sidecar that has seen only this server.
			grant := func(instance, url string, keys ...string) (tokens []int64) {
				s := startStore(t, url, store.Identity{Namespace: "n", Instance: instance, Pod: "p"})
				defer s.Stop()
				lease := openLease(t, s, time.Hour)
				for _, key := range keys {
					token := grants(t, s, key, lease)
					release(t, s, store.Claim{Key: key, Token: token, Lease: lease})
					tokens = append(tokens, token)
				}
				if err := s.Revoke(t.Context(), []store.LeaseID{lease}); err != nil { // flushes the releases
					t.Error(err)
				}
				return tokens
			}
			keys := []string{"known to both", "known to one"}
			grant("first", p.url, keys[0])
			p.failOver(t, keys[0])
			last := grant("second", p.after, keys...)
			p.standby.Halt()
			if err := p.old.Again(); err != nil {
				t.Fatal(err)
			}
			shiftClock(t, p.url, 2*time.Minute) // the time since the failover
			for i, token := range grant("third", p.url, keys...) {
				if token <= last[i] {
					t.Errorf("%s: token %d after %d", keys[i], token, last[i])
				}
			}
		})
	}
}

// A row is not swept soon after a release, even if the key was held for long, because a statement
// may have read the clock before that grant.
// Proves: trap clock before the wait
func TestARowIsNotSweptSoon(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.freed("k", 1, 25*time.Hour)
	exec(t, s.conn, "UPDATE locksidecar.locks SET freed_at = clock_timestamp()")
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("locks", "true"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// The next token is above those of all keys, also of swept ones. A store whose tokens are raised to it grants greater ones.
func TestTokensOfAnotherStore(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			last := s.takeAndFree("swept")
			exec(t, s.conn, "UPDATE locksidecar.locks SET token = token + (1::bigint << 40)")
			last += 1 << 40
			next, err := s.NextToken(t.Context())
			if err != nil || next < last+store.TokensPerGrant {
				t.Fatalf("the next token is %d after %d: %v", next, last, err)
			}
			first := next + 1<<40
			if err := s.RaiseTokens(t.Context(), first); err == nil || store.OutcomeUnknown(err) {
				t.Errorf("as a sidecar: %v", err)
			}
			owner := startStore(t, pgtest.Admin(s.url), store.Identity{Namespace: "n", Instance: "owner", Pod: "p"})
			defer owner.Stop()
			if err := owner.RaiseTokens(t.Context(), store.LargestToken/2+1); err == nil || store.OutcomeUnknown(err) {
				t.Errorf("raised above the largest token: %v", err)
			}
			for _, to := range []int64{first, first - 7} { // the second lowers nothing
				if err := owner.RaiseTokens(t.Context(), to); err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{"swept", "new"} {
				answers, err := take(s, askFor(key, s.lease))
				if err != nil {
					t.Fatal(err)
				}
				if a := want(t, answers[0], store.Granted); a.Token < first {
					t.Errorf("%s: token %d, raised to %d", key, a.Token, first)
				}
			}
			if next, err := s.NextToken(t.Context()); err != nil || next <= first {
				t.Errorf("the next token is %d after a raise to %d: %v", next, first, err)
			}
		})
	}
}

// Tokens that were raised ahead of the clock jump at a failover, too: the promoted server may lack the grants that had them.
func TestRaisedTokensJumpAtAFailover(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	owner := startStore(t, pgtest.Admin(s.url), store.Identity{Namespace: "n", Instance: "owner", Pod: "p"})
	defer owner.Stop()
	if err := owner.RaiseTokens(t.Context(), tokenNow(t, s.url)+19*time.Hour.Microseconds()); err != nil {
		t.Fatal(err)
	}
	last := s.takeAndFree("k")
	exec(t, s.conn, "DELETE FROM locksidecar.locks; UPDATE locksidecar.meta SET server = 'another'")
	next, err := owner.NextToken(t.Context()) // begins the history
	if err != nil || next < last+jump {
		t.Errorf("the next token is %d after %d: %v", next, last, err)
	}
	if again := s.takeAndFree("k"); again < last+jump {
		t.Errorf("token %d after %d", again, last)
	}
}

// In a quiet time nobody knows which tokens were forgotten, so none is the next one.
func TestNoNextTokenInAQuietTime(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	exec(t, s.conn, "UPDATE locksidecar.meta SET quiet_until = clock_timestamp() + interval '1 hour'")
	_, err := s.NextToken(t.Context())
	if quiet, is := errors.AsType[*store.QuietError](err); !is || quiet.Left <= 0 {
		t.Errorf("in a quiet time: %v", err)
	}
}
