package cas_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// TestALeaseIsReplacedDuringARead: a holder prolongs its lock, which gives it another lease, between the reading of its record and
// the reading of the record's leases. The lock is held nevertheless, for all that read it.
func TestALeaseIsReplacedDuringARead(t *testing.T) {
	for name, reads := range map[string]func(in *instance, claim store.Claim) bool{
		"get": func(in *instance, claim store.Claim) bool {
			locks, err := in.Get(in.Context(), []string{claim.Key})
			in.ok(err)
			return locks[0].Held && locks[0].Token == claim.Token
		},
		"list": func(in *instance, claim store.Claim) bool {
			locks, err := in.List(in.Context(), store.Query{Limit: 10})
			in.ok(err)
			return len(locks) == 1 && locks[0].Token == claim.Token
		},
		"stats": func(in *instance, _ store.Claim) bool {
			stats, err := in.Stats(in.Context())
			in.ok(err)
			return len(stats.Types) == 1 && stats.Types[0].Held == 1
		},
		"amend": func(in *instance, claim store.Claim) bool {
			verdicts, err := in.Amend(in.Context(), []store.Change{{Key: claim.Key, Token: claim.Token}})
			in.ok(err)
			return verdicts[0].Status == store.Holds
		},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
				ask := a.ask("k")
				ask.TTL = time.Minute
				grant := a.tries(ask, store.Granted)
				claim := store.Claim{Key: "k", Token: grant.Token}
				server.Between = func() {
					verdicts, err := a.Amend(a.Context(), []store.Change{{Key: "k", Token: claim.Token, TTL: time.Hour}})
					if a.ok(err); verdicts[0].Status != store.Holds {
						t.Errorf("prolonged: %v", verdicts[0].Status)
					}
					time.Sleep(time.Second) // a has revoked the lease before
				}
				if !reads(b, claim) {
					t.Error("the lock is held, and was not found so")
				}
				if server.Between != nil {
					t.Error("nothing was read")
				}
			})
		})
	}
}

// TestALockIsMovedDuringARead: an instance moves its lock to another lease, and revokes the old one, between the reading of the record
// and the reading of its leases. The lock is still held under a lease of this instance.
func TestALockIsMovedDuringARead(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		ask, old := a.ask("k"), a.lease
		grant := a.gets(ask, store.Granted)
		server.Between = func() {
			next := a.open(time.Hour)
			statuses, err := a.Move(a.Context(), old, next, []store.Move{{Attempt: ask.Attempt, Token: grant.Token}})
			if a.ok(err); statuses[0] != store.Holds {
				t.Errorf("moved: %v", statuses[0])
			}
			a.ok(a.Revoke(a.Context(), []store.LeaseID{old}))
		}
		held, err := a.HeldUnder(a.Context(), []string{"k"})
		if a.ok(err); len(held.Grants) != 1 || held.Grants[0].Token != grant.Token || held.Grants[0].Lease == old {
			t.Errorf("held: %+v", held)
		}
		if server.Between != nil {
			t.Error("nothing was read")
		}
	})
}
