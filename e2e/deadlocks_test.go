package e2e

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// longLine makes sessions of which each holds a key and waits for that of the next one. The last session waits for nothing.
const longLine = `WITH pod AS (
		INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
		VALUES (gen_random_uuid(), 'elsewhere', 'elsewhere', true, '1h', clock_timestamp() + interval '1h') RETURNING id
	), held AS (
		INSERT INTO locksidecar.locks (namespace, key, lease_id, token, attempt_id, contended, session, acquired_at)
		SELECT $1, 'line:' || n, pod.id, n + 1, gen_random_uuid(), n > 0, 's' || n, clock_timestamp() - interval '1 minute'
		FROM generate_series(0, $2::int) n, pod
	), waiting AS (
		INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id, session, enqueued_at)
		SELECT gen_random_uuid(), $1, 'line:' || n, pod.id, 's' || n - 1, clock_timestamp() - interval '1 minute'
		FROM generate_series(1, $2::int) n, pod RETURNING 1
	)
	SELECT count(*) FROM waiting`

// waitsFor makes a session of the line wait for a key of it, too.
const waitsFor = `INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id, session, enqueued_at)
	SELECT gen_random_uuid(), $1, 'line:' || $3::int, l.lease_id, 's' || $2::int, clock_timestamp() - interval '1 minute'
	FROM locksidecar.locks l WHERE l.key = 'line:' || $2::int
	RETURNING 1`

// A line of ten thousand waiting sessions is no deadlock. One more call makes a circle of three, which is found among them. The
// calls are read in pages, and the memory is bounded.
func TestDeadlocksAmongTenThousandCalls(t *testing.T) {
	const (
		calls    = 10_000
		pageSize = 1000
		most     = 256 << 20 // bytes of memory; seen with the race detector: 91 MiB
	)
	o, url := onPostgres(t)
	s := start(t, o)
	namespace := "default"
	if n := pgtest.Query[int64](t, url, longLine, namespace, calls); n != calls {
		t.Fatalf("%d calls wait", n)
	}
	deadlocks := func() (code int, out string) {
		t.Helper()
		cluster.ResetStatements(t, url)
		cmd := exec.Command(binary, "--socket", s.socket, "deadlocks")
		cmd.Env = cleanEnv()
		began := time.Now()
		text, err := cmd.CombinedOutput()
		took := time.Since(began)
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		looks := int64(1 + cmd.ProcessState.ExitCode())
		reads := cluster.Statements(t, url, "/* locksidecar:waiting */%")
		if least := looks * calls / pageSize; reads < least || reads > 3*least {
			t.Errorf("%d reads of waiters, want about %d", reads, least)
		}
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && runtime.GOOS == "linux" {
			t.Logf("%s, %d MiB, %d reads", took.Round(time.Millisecond), usage.Maxrss>>10, reads)
			if usage.Maxrss<<10 > most {
				t.Errorf("%d MiB of memory, want at most %d", usage.Maxrss>>10, most>>20)
			}
		}
		return cmd.ProcessState.ExitCode(), string(text)
	}
	if code, out := deadlocks(); code != 0 || out != "no deadlock: 10000 calls wait for 10000 keys, but not in a circle\n" {
		t.Errorf("code %d: %s", code, out)
	}
	pgtest.Query[int](t, url, waitsFor, namespace, calls/2, calls/2-2)
	code, out := deadlocks()
	if code != 1 || strings.Count(out, "\n") != 4 || !strings.HasPrefix(out, "deadlock of 3:\n") ||
		!strings.Contains(out, "session s5000 of pod elsewhere holds line:5000 ") || !strings.Contains(out, " and waits for line:4998 ") {
		t.Errorf("code %d: %s", code, out)
	}
}
