package e2e

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	dropLocks = 1000
	// dropLimit is how long a drop may take to free dropLocks locks.
	dropLimit = 100 * time.Millisecond
)

// nothingHelps makes renewals and polls so rare that only news can be in time.
var nothingHelps = options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll}

// waitsElsewhere makes a connection wait for a lock of another connection. Each test uses its own
// key, because an earlier connection's end may not have been noticed yet.
func waitsElsewhere(t *testing.T, s *sidecar, a *app) {
	t.Helper()
	other, key := dial(t, s.socket), "other than those of "+t.Name()
	other.acquire(key, "")
	a.send("PUT", lockPath(key), `{"wait_ms":-1}`)
	s.awaitQueue(key, 1)
}

// TestDropFreesAll tests the product's first promise: when a connection ends, in any state, all its
// locks are free a moment later, and a waiter gets its lock.
// Proves: promise 7
func TestDropFreesAll(t *testing.T) {
	t.Parallel()
	states := []struct {
		name string
		// drop brings a connection with locks into a state and ends it.
		drop func(t *testing.T, s *sidecar, holder *app)
	}{
		{"idle", func(_ *testing.T, _ *sidecar, holder *app) { holder.close() }},
		{"waiting", func(t *testing.T, s *sidecar, holder *app) {
			waitsElsewhere(t, s, holder)
			holder.close()
		}},
		{"half of a head", func(_ *testing.T, _ *sidecar, holder *app) {
			fmt.Fprintf(holder, "PUT /v1/locks/half HTTP/1.1\r\nHost: sid")
			holder.close()
		}},
		{"half of a body", func(_ *testing.T, _ *sidecar, holder *app) {
			fmt.Fprintf(holder, "PUT /v1/locks/half HTTP/1.1\r\nHost: sidecar\r\nContent-Length: 100\r\n\r\n{\"wait_ms\"")
			holder.close()
		}},
		{"half closed", func(t *testing.T, _ *sidecar, holder *app) {
			if err := holder.Conn.Conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}},
		{"half closed while waiting", func(t *testing.T, s *sidecar, holder *app) {
			waitsElsewhere(t, s, holder)
			if err := holder.Conn.Conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}},
		{"pipelined bytes behind a wait", func(t *testing.T, s *sidecar, holder *app) {
			waitsElsewhere(t, s, holder)
			holder.send("GET", "/v1", "")
			holder.close()
		}},
	}
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(nothingHelps))
		for _, state := range states {
			t.Run(state.name, func(t *testing.T) {
				names := keys(strings.ReplaceAll(state.name, " ", "-"), dropLocks)
				holder := dial(t, s.socket)
				holder.acquireHundreds(names)
				s.freedBy(t, names, func() { state.drop(t, s, holder) })
			})
		}
	})
}

// freedBy checks that drop frees all keys in time. A waiter for the last key gets its lock, and new
// acquires get the others.
func (s *sidecar) freedBy(t *testing.T, names []string, drop func()) {
	t.Helper()
	last := names[len(names)-1]
	waiter, looker := dial(t, s.socket), dial(t, s.socket)
	waiter.send("PUT", lockPath(last), `{"wait_ms":-1}`)
	s.awaitQueue(last, 1)
	prefix, _, _ := strings.Cut(last, ":")
	list := "/v1/locks?scope=all&limit=2&prefix=" + prefix + ":"

	began := time.Now()
	drop()
	waiter.read("PUT", lockPath(last)).granted()
	granted := time.Since(began)
	s.await("only the waiter to hold a lock", func() bool {
		locks := looker.call("GET", list, "").json["locks"].([]any)
		return len(locks) == 1 && locks[0].(map[string]any)["key"] == last
	})
	free := time.Since(began)
	t.Logf("%d locks: the waiter's grant came after %s, all were seen free after %s", len(names), granted.Round(time.Millisecond/10), free.Round(time.Millisecond/10))
	if limit := slowed(dropLimit); granted > limit || free > limit {
		t.Errorf("want at most %s for both", limit)
	}
	waiter.close()
	looker.close()
}

