package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

const requestID = "7f1b5c9e-4a43-4a27-9f4b-2f5d8f3c6a11"

// TestCalls makes each call of the contract, on each store. Every answer is checked against the
// OpenAPI document.
func TestCalls(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"POD": "pod-1", "MAX_LOCKS_PER_SESSION": "5", "MAX_WAITERS": "1"}))
		t.Run("bind:ttl", func(t *testing.T) { callsTTL(t, s) })
		t.Run("session", func(t *testing.T) { callsSession(t, s) })
		t.Run("list", func(t *testing.T) { callsList(t, s) })
		t.Run("wait", func(t *testing.T) { callsWait(t, s) })
		t.Run("limits", func(t *testing.T) { callsLimits(t, s) })
	})
}

// TestABriefWaitFarFromTheStore: a call gets a free key, though its wait is over before the lease is open that it needs first.
// Proves: trap brief wait
func TestABriefWaitFarFromTheStore(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	proxy := pgproxy.Start(t, o["STORE_URL"])
	s := start(t, o.with(options{"STORE_URL": proxy.URL()}))
	proxy.Slow(10 * time.Millisecond)
	a := dial(t, s.socket)
	for path, body := range map[string]string{
		lockPath("lock"): `{"wait_ms":1,"ttl_ms":60000}`, lockPath("share"): `{"wait_ms":1,"ttl_ms":120000,"mode":"shared","limit":3}`,
		lockPath("by-ttl"): `{"wait_ms":1,"ttl_ms":60000,"bind":"ttl"}`,
	} {
		a.call("PUT", path, body).granted()
	}
	keys := []string{"several:1", "several:2"}
	a.call("POST", "/v1/locks", several(keys, `,"wait_ms":1,"ttl_ms":180000`)).grantedAll(keys)
}

// TestManyTTLs: locks with many different TTLs share few leases.
func TestManyTTLs(t *testing.T) {
	t.Parallel()
	const most = 22 // 21 steps of TTLs, and the configured TTL
	o, url := onPostgres(t)
	s := start(t, o)
	a := dial(t, s.socket)
	for i := range 200 {
		ttl := int64(500 + i*i*i*10)
		ans := a.call("PUT", lockPath(fmt.Sprint("ttl:", i)), fmt.Sprintf(`{"ttl_ms":%d}`, ttl))
		if ans.granted(); ans.int("expires_in_ms") >= ttl {
			t.Errorf("ttl_ms %d: %s", ttl, ans.body)
		}
	}
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.leases"); n > most {
		t.Errorf("%d leases", n)
	}
	a.close()
	nothingLeft(t, url)
}

// TestReleaseByRequestID: a lock is released by its request id even if its caller got no answer: in
// the session, and with bind:ttl at any sidecar.
// Proves: promise 9
func TestReleaseByRequestID(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		elsewhere := s
		if o["STORE_URL"] != "memory://" {
			elsewhere = start(t, o)
		}
		session := openSession(t, s.socket, "")
		a, b := dial(t, s.socket), dial(t, elsewhere.socket)
		path := lockPath("job") + "?request_id=" + requestID
		for _, tt := range []struct {
			body   string
			app    *app
			header []string
		}{
			{`{"request_id":"` + requestID + `"}`, a, []string{session.joins()}},
			{`{"bind":"ttl","ttl_ms":60000,"request_id":"` + requestID + `"}`, b, nil},
		} {
			token := a.acquire("job", tt.body, tt.header...)
			if again := tt.app.acquire("job", tt.body, tt.header...); again != token {
				t.Errorf("the repeated request got token %d, want %d", again, token)
			}
			for _, released := range []bool{true, false} {
				if ans := tt.app.call("DELETE", path, "", tt.header...).want(200, ""); ans.json["released"] != released {
					t.Errorf("released: %s", ans.body)
				}
			}
			holder := b.acquire("job", "", "Cache-Control: no-cache")
			waiter := dial(t, s.socket)
			waiter.send("PUT", lockPath("job"), strings.Replace(tt.body, "{", `{"wait_ms":-1,`, 1), tt.header...)
			s.awaitQueue("job", 1)
			a.call("DELETE", path, "", tt.header...).want(200, "")
			waiter.read("PUT", lockPath("job")).want(409, "withdrawn")
			s.awaitQueue("job", 0)
			b.release("job", holder)
		}
	})
}

