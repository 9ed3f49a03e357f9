package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// sharing runs a test on each store, with two sidecars of one namespace if the store can have
// two, else with one of two names.
func sharing(t *testing.T, more options, test func(t *testing.T, o options, one, two *sidecar)) {
	t.Helper()
	stores(t, func(t *testing.T, o options) {
		o = o.with(more)
		one := start(t, o)
		two := one
		if o["STORE_URL"] != "memory://" {
			two = start(t, o)
		}
		test(t, o, one, two)
	})
}

const place = `{"mode":"shared","limit":3,"wait_ms":-1}`

// Many clients of two sidecars want one of three places. There are never more than three holders, and no two have the same
// slot.
// Proves: promise 19
func TestSemaphoreNeverHasMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	sharing(t, nil, func(t *testing.T, _ options, one, two *sidecar) {
		const clients, rounds = 8, 5
		slots := folder(t)
		var all []*running
		for i := range clients {
			s := []*sidecar{one, two}[i%2]
			// mkdir fails if somebody else has the slot now.
			script := fmt.Sprintf(`for i in $(seq %d); do "$0" run s:1 --limit 3 --wait -- sh -c \
				'mkdir %s/$LOCKSIDECAR_SLOT || exit 9; test $LOCKSIDECAR_SLOT -lt 3 || exit 8; rmdir %s/$LOCKSIDECAR_SLOT' || exit; done`, rounds, slots, slots)
			all = append(all, startRun(t, s, fmt.Sprint("client:", i), "--", "sh", "-c", script, binary))
		}
		for _, r := range all {
			r.want(0)
		}
		a := dial(t, one.socket)
		a.call("GET", lockPath("s:1"), "", "Cache-Control: no-cache").want(200, "")
	})
}

// kill -9 of a holder, or of its sidecar, frees its place and its slot; the other holders keep theirs.
// Proves: promise 19
func TestKilledHolderFreesItsSlot(t *testing.T) {
	t.Parallel()
	sharing(t, options{"TTL": "1h"}, func(t *testing.T, _ options, one, two *sidecar) {
		var holders []*running
		for slot := range 3 {
			r := startRun(t, one, "s:1", "--limit", "3", "--", "sh", "-c", `echo slot $LOCKSIDECAR_SLOT.; exec sleep 1000`)
			r.says(fmt.Sprintf("slot %d.", slot))
			holders = append(holders, r)
		}
		waiter := dial(t, two.socket)
		waiter.call("PUT", lockPath("s:1"), `{"mode":"shared","limit":3}`).want(423, "held")
		waiter.call("PUT", lockPath("s:1"), `{"mode":"shared","limit":4}`).want(409, "limit_mismatch")
		waiter.send("PUT", lockPath("s:1"), place)
		two.awaitQueue("s:1", 1)
		began := time.Now()
		holders[1].signal(syscall.SIGKILL)
		got := waiter.read("PUT", lockPath("s:1"))
		got.granted()
		if took, limit := time.Since(began), slowed(dropLimit); took > limit || got.int("slot") != 1 {
			t.Errorf("slot %d after %s, want 1 within %s", got.int("slot"), took, limit)
		}
		view := waiter.call("GET", lockPath("s:1"), "", "Cache-Control: no-cache")
		if view.int("holders_count") != 3 || view.int("limit") != 3 {
			t.Errorf("%s", view.body)
		}
	})
}

// The places of a sidecar that was killed are free when its leases have ended.
// Proves: promise 19
func TestKilledSidecarFreesItsSlots(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	o = o.with(options{"TTL": "2s", "RENEW_INTERVAL": "500ms"})
	one, two := start(t, o), start(t, o)
	a, b := dial(t, one.socket), dial(t, one.socket)
	a.acquire("s:1", place)
	b.acquire("s:1", place)
	stays := dial(t, two.socket)
	last := stays.acquire("s:1", place)
	writer, reader := dial(t, two.socket), dial(t, two.socket)
	reader.send("PUT", lockPath("s:1"), place)
	two.awaitQueue("s:1", 1)
	writer.send("PUT", lockPath("s:1"), `{"wait_ms":-1}`)
	two.awaitQueue("s:1", 2)
	one.kill()
	got := reader.read("PUT", lockPath("s:1"))
	if token := got.granted(); token <= last || got.int("slot") > 1 {
		t.Errorf("%s, after token %d", got.body, last)
	}
	stays.release("s:1", last)
	reader.release("s:1", got.int("token"))
	writer.read("PUT", lockPath("s:1")).granted()
}

