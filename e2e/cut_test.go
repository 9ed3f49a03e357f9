package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

// scene is a lock with two clients: one behind a connection that breaks, one behind a good one.
type scene struct {
	t           *testing.T
	broken      *sidecar // the sidecar behind the proxy
	good        *sidecar
	mine, other *app // connections to the sidecars
	key         string
	n           int
	arm         func() // enables the fault
	fired       func() bool
	token       int64 // the last token that a client received
}

// told notes an answer to an acquire: granted, or unavailable and so not granted.
func (s *scene) told(ans answer) (granted bool) {
	s.t.Helper()
	if ans.status != 200 {
		ans.want(503, "store_unavailable")
		return false
	}
	token := ans.granted()
	if token <= s.token {
		s.t.Errorf("token %d after %d", token, s.token)
	}
	s.token = token
	return true
}

// held notes a grant, and checks that the other client is denied.
func (s *scene) held(ans answer, stranger *app) {
	s.t.Helper()
	if s.told(ans) {
		stranger.call("PUT", lockPath(s.key), "", "Cache-Control: no-cache").want(423, "held")
	}
}

func (s *scene) release(a *app) {
	s.t.Helper()
	ans := a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(s.key), s.token), "")
	if ans.status == 503 { // unknown: the repeat finds out
		ans = a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(s.key), s.token), "")
	}
	if ans.status != 200 && ans.status != 409 {
		s.t.Fatalf("release: %d %s", ans.status, ans.body)
	}
}

// acquireThen is the first acquire of each scene. The fault happens in it or later.
func (s *scene) acquireThen(body string, then func()) {
	s.t.Helper()
	ans := s.mine.call("PUT", lockPath(s.key), body)
	s.held(ans, s.other)
	if ans.status == 200 {
		then()
	}
}

// scenes make a sidecar run each statement.
var scenes = []struct {
	statement string
	play      func(s *scene)
}{
	{"acquire_one", func(s *scene) {
		s.arm()
		s.acquireThen("", func() { s.release(s.mine) })
	}},
	{"acquire_row", func(s *scene) { // of a key that the sidecar has released
		s.acquireThen("", func() { s.release(s.mine) })
		s.arm()
		s.acquireThen("", func() { s.release(s.mine) })
	}},
	{"lease_open", func(s *scene) { // a TTL of another step needs another lease
		s.arm()
		s.acquireThen(fmt.Sprintf(`{"ttl_ms":%d}`, 30_000<<(s.n%10)), func() { s.release(s.mine) })
	}},
	{"release_one", func(s *scene) {
		s.acquireThen("", func() {
			s.arm()
			s.release(s.mine)
		})
	}},
	{"lease_renew", func(s *scene) {
		s.acquireThen(`{"ttl_ms":6000}`, func() {
			s.arm()
			eventually(s.t, "the renewal's fault", s.fired)
			s.other.call("PUT", lockPath(s.key), "", "Cache-Control: no-cache").want(423, "held")
			s.release(s.mine)
		})
	}},
	{"ask", func(s *scene) {
		s.told(s.other.call("PUT", lockPath(s.key), ""))
		s.arm()
		s.mine.send("PUT", lockPath(s.key), `{"wait_ms":-1}`)
		eventually(s.t, "the enqueue's fault", s.fired)
		s.release(s.other)
		ans := s.mine.read("PUT", lockPath(s.key))
		s.held(ans, s.other)
		if ans.status == 200 {
			s.release(s.mine)
		}
	}},
	{"cancel_one", func(s *scene) {
		s.told(s.other.call("PUT", lockPath(s.key), ""))
		s.mine.send("PUT", lockPath(s.key), `{"wait_ms":-1}`)
		s.good.awaitQueue(s.key, 1)
		s.arm()
		s.mine.close()
		eventually(s.t, "the cancel's fault", s.fired)
		s.release(s.other)
	}},
	{"release", func(s *scene) { // a hand-off of a contended key
		s.acquireThen("", func() {
			s.other.send("PUT", lockPath(s.key), `{"wait_ms":-1}`)
			s.good.awaitQueue(s.key, 1)
			s.arm()
			s.release(s.mine)
			s.held(s.other.read("PUT", lockPath(s.key)), s.mine)
			s.release(s.other)
		})
	}},
	{"reap_one", (*scene).waitOut},
	{"hand_off", (*scene).waitOut},
}

// waitOut waits for a lock whose lease ends. The lease ends only after the call is queued, because
// otherwise there would be no hand-off.
func (s *scene) waitOut() {
	s.t.Helper()
	s.told(s.other.call("PUT", lockPath(s.key), `{"bind":"ttl","ttl_ms":600000}`))
	s.mine.send("PUT", lockPath(s.key), `{"wait_ms":-1}`)
	s.good.awaitQueue(s.key, 1)
	s.arm()
	s.other.call("PATCH", lockPath(s.key), fmt.Sprintf(`{"token":%d,"ttl_ms":500}`, s.token)).want(200, "")
	ans := s.mine.read("PUT", lockPath(s.key))
	s.held(ans, s.other)
	if ans.status == 200 {
		s.release(s.mine)
	}
}

// TestCutConnections cuts the connection to the database at each stage of each statement that
// changes a holder. Every answer that the client got is true, and other grants are withdrawn.
// Proves: promise 9
func TestCutConnections(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	proxy := pgproxy.Start(t, url)
	// The lease lasts long, so that the result does not depend on its end.
	o = o.with(options{"TTL": "10m", "CACHE_TTL": "0"})
	broken := start(t, o.with(options{"STORE_URL": proxy.URL(), "STORE_TIMEOUT": "2s"}))
	good := start(t, o)
	for i, c := range scenes {
		for _, stage := range []pgproxy.Stage{pgproxy.BeforeSend, pgproxy.AfterSend, pgproxy.AfterCommandComplete} {
			name := c.statement + "/" + strings.ReplaceAll(stage.String(), " ", "-")
			t.Run(name, func(t *testing.T) {
				var cut *pgproxy.Hook
				s := &scene{
					t: t, broken: broken, good: good, mine: dial(t, broken.socket), other: dial(t, good.socket),
					key: "cut:" + name, n: 10*i + int(stage),
				}
				s.arm = func() { cut = proxy.Cut(pgproxy.Cut{Statement: c.statement, Stage: stage}) }
				s.fired = func() bool { return cut.Fired() > 0 }
				c.play(s)
				eventually(t, "the fault", s.fired) // the sidecar may notice the fault first
				s.curtain(url)
			})
		}
	}
}

// curtain checks that another client can get the lock, and that nothing is left.
func (s *scene) curtain(url string) {
	s.t.Helper()
	began := time.Now()
	last := dial(s.t, s.good.socket)
	if !s.told(last.call("PUT", lockPath(s.key), `{"wait_ms":-1}`)) {
		s.t.Error("the lock is not available")
	}
	last.release(s.key, s.token)
	s.mine.close()
	s.other.close()
	nothingLeft(s.t, url)
	s.t.Logf("settled after %s", time.Since(began).Round(time.Millisecond))
}