func callsTTL(t *testing.T, s *sidecar) {
	a := dial(t, s.socket)
	body := `{"bind":"ttl","ttl_ms":60000,"data":{"job":7},"request_id":"` + requestID + `"}`
	first := a.call("PUT", lockPath("cron"), body)
	token := first.granted()
	if first.json["session"] != nil || first.str("bind") != "ttl" || first.int("expires_in_ms") > 60000 || first.int("expires_in_ms") < 50000 {
		t.Errorf("granted: %s", first.body)
	}
	// The same request on another connection gets the same grant.
	a.close()
	b := dial(t, s.socket)
	if again := b.acquire("cron", body); again != token {
		t.Errorf("the repeated request got token %d, want %d", again, token)
	}
	held := b.call("PUT", lockPath("cron"), `{"bind":"ttl"}`).want(423, "held")
	if holder := held.json["holder"].(map[string]any); holder["pod"] != "pod-1" || fmt.Sprint(holder["data"]) != "map[job:7]" {
		t.Errorf("holder: %v", holder)
	}
	extended := b.call("PATCH", lockPath("cron"), fmt.Sprintf(`{"token":%d,"ttl_ms":120000,"data":{"job":8}}`, token)).want(200, "")
	if ms := extended.int("expires_in_ms"); ms <= 60000 || ms > 120000 {
		t.Errorf("extended: %s", extended.body)
	}
	view := b.call("GET", lockPath("cron"), "")
	if view.str("state") != "held" || view.json["mine"] != false || view.json["token"] != nil || !strings.Contains(string(view.body), `"job":8`) {
		t.Errorf("GET: %s", view.body)
	}
	b.release("cron", token)
	b.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("cron"), token), "").want(409, "not_holder")
	if next := b.acquire("cron", body); next <= token {
		t.Errorf("the request after the release got token %d, want more than %d", next, token)
	}

	// The lock ends at its TTL.
	short := b.acquire("short", `{"bind":"ttl","ttl_ms":500}`)
	if next := b.acquire("short", `{"wait_ms":10000}`); next <= short {
		t.Errorf("token %d after %d", next, short)
	}
	b.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("short"), short), "").status4xx()
}

func callsSession(t *testing.T, s *sidecar) {
	features := fmt.Sprint(dial(t, s.socket).call("GET", "/v1", "").json["features"])
	if !strings.Contains(features, "sessions") {
		t.Errorf("features: %s", features)
	}
	a, b := dial(t, s.socket), dial(t, s.socket)
	token := a.acquire("job:1", `{"data":1}`)
	path := fmt.Sprintf("%s?token=%d", lockPath("job:1"), token)
	if r := b.call("DELETE", path, "").want(409, "not_holder"); r.str("reason") != "other_session" {
		t.Errorf("%s", r.body)
	}
	a.call("PATCH", lockPath("job:1"), fmt.Sprintf(`{"token":%d,"ttl_ms":1000}`, token)).want(400, "invalid_request")
	a.call("PATCH", lockPath("job:1"), fmt.Sprintf(`{"token":%d,"data":null}`, token)).want(200, "")
	a.call("PATCH", lockPath("job:1"), fmt.Sprintf(`{"token":%d}`, token+1000)).want(409, "not_holder")
	// The same session is denied too, because it asked without an owner.
	a.call("PUT", lockPath("job:1"), "").want(423, "held")
	if r := a.call("DELETE", path, "").want(200, ""); r.json["released"] != true || r.int("reentry") != 0 {
		t.Errorf("release: %s", r.body)
	}
	if r := a.call("DELETE", path, "").want(409, "not_holder"); r.str("reason") != "released" {
		t.Errorf("%s", r.body)
	}
	a.call("PUT", lockPath("job:1"), "", "Connection: close").want(400, "invalid_request")
	dial(t, s.socket).call("PUT", lockPath("job:1"), "", "Lock-Session: 00").want(410, "session_ended")
}

