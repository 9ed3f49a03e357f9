package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// noPoll makes polls so rare that only news can be in time.
const noPoll = "1m"

// startApp starts a process that acquires locks, and returns when it has them. The returned
// function kills it with kill -9.
func startApp(t *testing.T, s *sidecar, names []string) (kill func()) {
	t.Helper()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), appEnv+"="+s.socket+" "+strings.Join(names, " "))
	stdin, err := process.StdinPipe() // held open, so that the app stays
	if err != nil {
		t.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = stdin.Close()
		_ = process.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		t.Fatalf("the app printed %q", line)
	}
	return func() { _ = process.Process.Signal(syscall.SIGKILL) }
}

// waitFor makes one call wait for each key.
func waitFor(t *testing.T, s *sidecar, url string, names []string) []*app {
	t.Helper()
	apps := make([]*app, len(names))
	for i, key := range names {
		apps[i] = dial(t, s.socket)
		apps[i].send("PUT", lockPath(key), `{"wait_ms":-1}`)
	}
	queueOf(t, url, int64(len(names)))
	return apps
}

// TestKilledAppAcrossSidecars: an app is killed. Waiters behind another sidecar get its locks at
// once, without a poll.
// Proves: promise 8
func TestKilledAppAcrossSidecars(t *testing.T) {
	t.Parallel()
	const waiters = 20
	limit := slowed(dropLimit)
	o, url := onPostgres(t)
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h"}) // checks of waiters come too late, too
	one, two := start(t, o), start(t, o)
	names := keys("killed", dropLocks)
	kill := startApp(t, one, names)
	apps := waitFor(t, two, url, names[:waiters])

	began := time.Now()
	kill()
	for i, a := range apps {
		a.read("PUT", lockPath(names[i])).granted()
	}
	granted := time.Since(began)
	eventually(t, "all other locks to be free", func() bool { return pgtest.Query[int64](t, url, heldLocks) == waiters })
	free := time.Since(began)
	t.Logf("%d waiters had their locks after %s, and all other locks were free after %s", waiters, granted.Round(time.Millisecond), free.Round(time.Millisecond))
	if granted > limit || free > limit {
		t.Errorf("want at most %s for both", limit)
	}
}

// TestKilledSidecar: a sidecar is killed. Its locks go to others when its lease has ended by the
// database's clock: not earlier, and not much later.
// Proves: promise 8
func TestKilledSidecar(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	limit := ttl + slowed(250*time.Millisecond)
	o, url := onPostgres(t)
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll})
	one := start(t, o.with(options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"}))
	two := start(t, o.with(options{"TTL": "1h"}))
	names := keys("left", 10)
	holder := dial(t, one.socket)
	before := map[string]int64{}
	for _, key := range names {
		before[key] = holder.acquire(key, "")
	}
	apps := waitFor(t, two, url, names)
	one.kill()
	killed := time.Now()
	ends := pgtest.Query[time.Time](t, url, `SELECT s.expires_at FROM locksidecar.locks l
		JOIN locksidecar.leases s ON s.id = l.lease_id WHERE l.key = $1`, names[0])
	for i, a := range apps {
		key := names[i]
		if token := a.read("PUT", lockPath(key)).granted(); token <= before[key] {
			t.Errorf("%s: token %d after %d", key, token, before[key])
		}
	}
	took := time.Since(killed)
	first := pgtest.Query[time.Time](t, url, "SELECT min(acquired_at) FROM locksidecar.locks WHERE "+notOfProbes)
	t.Logf("the lease ended %s after the kill, the first grant came %s after that, the last one %s after the kill",
		ends.Sub(killed).Round(time.Millisecond), first.Sub(ends).Round(time.Millisecond), took.Round(time.Millisecond))
	if first.Before(ends) {
		t.Errorf("granted %s before the end of the lease", ends.Sub(first))
	}
	if took > limit {
		t.Errorf("the last waiter waited %s, want at most %s", took, limit)
	}
}

// TestRestartedSidecar: a sidecar is killed, and another starts in its folder. It frees the first
// one's locks long before their lease ends.
// Proves: promise 8
func TestRestartedSidecar(t *testing.T) {
	t.Parallel()
	limit := slowed(2 * time.Second) // the TTL is a minute
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "60s"})
	dir := folder(t)
	one, two := startIn(t, dir, o), start(t, o)
	names := keys("left", 10)
	holder := dial(t, one.socket)
	for _, key := range names {
		holder.acquire(key, "")
	}
	ttl := holder.acquire("cron", `{"bind":"ttl","ttl_ms":60000}`)
	waiting := names[:5]
	apps := waitFor(t, two, url, waiting)
	one.kill()

	again := startIn(t, dir, o)
	ready := time.Now()
	for i, a := range apps {
		a.read("PUT", lockPath(waiting[i])).granted()
	}
	taker := dial(t, two.socket)
	for _, key := range names[len(waiting):] {
		taker.acquire(key, "", "Cache-Control: no-cache")
	}
	if took := time.Since(ready); took > limit {
		t.Errorf("granted %s after the restart, want at most %s", took, limit)
	}
	// A bind:ttl lock stays held.
	taker.call("PUT", lockPath("cron"), "", "Cache-Control: no-cache").want(423, "held")
	dial(t, again.socket).call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("cron"), ttl), "").want(200, "")
}
