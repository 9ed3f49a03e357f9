package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// Queries that an operator would ask the database.
const (
	heldLocks = `SELECT count(*) FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id
		WHERE s.expires_at > clock_timestamp()`
	waiterRows = `SELECT count(*) FROM locksidecar.waiters`
)

// eventually polls until yes.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !yes(); {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: not in %s", what, patience)
		}
		time.Sleep(2 * time.Millisecond) // the pause of a poll
	}
}

// nothingLeft waits until nothing is held and nobody waits.
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

// logged returns the lines of the log that hold all these texts.
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

// queueOf waits until so many calls wait, for whatever key.
func queueOf(t *testing.T, url string, n int64) {
	t.Helper()
	eventually(t, "all waiters to stand in line", func() bool { return pgtest.Query[int64](t, url, waiterRows) == n })
}
