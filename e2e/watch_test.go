package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

const announcements = "/* locksidecar:notify_events */%"

// sees reads events, which must come in this order. Each is "name" or "name member=json".
func (s *stream) sees(want ...string) {
	s.t.Helper()
	for _, w := range want {
		name, member, _ := strings.Cut(w, " ")
		e := s.want(name)
		if member == "" {
			continue
		}
		field, value, _ := strings.Cut(member, "=")
		if got, _ := json.Marshal(e.data[field]); string(got) != value {
			s.t.Errorf("%s: %s is %s, want %s: %s", name, field, got, value, e.raw)
		}
	}
}

// TestEvents: the watchers of a key see its events from all pods.
// Proves: promise 16
func TestEvents(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
		one := start(t, o)
		two := one
		if o["STORE_URL"] != "memory://" {
			two = start(t, o)
		}
		a, b := dial(t, one.socket), dial(t, two.socket)
		held := a.acquire("job", "")
		near, state := watchKey(t, one.socket, "job")
		far, _ := watchKey(t, two.socket, "job")
		if state.data["state"] != "held" || state.data["key"] != "job" {
			t.Errorf("state: %s", state.raw)
		}
		// Events that two pods cause at the same time have no fixed order.
		b.call("POST", stopPath("job"), `{"reason":"deploy"}`).want(202, "")
		near.sees(`stopping reason="deploy"`)
		far.sees(`stopping reason="deploy"`)
		a.releaseWith("job", held, "&outcome=failure", "")
		near.sees(`released outcome="failure"`)
		far.sees(`released outcome="failure"`)
		token := b.acquire("job", `{"data":{"n":1}}`, "Cache-Control: no-cache")
		// The store reports a grant of another pod a moment later. If the grant is over by then,
		// its holder is no longer known.
		for _, s := range []*stream{near, far} {
			e := s.want("acquired")
			holder, _ := e.data["holder"].(map[string]any)
			if data, _ := json.Marshal(holder["data"]); string(data) != `{"n":1}` {
				t.Errorf("acquired: %s", e.raw)
			}
			if fmt.Sprint(e.data["token"]) != fmt.Sprint(token) {
				t.Errorf("acquired, want token %d: %s", token, e.raw)
			}
		}
		a.send("PUT", lockPath("job"), `{"wait_ms":-1}`)
		two.awaitQueue("job", 1)
		b.releaseWith("job", token, "&outcome=success", `{"result":[1,2]}`)
		next := a.read("PUT", lockPath("job")).granted()
		for _, s := range []*stream{near, far} {
			s.sees("released result=[1,2]", "acquired")
		}
		a.close() // the end of the session releases the lock
		near.sees("released outcome=null")
		far.sees("released outcome=null")
		_ = next

		// Events of other keys are not shown.
		b.release("other", b.acquire("other", ""))
		b.release("job", b.acquire("job", "", "Cache-Control: no-cache"))
		near.sees("acquired", "released")
		far.sees("acquired", "released")
	})
}

// TestWatchersSeeExpiry: the holder's pod dies, and the key has no waiters. Watchers are notified
// within a second of the lease's end.
// Proves: promise 16
func TestWatchersSeeExpiry(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	limit := ttl + slowed(time.Second)
	o, _ := onPostgres(t)
	one, two := start(t, o.with(options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"})), start(t, o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll}))
	dial(t, one.socket).acquire("job", "")
	watching, _ := watchKey(t, two.socket, "job")
	one.kill()
	began := time.Now()
	watching.sees("expired")
	took := time.Since(began)
	t.Logf("expired %s after the kill", took.Round(time.Millisecond))
	if took > limit {
		t.Errorf("want at most %s", limit)
	}
	b := dial(t, two.socket)
	b.release("job", b.acquire("job", ""))
	watching.sees("acquired", "released")
}

// TestStreamOpenedDuringAnOutage: during an outage of the database, a stream is opened and closed,
// and another is opened. The second stream begins after the outage.
// Proves: trap stream in an outage
func TestStreamOpenedDuringAnOutage(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	proxy := pgproxy.Start(t, url)
	frozen, back := make(chan struct{}), make(chan struct{})
	var once sync.Once
	proxy.On("watch", pgproxy.BeforeSend, func() {
		once.Do(func() {
			close(frozen)
			<-back
		})
	})
	// With a limit of one waiter, the second stream is opened after the end of the first.
	s := start(t, o.with(options{"STORE_URL": proxy.URL(), "STORE_TIMEOUT": "5s", "MAX_WAITERS": "1"}))
	path := lockPath("job") + "/events"
	first, _ := tryStream(t, s.socket, "GET", path, "")
	<-frozen
	first.close()
	var second *stream
	eventually(t, "the end of the first stream", func() bool {
		second, _ = tryStream(t, s.socket, "GET", path, "")
		return second != nil
	})
	logged := "keys not watched"
	s.await("the failure of the first watch", func() bool { return len(s.logged(logged)) > 0 })
	close(back)
	second.sees("state")
	a := dial(t, s.socket)
	a.release("job", a.acquire("job", "", "Cache-Control: no-cache"))
	second.sees("acquired", "released")
}

// TestUnwatchedKeysCostNothing: notifications are sent only for watched keys.
// Proves: promise 16
func TestUnwatchedKeysCostNothing(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	one, two := start(t, o), start(t, o)
	a := dial(t, one.socket)
	churn := func(key string) int64 {
		cluster.ResetStatements(t, url)
		for range 50 {
			a.release(key, a.acquire(key, "", "Cache-Control: no-cache"))
		}
		return cluster.Statements(t, url, announcements)
	}
	watching, _ := watchKey(t, two.socket, "watched")
	if n := churn("other"); n != 0 {
		t.Errorf("%d notifications about an unwatched key", n)
	}
	churn("watched")
	for range 50 {
		watching.sees("acquired", "released")
	}
	if n := cluster.Statements(t, url, announcements); n == 0 {
		t.Error("no notification about a watched key: this does not test the rule")
	}
	watching.close()
	eventually(t, "the end of the watch", func() bool { return churn("watched") == 0 })
	if n := churn("watched"); n != 0 {
		t.Errorf("%d notifications about a key that is no longer watched", n)
	}
}

// TestSlowWatcher: a stream whose client does not read is dropped, and delays no other client.
// Proves: promise 16
func TestSlowWatcher(t *testing.T) {
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"LOG_LEVEL": "info"}))
		slow := dial(t, s.socket)
		slow.send("GET", lockPath("busy")+"/events", "")
		buf := make([]byte, 1)
		if _, err := slow.Read(buf); err != nil {
			t.Fatal(err)
		}
		a := dial(t, s.socket)
		var slowest time.Duration
		result := fmt.Sprintf(`{"result":%q}`, strings.Repeat("x", 4000))
		deadline := time.Now().Add(patience)
		for len(s.logged("event stream dropped")) == 0 {
			if time.Now().After(deadline) {
				t.Fatal("a stream whose client does not read is not dropped")
			}
			began := time.Now()
			a.releaseWith("busy", a.acquire("busy", ""), "&outcome=success", result)
			slowest = max(slowest, time.Since(began))
		}
		t.Logf("the slowest acquire and release took %s", slowest.Round(time.Millisecond))
		if slowest > 4*time.Second { // less than the time limit for a reader
			t.Errorf("a stream whose client does not read delayed a lock: %s", slowest)
		}
	})
}
