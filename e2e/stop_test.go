package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// stopWithin is the longest allowed time of a stop to a holder in another pod.
const stopWithin = 10 * time.Millisecond

func stopPath(key string) string { return lockPath(key) + "/stop" }

// stopping checks how an answer shows a stop.
func (ans answer) stopping(reason string) {
	ans.t.Helper()
	asked, _ := ans.json["stopping"].(map[string]any)
	if asked["reason"] != reason {
		ans.t.Errorf("stopping for %q, want %q: %s", asked["reason"], reason, ans.body)
	}
	if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(asked["requested_at"])); err != nil {
		ans.t.Errorf("%v: %s", err, ans.body)
	}
}

// TestStop: an app in any pod may ask the holder to stop. The holder is notified at once. The next
// holder is not asked.
// Proves: promise 17
func TestStop(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	one, two := start(t, o), start(t, o)
	session, a, b := openSession(t, one.socket, ""), dial(t, one.socket), dial(t, two.socket)
	b.call("POST", stopPath("job"), "").want(404, "not_held")
	token := a.acquire("job", "", session.joins())
	one.hears()
	if v := a.call("GET", lockPath("job"), ""); v.json["stopping"] != nil {
		t.Errorf("asked to stop before the stop: %s", v.body)
	}

	began := time.Now()
	b.call("POST", stopPath("job"), `{"reason":"deploy"}`).want(202, "")
	asked := session.want("stop")
	took := time.Since(began)
	t.Logf("asked to stop after %s", took.Round(100*time.Microsecond))
	if limit := slowed(stopWithin); took > limit {
		t.Errorf("want at most %s", limit)
	}
	if asked.data["key"] != "job" || asked.data["reason"] != "deploy" || fmt.Sprint(asked.data["token"]) != fmt.Sprint(token) {
		t.Errorf("stop: %s", asked.raw)
	}
	a.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d}`, token), session.joins()).want(200, "").stopping("deploy")
	a.call("GET", lockPath("job"), "").stopping("deploy")
	b.call("GET", lockPath("job"), "", "Cache-Control: no-cache").stopping("deploy")

	// After another stop, the holder is notified only of a new reason. The test waits until the
	// sidecar has acknowledged the first stop. An earlier repeat would count as one of a client,
	// whose next repeat may wait for a renewal.
	eventually(t, "the first request to be acknowledged", func() bool {
		return pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.signals") == 0
	})
	b.call("POST", stopPath("job"), `{"reason":"deploy"}`).want(202, "")
	b.call("POST", stopPath("job"), `{"reason":"at once"}`).want(202, "")
	if again := session.want("stop"); again.data["reason"] != "at once" {
		t.Errorf("stop: %s", again.raw)
	}

	// The stop is not for the next holder, whether it waited or comes later.
	b.send("PUT", lockPath("job"), `{"wait_ms":-1}`)
	one.awaitQueue("job", 1)
	a.release("job", token, session.joins())
	next := b.read("PUT", lockPath("job")).granted()
	for _, v := range []answer{
		b.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d}`, next)),
		a.call("GET", lockPath("job"), "", "Cache-Control: no-cache"),
	} {
		if v.want(200, "").json["stopping"] != nil {
			t.Errorf("the next holder is asked to stop: %s", v.body)
		}
	}
	b.release("job", next)
	b.call("POST", stopPath("job"), "").want(404, "not_held")
	// The holder is notified before its sidecar acknowledges that to the store.
	eventually(t, "the end of all signals", func() bool {
		return pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.signals") == 0
	})

	// A bind:ttl lock has no session to notify. Its holder sees the stop in an answer.
	cron := a.acquire("cron", `{"bind":"ttl","ttl_ms":60000}`)
	b.call("POST", stopPath("cron"), "").want(202, "")
	v := a.call("PATCH", lockPath("cron"), fmt.Sprintf(`{"token":%d}`, cron)).want(200, "")
	if asked, _ := v.json["stopping"].(map[string]any); asked == nil || asked["reason"] != nil {
		t.Errorf("PATCH: %s", v.body)
	}
}