func callsList(t *testing.T, s *sidecar) {
	a := dial(t, s.socket)
	for _, key := range []string{"list:b", "list:a", "other", "list:ä", "list:a/b"} {
		a.acquire(key, "")
	}
	for _, scope := range []string{"session", "pod", "all"} {
		var got []string
		cursor := ""
		for range 10 {
			page := a.call("GET", "/v1/locks?limit=2&type=list&scope="+scope+cursor, "").want(200, "")
			for _, lock := range page.json["locks"].([]any) {
				view := lock.(map[string]any)
				got = append(got, fmt.Sprint(view["key"], " ", view["mine"]))
			}
			next, more := page.json["next_cursor"].(string)
			if !more {
				break
			}
			cursor = "&cursor=" + next
		}
		if want := "[list:a true list:a/b true list:b true list:ä true]"; fmt.Sprint(got) != want {
			t.Errorf("scope %s: %v, want %s", scope, got, want)
		}
	}
	b := dial(t, s.socket)
	if n := len(b.call("GET", "/v1/locks?scope=session", "").json["locks"].([]any)); n != 0 {
		t.Errorf("a session without locks lists %d locks", n)
	}
}

func callsWait(t *testing.T, s *sidecar) {
	a, b := dial(t, s.socket), dial(t, s.socket)
	token := a.acquire("busy", "")
	timeout := b.call("PUT", lockPath("busy"), `{"wait_ms":50}`).want(423, "wait_timeout")
	if timeout.int("waited_ms") < 50 || timeout.int("queue_position") != 1 || timeout.json["holder"] == nil {
		t.Errorf("timeout: %s", timeout.body)
	}
	b.send("PUT", lockPath("busy"), `{"wait_ms":-1}`)
	s.awaitQueue("busy", 1)
	dial(t, s.socket).call("PUT", lockPath("busy"), `{"wait_ms":10}`).want(429, "limit")
	a.release("busy", token)
	if next := b.read("PUT", lockPath("busy")); next.granted() <= token {
		t.Errorf("token %d after %d", next.int("token"), token)
	}
}

func callsLimits(t *testing.T, s *sidecar) {
	a := dial(t, s.socket)
	for i := range 5 {
		a.acquire(fmt.Sprintf("limit:%d", i), "")
	}
	refused := a.call("PUT", lockPath("limit:5"), "").want(429, "limit")
	if refused.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// status4xx checks that the answer is a refusal. The status depends on the store, which may have
// forgotten the old token if the key has another holder.
func (ans answer) status4xx() {
	ans.t.Helper()
	if ans.status != 409 && ans.status != 410 {
		ans.t.Fatalf("got %d, want 409 or 410: %s", ans.status, ans.body)
	}
}

// TestCommands runs the client commands of the binary.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	run := func(code int, args ...string) string {
		t.Helper()
		cmd := exec.Command(binary, args...)
		cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != code {
			t.Fatalf("%v: %v, want exit code %d:\n%s", args, err, code, out)
		}
		return strings.TrimSpace(string(out))
	}
	run(0, "health")
	token := run(0, "acquire", "shell:1", "--ttl", "1m")
	run(75, "acquire", "shell:1", "--ttl", "1m")
	if out := run(0, "get", "shell:1"); !strings.Contains(out, "held") {
		t.Errorf("get: %s", out)
	}
	if out := run(0, "ls"); !strings.Contains(out, "shell:1") {
		t.Errorf("ls: %s", out)
	}
	run(0, "release", "shell:1", "--token", token)
	run(77, "release", "shell:1", "--token", token)
	run(2, "acquire")
	if out := run(0, "version"); !strings.Contains(out, "v1") {
		t.Errorf("version: %s", out)
	}
	if out := run(0, "--help"); !strings.Contains(out, "curl") {
		t.Errorf("the help lacks an example: %s", out)
	}
}
