package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
)

// TestQuietTimeIsNamed: in the quiet time of a new Redis each refusal says why, and for how long: a call that does not wait, one whose
// wait ends, /readyz, the commands, and the log.
// Proves: rule quiet time
func TestQuietTimeIsNamed(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	s := launch(t, folder(t), options{"STORE_URL": "redis://" + d.Address, "TTL": "10m"})
	s.await("its log names the quiet time", func() bool { return len(s.logged("quiet time: nothing is granted")) > 0 })
	for _, line := range s.logged("quiet time: nothing is granted") {
		if !strings.Contains(line, `"left":"10m0`) && !strings.Contains(line, `"left":"9m`) { // durations, not numbers of nanoseconds
			t.Errorf("the log does not say in words how long: %s", line)
		}
	}
	c := dial(t, s.socket)
	named := func(what string, ans answer) {
		t.Helper()
		if ans.str("reason") != "quiet" || ans.int("quiet_ms") < 300_000 || ans.int("quiet_ms") > 600_000 || !strings.Contains(ans.str("detail"), "or is new") {
			t.Errorf("%s: %s", what, ans.body)
		}
	}
	named("readiness", c.call("GET", "/readyz", "").want(503, "store_unavailable"))
	named("no wait", c.call("PUT", lockPath("k"), `{"bind":"ttl","ttl_ms":1000}`).want(503, "store_unavailable"))
	named("several keys", c.call("POST", "/v1/locks", `{"keys":["a","b"]}`).want(503, "store_unavailable"))
	named("a wait", c.call("PUT", lockPath("k"), `{"wait_ms":300}`).want(423, "wait_timeout"))
	waits := dial(t, s.socket)
	waits.send("PUT", lockPath("k"), `{"wait_ms":-1}`)
	s.awaitQueue("k", 1)
	named("no wait, behind a call that waits", c.call("PUT", lockPath("k"), "").want(503, "store_unavailable"))
	c.call("POST", lockPath("k")+"/stop", "").want(404, "not_held")
	if lock := c.call("GET", lockPath("k"), "").want(200, ""); lock.str("state") != "free" || lock.int("queue_length") != 1 {
		t.Errorf("a key that is kept for a call that waits: %s", lock.body)
	}
	if list := c.call("GET", "/v1/locks?scope=all", "").want(200, ""); !strings.Contains(string(list.body), `"locks":[]`) {
		t.Errorf("listed: %s", list.body)
	}
	c.call("GET", "/healthz", "").want(200, "")
	for _, args := range [][]string{{"health", "--ready"}, {"acquire", "k", "--ttl", "1m", "--wait", "300ms"}, {"run", "free", "--", "true"}, {"run", "k", "--", "true"}} {
		out, err := exec.Command(binary, append([]string{"--socket", s.socket}, args...)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || args[0] == "run" && exit.ExitCode() != exitcode.Unavailable || !strings.Contains(string(out), "quiet time") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
}

// TestMigrateNew: a new Redis that was marked grants at once. One that sidecars use is not marked.
// Proves: rule quiet time
func TestMigrateNew(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	url := "redis://" + d.Address
	migrate := func(args ...string) (string, int) {
		cmd := exec.Command(binary, append([]string{"migrate"}, args...)...)
		cmd.Env = append(cleanEnv(), "LOCKSIDECAR_STORE_URL="+url)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := migrate(); code != exitcode.Config || !strings.Contains(out, "--new") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if out, code := migrate("--new"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	s := start(t, options{"STORE_URL": url, "TTL": "10m"})
	c := dial(t, s.socket)
	token := c.acquire("k", "")
	if out, code := migrate("--new"); code != exitcode.Refused || !strings.Contains(out, "not marked as new") {
		t.Errorf("exit code %d: %s", code, out)
	}
	c.release("k", token)
}

// TestTheStoreIsAway: what a failure of the store means differs by the call, and each detail says what it means for that call.
// Proves: rule readiness
func TestTheStoreIsAway(t *testing.T) {
	t.Parallel()
	o, d := onRedis(t)
	s := start(t, o.with(options{"FAILOVER": "quick", "STORE_TIMEOUT": "1s", "TTL": "10m", "ALLOW_FORCE": "true"}))
	c := dial(t, s.socket)
	token := c.acquire("k", "")
	timed := c.acquire("timed", `{"bind":"ttl","ttl_ms":600000}`)
	d.Kill()
	const granted = "nothing was granted"
	for _, call := range []struct{ method, path, body, says string }{
		{"PUT", lockPath("other"), "", granted},
		{"POST", "/v1/locks", `{"keys":["x","y"]}`, granted},
		{"GET", lockPath("k"), "", ""},
		{"GET", "/v1/locks?scope=all", "", ""},
		{"GET", "/v1/waiters", "", ""},
		{"GET", "/v1/stats", "", ""},
		{"PATCH", lockPath("timed"), fmt.Sprintf(`{"token":%d,"ttl_ms":700000}`, timed), "the change is not confirmed"},
		{"POST", lockPath("k") + "/stop", "", "the request to stop is not confirmed"},
		{"DELETE", fmt.Sprintf("%s?token=%d", lockPath("timed"), timed), "", "the release is not confirmed"},
		{"DELETE", fmt.Sprintf("%s?token=%d", lockPath("k"), token), "", "the release is not confirmed"},
	} {
		detail := c.call(call.method, call.path, call.body, "Cache-Control: no-cache").want(503, "store_unavailable").str("detail")
		if !strings.Contains(detail, call.says) || call.says != granted && strings.Contains(detail, "granted") || !strings.Contains(detail, "the lock store cannot be used now") {
			t.Errorf("%s %s: %s", call.method, call.path, detail)
		}
	}
}
