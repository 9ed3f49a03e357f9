package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Trap: a sidecar has seen a later primary, and has marked this one. Others are still connected here. Nothing that
// would be a lock, a longer time or a queue position is answered here any more, because the later primary does not
// know of it: not even that a lock is still held.
// Proves: trap failover
func TestAnOutdatedPrimaryServesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	held, waiter, member := askFor("held", s.lease), askFor("held", s.lease), askFor("cohort", s.lease)
	byTTL, elsewhere := askFor("ttl", s.lease), askFor("elsewhere", s.lease)
	byTTL.TTL, elsewhere.TTL = time.Hour, time.Hour
	readers := askFor("readers", s.lease)
	readers.Shared = true
	tokens := map[string]int64{}
	for _, a := range []store.Ask{held, byTTL, elsewhere, readers, askFor("cohort", s.lease), askFor("exclusive", s.lease)} {
		tokens[a.Key] = want(t, acquire(t, s, a), store.Granted).Token
	}
	want(t, enqueue(t, s, waiter), store.Queued)
	want(t, enqueue(t, s, member), store.Queued)
	other := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "j", Pod: "p"})
	otherLease := openLease(t, other, time.Hour)
	claim := func(key string) store.Claim { return store.Claim{Key: key, Token: tokens[key], Lease: s.lease} }
	ofClient := func(key string) store.Claim { return store.Claim{Key: key, Token: tokens[key]} }
	amend := func(c store.Claim, change store.Change) func(context.Context) error {
		change.Key, change.Token, change.Lease = c.Key, c.Token, c.Lease
		return func(ctx context.Context) error { _, err := s.Amend(ctx, []store.Change{change}); return err }
	}
	ask := func(asks ...store.Ask) func(context.Context) error {
		return func(ctx context.Context) error { _, err := s.Acquire(ctx, asks); return err }
	}
	waiting := func(asks ...store.Ask) func(context.Context) error {
		return func(ctx context.Context) error { _, err := s.Enqueue(ctx, asks); return err }
	}
	reader := askFor("readers", s.lease)
	reader.Shared = true
	stop := "stop"

	table := func() string {
		return pgtest.Query[string](t, s.url, `SELECT concat_ws(E'\n',
			(SELECT string_agg(l::text, E'\n' ORDER BY key) FROM locksidecar.locks l),
			(SELECT string_agg(h::text, E'\n' ORDER BY key, token) FROM locksidecar.shares h),
			(SELECT string_agg(w::text, E'\n' ORDER BY id) FROM locksidecar.waiters w),
			(SELECT string_agg(g::text, E'\n' ORDER BY id) FROM locksidecar.signals g),
			(SELECT string_agg(o::text, E'\n' ORDER BY id) FROM locksidecar.leases o))`)
	}
	history := pgtest.Query[string](t, s.url, "SELECT server FROM locksidecar.meta")
	// connected makes connections while the server is current, and then marks it.
	connected := func() {
		exec(t, s.conn, "UPDATE locksidecar.meta SET outdated = false, server = $1", history)
		for _, i := range []*postgres.Store{s.Store, other} {
			awaitReady(t, i)
			poll(t, "connections", func() bool {
				_, err := i.Get(t.Context(), []string{"held"})
				_, err2 := i.HeldUnder(t.Context(), []string{"held"}) // on the renewals' connection
				return errors.Join(err, err2) == nil
			})
		}
		exec(t, s.conn, "SELECT locksidecar.outdate(began_token, began_token + 1) FROM locksidecar.meta")
	}
	for name, call := range map[string]func(context.Context) error{
		"open": func(ctx context.Context) error {
			return s.OpenLeases(ctx, []store.NewLease{{ID: uuid.New(), TTL: time.Hour}})
		},
		"open again": func(ctx context.Context) error {
			return s.OpenLeases(ctx, []store.NewLease{{ID: s.lease, TTL: time.Hour}})
		},
		"renew":              func(ctx context.Context) error { _, err := s.Renew(ctx, []store.LeaseID{s.lease}); return err },
		"acquire":            ask(askFor("new", s.lease)),
		"acquire again":      ask(held),
		"acquire ttl again":  ask(byTTL),
		"acquire a held key": ask(askFor("held", s.lease)),
		"acquire several":    ask(held, askFor("new", s.lease), askFor("held", s.lease)),
		"acquire a share":    ask(reader),
		"repeat at another instance": func(ctx context.Context) error {
			a := elsewhere
			a.Lease = otherLease
			_, err := other.Acquire(ctx, []store.Ask{a})
			return err
		},
		"enqueue":       waiting(askFor("held", s.lease)),
		"enqueue again": waiting(waiter),
		"enqueue four":  waiting(askFor("held", s.lease), askFor("held", s.lease), askFor("cohort", s.lease), askFor("ttl", s.lease)),
		"check":         func(ctx context.Context) error { _, err := s.Check(ctx, []store.Attempt{waiter.Attempt}); return err },
		"check a grant elsewhere": func(ctx context.Context) error {
			_, err := other.Check(ctx, []store.Attempt{elsewhere.Attempt})
			return err
		},
		"check a claim":          amend(claim("held"), store.Change{}),
		"check a client's claim": amend(ofClient("ttl"), store.Change{}),
		"prolong":                amend(ofClient("ttl"), store.Change{TTL: 2 * time.Hour}),
		"set data":               amend(claim("held"), store.Change{SetData: true, Data: []byte("1")}),
		"adopt": func(ctx context.Context) error {
			_, err := s.Adopt(ctx, []store.Adoption{{
				Change: store.Change{Key: "cohort", Token: tokens["cohort"] + 1, Lease: s.lease}, Served: []store.AttemptID{member.ID}, AcquiredAt: time.Now(),
			}})
			return err
		},
		"downgrade": func(ctx context.Context) error {
			_, err := s.Downgrade(ctx, []store.Change{{Key: "exclusive", Token: tokens["exclusive"], Lease: s.lease}})
			return err
		},
		"release with a waiter": func(ctx context.Context) error { _, err := s.Release(ctx, []store.Claim{claim("held")}); return err },
		"withdraw":              func(ctx context.Context) error { return withdraw(ctx, s, held.Attempt) },
		"move": func(ctx context.Context) error {
			_, err := s.Move(ctx, s.lease, s.lease, []store.Move{{Attempt: held.Attempt, Token: tokens["held"]}})
			return err
		},
		"signal": func(ctx context.Context) error {
			_, err := s.Signal(ctx, []store.Signal{{Kind: store.Stop, Key: "held", Reason: &stop}})
			return err
		},
		"sweep":      s.Sweep,
		"next token": func(ctx context.Context) error { _, err := s.NextToken(ctx); return err },
	} {
		var before string
		var err error
		poll(t, "a statement on a connection that was made before", func() bool {
			connected()
			before = table()
			err = call(t.Context())
			_, refused := errors.AsType[*pgconn.ConnectError](err)
			return !refused
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "LS004" {
			t.Errorf("%s: %v, want SQLSTATE LS004", name, err)
		}
		if after := table(); after != before {
			t.Errorf("%s changed\n%s\nto\n%s", name, before, after)
		}
	}
	// Calls that only give something up are allowed, because the key is not granted here to anybody.
	for name, call := range map[string]func() error{
		"release": func() error { _, err := s.Release(t.Context(), []store.Claim{claim("exclusive")}); return err },
		"revoke":  func() error { return s.Revoke(t.Context(), []store.LeaseID{otherLease}) },
		"get":     func() error { _, err := s.Get(t.Context(), []string{"held"}); return err },
	} {
		poll(t, name, func() bool { connected(); return call() == nil })
	}
}
