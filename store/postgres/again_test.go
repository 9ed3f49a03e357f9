package postgres_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// A row changes while a release waits for it, alone or in a batch. The release uses the new
// content.
// Proves: promise 5, trap old snapshot
func TestAReleaseThatWaitedLooksAgain(t *testing.T) {
	t.Parallel()
	for batch, keys := range map[string][]string{"one": {"k"}, "many": {"k", "l"}} {
		t.Run(batch, func(t *testing.T) {
			t.Parallel()
			releasesLookAgain(t, keys)
		})
	}
}

// releasesLookAgain releases keys. The row of the first key changes meanwhile.
func releasesLookAgain(t *testing.T, keys []string) {
	t.Helper()
	for name, c := range map[string]struct {
		change   string // of the row of k; $1 is another lease, $2 another grant
		standing store.ClaimStatus
	}{
		"a waiter has come": {
			`WITH marked AS (UPDATE locksidecar.locks SET contended = true WHERE key = 'k' RETURNING namespace, key)
			INSERT INTO locksidecar.waiters (namespace, key, lease_id, attempt_id) SELECT namespace, key, $1, $2 FROM marked`,
			store.Holds,
		},
		"another attempt holds it": {
			`UPDATE locksidecar.locks SET token = token + 1, lease_id = $1, attempt_id = $2 WHERE key = 'k'`,
			store.UnknownToken,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			next := askFor("k", openLease(t, s, time.Hour))
			var claims []store.Claim
			for _, key := range keys {
				token := want(t, acquire(t, s, askFor(key, s.lease)), store.Granted).Token
				claims = append(claims, store.Claim{Key: key, Token: token, Lease: s.lease})
			}
			exec(t, s.other, "BEGIN")
			exec(t, s.other, c.change, next.Lease, next.ID)
			released := make(chan []store.Verdict, 1)
			go func() {
				v, err := s.Release(t.Context(), claims)
				if err != nil {
					t.Error(err)
					v = make([]store.Verdict, len(claims))
				}
				released <- v
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			for i, v := range <-released {
				if standing := []store.ClaimStatus{c.standing, store.Holds}[i]; v.Status != standing {
					t.Errorf("%s: status %v, want %v", keys[i], v.Status, standing)
				}
			}
			if grant, lease, _ := holder(t, s.conn, "k"); grant != next.ID || lease != next.Lease {
				t.Errorf("the key is held by lease %s under grant %s", lease, grant)
			}
		})
	}
}