// PostgreSQL is killed while a semaphore is held, and comes back within the TTL. The holders still have their places, and the calls that
// wait get the next ones in their order.
func TestDatabaseKilledWithASemaphoreHeld(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template())
	url := own.NewDatabase(t)
	o := options{"STORE_URL": url, "TTL": "20s"}
	one, two := start(t, o), start(t, o)
	var holders []*app
	var tokens []int64
	for slot, s := range []*sidecar{one, two, one} {
		a := dial(t, s.socket)
		got := a.call("PUT", lockPath("s:1"), place)
		holders, tokens = append(holders, a), append(tokens, got.granted())
		if got.int("slot") != int64(slot) {
			t.Fatalf("%s, want slot %d", got.body, slot)
		}
	}
	var line []*app
	for i, s := range []*sidecar{two, one} {
		a := dial(t, s.socket)
		a.send("PUT", lockPath("s:1"), place)
		s.awaitQueue("s:1", int64(i+1))
		line = append(line, a)
	}
	own.Kill()
	dial(t, one.socket).call("PUT", lockPath("new"), "").want(503, "store_unavailable")
	holders[0].call("PATCH", lockPath("s:1"), fmt.Sprintf(`{"token":%d}`, tokens[0])).granted() // during the outage
	own.Restart(t)
	one.await("ready again", one.tryReady)
	two.await("ready again", two.tryReady)
	late := dial(t, one.socket)
	late.call("PUT", lockPath("s:1"), `{"mode":"shared","limit":3}`).want(423, "held")
	if view := late.call("GET", lockPath("s:1"), "", "Cache-Control: no-cache"); view.int("holders_count") != 3 || view.int("limit") != 3 {
		t.Errorf("after the crash: %s", view.body)
	}
	one.awaitQueue("s:1", 2) // a crash may forget queue positions: the sidecars find out
	holders[1].release("s:1", tokens[1])
	holders[0].release("s:1", tokens[0])
	slots := map[int64]bool{}
	for _, a := range line {
		got := a.read("PUT", lockPath("s:1"))
		if token := got.granted(); token <= tokens[2] || slots[got.int("slot")] || got.int("slot") == 2 {
			t.Errorf("%s, after token %d", got.body, tokens[2])
		}
		slots[got.int("slot")] = true
		a.release("s:1", got.int("token"))
	}
	holders[2].release("s:1", tokens[2])
	nothingLeft(t, url)
}

// Two processes hold what the other one waits for, each through a sidecar of its own if there are two.
func TestDeadlocksAreReported(t *testing.T) {
	t.Parallel()
	sharing(t, nil, func(t *testing.T, _ options, one, two *sidecar) {
		deadlocks := func() (code int, text string) {
			cmd := exec.Command(binary, "--socket", one.socket, "deadlocks")
			cmd.Env = cleanEnv()
			out, err := cmd.CombinedOutput()
			if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Run returns it as it is
				return exit.ExitCode(), string(out)
			}
			return 0, string(out)
		}
		a, b := openSession(t, one.socket, `{"name":"first"}`), openSession(t, two.socket, `{"name":"second"}`)
		x, y, z := dial(t, one.socket), dial(t, two.socket), dial(t, two.socket)
		x.acquire("a", "", a.joins())
		y.acquire("b", "", b.joins())
		x.send("PUT", lockPath("b"), `{"wait_ms":-1}`, a.joins())
		one.awaitQueue("b", 1)
		z.send("PUT", lockPath("a"), `{"wait_ms":-1}`)
		one.awaitQueue("a", 1)
		if code, text := deadlocks(); code != 0 || !strings.Contains(text, "no deadlock: 2 calls wait for 2 keys") {
			t.Fatalf("code %d: %s", code, text)
		}
		y.send("PUT", lockPath("a"), `{"wait_ms":-1}`, b.joins())
		one.awaitQueue("a", 2)
		code, text := deadlocks()
		if code != 1 || !strings.HasPrefix(text, "deadlock of 2:\n") || !strings.Contains(text, "session first of pod ") || !strings.Contains(text, "session second of pod ") {
			t.Errorf("code %d: %s", code, text)
		}
		y.close() // gives up
		two.awaitQueue("a", 1)
		if code, text := deadlocks(); code != 0 {
			t.Errorf("code %d: %s", code, text)
		}
	})
}

// A candidate leads, loses, and leads again; a stop ends its term, SIGTERM its life.
func TestRunAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	o := options{"ALLOW_FORCE": "true"}
	s := startIn(t, dir, o)
	a := dial(t, s.socket)
	// TERM may come before the shell's child is sleep, and is lost then. KILL is not.
	const look = `grep -E "^Sig(Blk|Ign)" /proc/self/status; trap 'kill -KILL $!; exit 7' TERM; sleep 1000 & echo ready; wait`
	r := startRun(t, s, "leader", "--wait", "--again", "--on-stop", "TERM", "--grace", "1h", "--", "sh", "-c", look)
	terms := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("term %d", n), func() bool { return strings.Count(r.stdout.String(), "ready") == n })
	}
	terms(1)
	a.call("DELETE", lockPath("leader")+"?force=true", "").want(200, "")
	terms(2)
	a.call("POST", stopPath("leader"), "").want(202, "")
	terms(3)
	s.kill()
	r.says("trying again")
	s = startIn(t, dir, o)
	terms(4)
	a = dial(t, s.socket)
	// The next term does not inherit the signals that a term ignores.
	masks := map[string]bool{}
	for line := range strings.Lines(r.stdout.String()) {
		if strings.HasPrefix(line, "Sig") {
			masks[line] = true
		}
	}
	if len(masks) != 2 {
		t.Errorf("signals that are blocked or ignored: %v", masks)
	}
	r.signal(syscall.SIGTERM)
	r.want(7)
	wantFree(t, s, "leader")

	// A command that ends by itself ends the run, also with the code of a sidecar that is not there.
	r = startRun(t, s, "leader", "--again", "--", "sh", "-c", "exit 69")
	r.want(69)
	// So does a signal while it stands in line again.
	a.acquire("leader", "")
	r = startRun(t, s, "leader", "--wait", "--again", "--", os.Args[0])
	s.awaitQueue("leader", 1)
	s.kill()
	r.says("trying again")
	r.signal(syscall.SIGINT)
	r.want(128 + int(syscall.SIGINT))
}