// acquireHundreds acquires many keys, a hundred in a call. Single calls would take most of the
// test's time.
func (a *app) acquireHundreds(names []string, headers ...string) {
	a.t.Helper()
	for some := range slices.Chunk(names, 100) {
		a.call("POST", "/v1/locks", several(some, ""), headers...).grantedAll(some)
	}
}

// awaitQueue waits until n calls wait for the key.
func (s *sidecar) awaitQueue(key string, n int64) {
	s.t.Helper()
	a := dial(s.t, s.socket)
	defer a.close()
	s.await(fmt.Sprintf("%d waiters for %s", n, key), func() bool {
		return a.call("GET", lockPath(key), "", "Cache-Control: no-cache").int("queue_length") == n
	})
}

// TestKilledAppFreesAll: SIGKILL ends an app without a last request.
// Proves: promise 7
func TestKilledAppFreesAll(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(nothingHelps))
		names := keys("killed", dropLocks)
		s.freedBy(t, names, startApp(t, s, names))
	})
}

// TestEventStreamDrop: an explicit session lives as long as its stream.
func TestEventStreamDrop(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(nothingHelps))
		session := openSession(t, s.socket, "")
		worker := dial(t, s.socket)
		names := keys("stream", dropLocks)
		worker.acquireHundreds(names, session.joins())
		s.freedBy(t, names, session.close)
		// The worker's connection stays open, but its session has ended.
		worker.call("PUT", lockPath("x"), "", session.joins()).want(410, "session_ended")
	})
}

// TestManyDropsAtOnce drops many sessions at the same moment.
func TestManyDropsAtOnce(t *testing.T) {
	t.Parallel()
	const sessions, each = 100, 20
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		apps := make([]*app, sessions)
		for i := range apps {
			apps[i] = dial(t, s.socket)
			for j := range each {
				apps[i].acquire(fmt.Sprintf("many:%d:%d", i, j), "")
			}
		}
		var wg sync.WaitGroup
		for _, a := range apps {
			wg.Go(a.close)
		}
		wg.Wait()
		a := dial(t, s.socket)
		s.await("all locks to be free", func() bool {
			return len(a.call("GET", "/v1/locks?scope=pod", "").json["locks"].([]any)) == 0
		})
	})
}

// TestSessionsExclude: two threads of one explicit session exclude each other. The end of a joined
// connection does not end the session.
// Proves: A5, threat other app
func TestSessionsExclude(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		session := openSession(t, s.socket, `{"name":"workers"}`)
		one, two := dial(t, s.socket), dial(t, s.socket)
		token := one.acquire("shared", "", session.joins())
		held := two.call("PUT", lockPath("shared"), "", session.joins()).want(423, "held")
		if name := held.json["holder"].(map[string]any)["session"]; name != "workers" {
			t.Errorf("the holder's session is %q", name)
		}
		two.send("PUT", lockPath("shared"), `{"wait_ms":-1}`, session.joins())
		s.awaitQueue("shared", 1)
		one.close()
		check := dial(t, s.socket)
		view := check.call("GET", lockPath("shared"), "", session.joins())
		if view.str("state") != "held" || view.json["mine"] != true || view.int("token") != token {
			t.Errorf("after the joined connection closed: %s", view.body)
		}
		check.release("shared", token, session.joins())
		if next := two.read("PUT", lockPath("shared")).granted(); next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		// DELETE ends the session, and answers when all locks are free.
		check.call("DELETE", "/v1/sessions/"+url.PathEscape(session.id), "").want(200, "")
		check.acquire("shared", "")
		check.call("DELETE", "/v1/sessions/"+url.PathEscape(session.id), "").want(410, "session_ended")
	})
}