// TestStopWithoutListen: without notifications, the renewal reports the stop.
// Proves: promise 17
func TestStopWithoutListen(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	o, _ := onPostgres(t)
	o = o.with(options{"POSTGRES_LISTEN": "never", "POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h", "RENEW_INTERVAL": interval.String()})
	one, two := start(t, o), start(t, o)
	session, a, b := openSession(t, one.socket, ""), dial(t, one.socket), dial(t, two.socket)
	a.acquire("job", "", session.joins())
	began := time.Now()
	b.call("POST", stopPath("job"), `{"reason":"deploy"}`).want(202, "")
	session.want("stop")
	took := time.Since(began)
	t.Logf("asked to stop after %s", took.Round(time.Millisecond))
	if limit := interval + slowed(stopWithin); took > limit {
		t.Errorf("want at most %s", limit)
	}
}

// TestForce: a lock is broken only if the settings allow it. The holder is notified of the loss
// before the next grant.
// Proves: promise 17, threat other app
func TestForce(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	one, two, plain := start(t, o), start(t, o.with(options{"ALLOW_FORCE": "true"})), start(t, o)
	session, a := openSession(t, one.socket, ""), dial(t, one.socket)
	token := a.acquire("job", `{"min_hold_ms":60000}`, session.joins())
	force := lockPath("job") + "?force=true"
	dial(t, plain.socket).call("DELETE", force, "").want(403, "forbidden")
	operator := dial(t, two.socket)
	operator.call("DELETE", lockPath("free")+"?force=true", "").want(404, "not_held")
	operator.call("DELETE", fmt.Sprintf("%s&token=%d", force, token+1), "").want(404, "not_held")
	a.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d}`, token), session.joins()).want(200, "")

	operator.call("DELETE", fmt.Sprintf("%s&token=%d", force, token), "").want(200, "")
	lost := session.want("lost")
	if lost.data["key"] != "job" || lost.data["reason"] != "forced" {
		t.Errorf("lost: %s", lost.raw)
	}
	if late := a.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d}`, token), session.joins()).want(410, "lock_lost"); late.str("reason") != "forced" {
		t.Errorf("a late claim: %s", late.body)
	}
	next := operator.acquire("job", "", "Cache-Control: no-cache")
	if next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	operator.release("job", next)
	two.await("the log line of the sidecar that broke the lock", func() bool { return len(two.logged(`"level":"WARN"`, `"key":"job"`)) > 0 })
	one.await("the log line of the sidecar whose lock was broken", func() bool { return len(one.logged(`"level":"WARN"`, `"key":"job"`, "lock broken")) > 0 })

	// A bind:ttl lock, a lock of a dead sidecar, and a lock with a waiter.
	cron := a.acquire("cron", `{"bind":"ttl","ttl_ms":600000}`)
	a.send("PUT", lockPath("cron"), `{"wait_ms":-1}`)
	one.awaitQueue("cron", 1)
	operator.call("DELETE", lockPath("cron")+"?force=true", "").want(200, "")
	a.release("cron", a.read("PUT", lockPath("cron")).granted())
	operator.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("cron"), cron), "").want(409, "not_holder")

	short := start(t, o.with(options{"TTL": "1s"}))
	dial(t, short.socket).acquire("left", "")
	short.kill()
	began := time.Now()
	operator.call("DELETE", lockPath("left")+"?force=true", "") // the lease ends before the break, or because of it
	if took := time.Since(began); took > time.Second+slowed(holdSlack) {
		t.Errorf("breaking the lock of a dead sidecar took %s", took)
	}
	operator.release("left", operator.acquire("left", "", "Cache-Control: no-cache"))
	nothingLeft(t, url)
}

// TestRefusalsAreLogged: a refused release is logged with the reason.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		a, b := dial(t, s.socket), dial(t, s.socket)
		token := a.acquire("k", "")
		path := fmt.Sprintf("%s?token=%d", lockPath("k"), token)
		var reasons []string
		refused := func(who *app, path string) {
			reasons = append(reasons, who.call("DELETE", path, "").want(409, "not_holder").str("reason"))
		}
		refused(b, path)
		refused(a, fmt.Sprintf("%s?token=%d", lockPath("k"), token+1000))
		a.release("k", token)
		refused(a, path)
		if want := []string{"other_session", "unknown_token", "released"}; !slices.Equal(reasons, want) {
			t.Errorf("refused for %v, want %v", reasons, want)
		}
		for _, reason := range reasons {
			s.await("the refusal for "+reason+" to be in the log", func() bool {
				return len(s.logged(`"level":"WARN"`, `"key":"k"`, `"reason":"`+reason+`"`)) == 1
			})
		}
	})
}
