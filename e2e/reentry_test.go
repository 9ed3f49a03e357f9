package e2e

import (
	"fmt"
	"testing"
	"time"
)

func entry(owner string, wait int) string {
	return fmt.Sprintf(`{"owner":%q,"reentrant":true,"wait_ms":%d}`, owner, wait)
}

// TestReentry: the same owner in the same session reenters without statements. Only the last
// release frees the lock. Others wait, also in the same session.
// Proves: promise 13
func TestReentry(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll}))
	session := openSession(t, s.socket, "")
	a, b, stranger := dial(t, s.socket), dial(t, s.socket), dial(t, s.socket)
	token := a.acquire("wf", entry("w1", 0), session.joins())
	cluster.ResetStatements(t, url)
	for i := range 100 {
		ans := b.call("PUT", lockPath("wf"), entry("w1", 0), session.joins())
		if ans.granted() != token || ans.int("reentry") != int64(i+2) {
			t.Fatalf("entry %d: %s", i+2, ans.body)
		}
	}
	// The sidecar starts to listen meanwhile, because it holds the lock. These statements would
	// belong to the reentry.
	for _, statement := range []string{"acquire%", "ask%", "read%", "check%", "release%", "amend%", "lease%"} {
		if n := cluster.Statements(t, url, "/* locksidecar:"+statement); n != 0 {
			t.Errorf("%d statements %s for 100 entries, want none", n, statement)
		}
	}
	stranger.call("PUT", lockPath("wf"), entry("w1", 0)).want(423, "held") // another session
	b.call("PUT", lockPath("wf"), entry("w2", 0), session.joins()).want(423, "held")
	b.call("PUT", lockPath("wf"), `{"owner":"w1"}`, session.joins()).want(423, "held") // this call does not allow reentry
	b.send("PUT", lockPath("wf"), entry("w2", -1), session.joins())
	s.awaitQueue("wf", 1)
	for i := int64(100); i > 0; i-- {
		ans := a.releaseWith("wf", token, fmt.Sprintf("&reentry=%d", i+1), "", session.joins())
		if ans.json["released"] != false || ans.int("reentry") != i {
			t.Fatalf("release: %s", ans.body)
		}
		// A repeated release does not remove a second entry.
		again := a.call("DELETE", fmt.Sprintf("%s?token=%d&reentry=%d", lockPath("wf"), token, i+1), "", session.joins()).want(409, "not_holder")
		if again.str("reason") != "released" || again.int("reentry") != i {
			t.Fatalf("released again: %s", again.body)
		}
	}
	if ans := a.releaseWith("wf", token, "", "", session.joins()); ans.json["released"] != true || ans.int("reentry") != 0 {
		t.Errorf("the last release: %s", ans.body)
	}
	next := b.read("PUT", lockPath("wf")).granted()

	// A lock with many entries ends with its session.
	for range 10 {
		a.call("PUT", lockPath("wf"), entry("w2", 0), session.joins()).granted()
	}
	stranger.send("PUT", lockPath("wf"), entry("w1", -1))
	s.awaitQueue("wf", 1)
	began := time.Now()
	session.close()
	if last := stranger.read("PUT", lockPath("wf")).granted(); last <= next {
		t.Errorf("token %d after %d", last, next)
	}
	if took := time.Since(began); took > slowed(promptly) {
		t.Errorf("free %s after the session's end, want at most %s", took, slowed(promptly))
	}
}
