package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// Queries as an operator would run them.
const (
	// notOfProbes leaves out the rows of the keys by which sidecars probe the store.
	notOfProbes = "key NOT LIKE 'locksidecar-readiness:%'"
	heldLocks   = `SELECT count(*) FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id
		WHERE s.expires_at > clock_timestamp()`
	waiterRows = `SELECT count(*) FROM locksidecar.waiters`
)

// eventually polls until yes returns true.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !yes(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s: not in %s", what, patience)
		}
		time.Sleep(2 * time.Millisecond) // the pause of a poll
	}
}

// nothingLeft waits until there are no locks and no waiters.
func nothingLeft(t *testing.T, url string) {
	t.Helper()
	eventually(t, "the end of all locks and waits", func() bool {
		return pgtest.Query[int64](t, url, "SELECT ("+heldLocks+") + ("+waiterRows+")") == 0
	})
}

// noErrors checks that a sidecar has logged nothing at level ERROR.
func (s *sidecar) noErrors() {
	s.t.Helper()
	if lines := s.logged(`"level":"ERROR"`); len(lines) > 0 {
		s.t.Errorf("the sidecar logged %d errors, the first: %s", len(lines), lines[0])
	}
}

// logged returns the log lines that contain all these texts.
func (s *sidecar) logged(texts ...string) (found []string) {
	for line := range strings.Lines(s.log.String()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// queueOf waits until this number of calls wait, for any keys.
func queueOf(t *testing.T, url string, n int64) {
	t.Helper()
	eventually(t, "all waiters to be queued", func() bool { return pgtest.Query[int64](t, url, waiterRows) == n })
}
