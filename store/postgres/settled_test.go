package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Trap: a statement stays in a buffer, and meanwhile the database's clock is set back, or its machine stands still with
// its clock. Two limits later, by the sidecar's clock, the statement is still in time by the database's. So a withdrawal
// is not final before the database's clock has passed the statement's limit.
// Proves: trap late statement
func TestAWithdrawalIsNotFinalWhileTheStatementIsInTime(t *testing.T) {
	t.Parallel()
	const timeout, setBack = time.Second, 4 * time.Second
	for name, c := range map[string]struct {
		statement string
		ask       func(s *postgres.Store, ctx context.Context, lease store.LeaseID) ([]store.Ask, error)
	}{
		"acquire": {"acquire_one", func(s *postgres.Store, ctx context.Context, lease store.LeaseID) ([]store.Ask, error) {
			asks := []store.Ask{askFor("free", lease)}
			_, err := s.Acquire(ctx, asks)
			return asks, err
		}},
		"acquire ttl": {"acquire_many", func(s *postgres.Store, ctx context.Context, _ store.LeaseID) ([]store.Ask, error) {
			asks := []store.Ask{askFor("free", uuid.Nil)}
			asks[0].TTL = time.Hour
			_, err := s.Acquire(ctx, asks)
			return asks, err
		}},
		"enqueue": {"ask", func(s *postgres.Store, ctx context.Context, lease store.LeaseID) ([]store.Ask, error) {
			asks := []store.Ask{askFor("held", lease), askFor("free", lease)}
			_, err := s.Enqueue(ctx, asks)
			return asks, err
		}},
		// These could take what a repeat of the request gets.
		"withdraw": {"withdraw", func(s *postgres.Store, ctx context.Context, lease store.LeaseID) ([]store.Ask, error) {
			asks := []store.Ask{askFor("free", lease)}
			if _, err := s.Acquire(ctx, asks); err != nil {
				return nil, err
			}
			return asks, withdraw(ctx, s, asks[0].Attempt)
		}},
		"cancel": {"cancel_one", func(s *postgres.Store, ctx context.Context, lease store.LeaseID) ([]store.Ask, error) {
			asks := []store.Ask{askFor("held", lease)}
			if _, err := s.Enqueue(ctx, asks); err != nil {
				return nil, err
			}
			_, err := s.Cancel(ctx, []store.Attempt{asks[0].Attempt})
			return asks, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := pgproxy.Start(t, cluster.NewDatabase(t))
			s := startWith(t, postgres.Config{URL: proxy.URL(), Timeout: timeout}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
			lease := openLease(t, s, time.Hour)
			want(t, acquire(t, s, askFor("held", lease)), store.Granted)
			arrives, carriedOut := make(chan struct{}), make(chan struct{}, 1)
			var late atomic.Bool
			proxy.On(c.statement, pgproxy.BeforeSend, func() {
				if late.CompareAndSwap(false, true) {
					<-arrives
				}
			})
			proxy.On(c.statement, pgproxy.AfterCommandComplete, func() {
				select {
				case carriedOut <- struct{}{}:
				default:
				}
			})

			postgres.SetClock(s, setBack)
			asks, err := c.ask(s, t.Context(), lease)
			if !store.OutcomeUnknown(err) {
				t.Fatalf("%v, want an unknown outcome", err)
			}
			attempts := make([]store.Attempt, len(asks))
			for i := range asks {
				attempts[i] = asks[i].Attempt
			}
			withdrawn := func() (gone bool) {
				gone = true
				poll(t, "a withdrawal", func() bool { // the store has just left a connection
					outcomes, err := s.Withdraw(t.Context(), attempts)
					for i := range outcomes {
						gone = gone && outcomes[i] == store.Gone
					}
					return err == nil
				})
				return gone
			}
			if withdrawn() {
				t.Error("the first withdrawal is final")
			}
			select {
			case <-carriedOut: // of the first withdrawal
			default:
			}
			close(arrives) // in time by the database's clock, unless the machine was very slow
			<-carriedOut
			poll(t, "the last withdrawal", withdrawn)
			locks, err := s.Get(t.Context(), []string{"free", "held"})
			if err != nil {
				t.Fatal(err)
			}
			if locks[0].Held || locks[1].QueueLength > 0 {
				t.Errorf("of a withdrawn call stays %+v", locks)
			}
			// It is not remembered for ever.
			if !withdrawn() {
				t.Error("a repeat is not final")
			}
		})
	}
}

// The same for so many calls that they are not remembered one by one.
// Proves: trap late statement
func TestManyLateCalls(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var l postgres.Late
	id := func(n int) store.AttemptID { return store.AttemptID{byte(n), byte(n >> 8), byte(n >> 16)} }
	const many = 10_000
	for n := range many {
		l.Note(id(n), now.Add(time.Duration(n)))
	}
	for n := range many {
		if !l.CanFollow(id(n), now.Add(time.Duration(n)-1)) {
			t.Fatalf("call %d is forgotten", n)
		}
	}
	for n := range many {
		if l.CanFollow(id(n), now.Add(many)) {
			t.Fatalf("call %d is remembered", n)
		}
	}
}
