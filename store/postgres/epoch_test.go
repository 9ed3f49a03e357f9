package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// jump is how far tokens jump when a server is promoted.
const jump = 1 << 30

// Trap: after a failover sequence values go back, and another clock judges the
// expiries. Tokens grow over it, whatever comes first, and no lease is buried before
// its holder can have renewed it: a renewal may not have reached this server.
func TestPromotion(t *testing.T) {
	own := pgtest.Start(t)
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

	for name, first := range map[string]func(s store.Store, mine store.LeaseID) error{
		"acquire": func(s store.Store, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), mine)})
			return err
		},
		"take-over": func(s store.Store, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor("held", mine)})
			return err
		},
		"many": func(s store.Store, mine store.LeaseID) error {
			_, err := s.Acquire(t.Context(), []store.Ask{askFor("held", mine), askFor(uuid.NewString(), mine)})
			return err
		},
		"enqueue": func(s store.Store, mine store.LeaseID) error {
			_, err := s.Enqueue(t.Context(), []store.Ask{askFor("held", mine)})
			return err
		},
		"check waits": func(s store.Store, _ store.LeaseID) error {
			_, err := s.CheckWaits(t.Context(), []store.Attempt{waiter.Attempt})
			return err
		},
		"release with hand-off": func(s store.Store, _ store.LeaseID) error {
			token := pgtest.Query[int64](t, url, "SELECT token FROM locksidecar.locks WHERE key = 'contended'")
			_, err := s.Release(t.Context(), []store.Claim{{Key: "contended", Token: token, Lease: held.Lease}})
			return err
		},
		"sweep": func(s store.Store, _ store.LeaseID) error { return s.Sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			before := pgtest.Query[int64](t, url, "SELECT greatest(last_value, (SELECT max(token) FROM locksidecar.locks)) FROM locksidecar.tokens")
			own.Promote(t)
			exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
			s := startStore(t, url, id)
			mine := openLease(t, s, time.Hour)
			if err := first(s, mine); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.leases WHERE id = '"+held.Lease.String()+"' AND expires_at > clock_timestamp() + interval '55 min'"); n != 1 {
				t.Fatal("the holder's lease does not live for its TTL on the new server")
			}
			if n := pgtest.Query[int64](t, url, fmt.Sprintf("SELECT count(*) FROM locksidecar.locks WHERE token > %d AND token < %d", before, before+jump)); n != 0 {
				t.Error("granted before the jump")
			}
			want(t, acquire(t, s, askFor("held", mine)), store.Held)
			if a := want(t, acquire(t, s, askFor(uuid.NewString(), mine)), store.Granted); a.Token < before+jump {
				t.Errorf("token %d after %d", a.Token, before)
			}
		})
	}
}
