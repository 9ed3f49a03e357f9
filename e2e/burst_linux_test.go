package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// lastInLine selects the data of the waiter that is served last.
const lastInLine = "SELECT coalesce(data, '') FROM locksidecar.waiters ORDER BY id DESC LIMIT 1"

// TestBurstIsQueuedInOrder: 300 calls for one key arrive while PostgreSQL works on the first. A few
// statements queue them. A call that arrives 5 ms later is served last.
// Proves: promise 5
func TestBurstIsQueuedInOrder(t *testing.T) {
	for name, heldElsewhere := range map[string]bool{"free": false, "held elsewhere": true} {
		t.Run(name, func(t *testing.T) { burst(t, heldElsewhere) })
	}
}

func burst(t *testing.T, heldElsewhere bool) {
	t.Helper()
	const (
		calls   = 300
		most    = 5 // statements
		waiting = `{"wait_ms":-1}`
	)
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	s := start(t, o)
	warm := dial(t, s.socket)
	warm.acquire("warm", "") // opens the lease
	s.hears()
	looked(t, url, 1)
	queued := int64(calls)
	if heldElsewhere {
		other := start(t, o)
		dial(t, other.socket).acquire("burst", "")
		other.hears()
		looked(t, url, 2)
		queued++
	}

	apps := make([]*app, calls)
	for i := range apps {
		apps[i] = dial(t, s.socket)
	}
	late := dial(t, s.socket)
	cluster.ResetStatements(t, url)
	proceed := pgtest.Freeze(t, url, anyStatement)
	for _, a := range apps {
		a.send("PUT", lockPath("burst"), waiting)
	}
	for _, a := range apps {
		await.Taken(t, a.Conn.Conn)
	}
	awaitIdle(t, s.cmd.Process.Pid)  // all calls that the sidecar has read are processed
	time.Sleep(5 * time.Millisecond) // the later call
	late.send("PUT", lockPath("burst"), `{"wait_ms":-1,"data":"late"}`)
	await.Taken(t, late.Conn.Conn)
	awaitIdle(t, s.cmd.Process.Pid)
	proceed()
	queueOf(t, url, queued)
	if n := cluster.Statements(t, url, anyStatement); n > most {
		t.Errorf("%d statements for %d queued calls, want at most %d", n, calls, most)
	} else {
		t.Logf("%d statements", n)
	}
	if last := pgtest.Query[string](t, url, lastInLine); last != `"late"` {
		t.Errorf("the last in the queue is %q, want the call that came last", last)
	}
}

// awaitIdle waits until no thread of a process can run.
func awaitIdle(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "the sidecar to be idle", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("no threads of %d: %v", pid, err)
		}
		return !slices.ContainsFunc(tasks, func(file string) bool {
			stat, err := os.ReadFile(file)
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "S")
		})
	})
}
