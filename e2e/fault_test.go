package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const stopSignal = syscall.SIGSTOP

// TestStoppedSidecar: a sidecar that was stopped for longer than its TTL does not report its old
// locks as held, although it got no news.
// Proves: promise 2
func TestStoppedSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	o = o.with(options{"TTL": "1s"})
	first, second := start(t, o), start(t, o)
	session := openSession(t, first.socket, "")
	a := dial(t, first.socket)
	joined := a.acquire("a", "", session.joins())
	plain := dial(t, first.socket)
	token := plain.acquire("b", "")
	first.signal(syscall.SIGSTOP)

	b := dial(t, second.socket)
	if next := b.acquire("b", `{"wait_ms":20000}`); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	if next := b.acquire("a", `{"wait_ms":20000}`); next <= joined {
		t.Errorf("token %d after %d", next, joined)
	}

	// After it continues, the sidecar first reads requests that were sent meanwhile.
	plain.send("PATCH", lockPath("b"), fmt.Sprintf(`{"token":%d}`, token))
	a.send("GET", lockPath("a"), "", session.joins())
	first.signal(syscall.SIGCONT)
	lost := plain.read("PATCH", lockPath("b")).want(410, "lock_lost")
	if reason := lost.str("reason"); reason != "expired" && reason != "store_lost" {
		t.Errorf("reason %q", reason)
	}
	if view := a.read("GET", lockPath("a")); view.json["mine"] != false {
		t.Errorf("GET of the lost lock: %s", view.body)
	}
	if e := session.next(); e.name != "lost" || e.data["key"] != "a" || fmt.Sprint(e.data["token"]) != fmt.Sprint(joined) {
		t.Errorf("event %q %v", e.name, e.data)
	}
	plain.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("b"), token), "").want(410, "lock_lost")
	// The session continues, and can acquire other locks.
	a.acquire("c", "", session.joins())
}

// TestTwoSidecarsExclude lets many clients behind two sidecars compete for a few keys. It checks
// from outside that a key never has two holders.
// Proves: promise 1
func TestTwoSidecarsExclude(t *testing.T) {
	t.Parallel()
	const clients, each, names, leastGrants = 12, 40, 3, 300
	o, _ := onPostgres(t)
	o = o.with(options{"POSTGRES_POLL_INTERVAL": "50ms"})
	sidecars := []*sidecar{start(t, o), start(t, o)}
	var mu sync.Mutex
	holder, last := map[string]int{}, map[string]int64{}
	grants := 0
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			a := dial(t, sidecars[i%2].socket)
			for j := range each {
				key := fmt.Sprintf("contended:%d", (i+j)%names)
				ans := a.call("PUT", lockPath(key), `{"wait_ms":20000}`)
				if ans.status != 200 {
					t.Errorf("client %d: %s", i, ans.body)
					return
				}
				token := ans.int("token")
				mu.Lock()
				if holder[key] != 0 {
					t.Errorf("%s is granted to %d while %d holds it", key, i+1, holder[key])
				}
				if token <= last[key] {
					t.Errorf("%s: token %d after %d", key, token, last[key])
				}
				holder[key], last[key] = i+1, token
				grants++
				mu.Unlock()
				mu.Lock()
				holder[key] = 0
				mu.Unlock()
				if j%10 == 9 { // a drop releases, too
					a.close()
					a = dial(t, sidecars[i%2].socket)
					continue
				}
				a.release(key, token)
			}
		})
	}
	wg.Wait()
	if grants < leastGrants {
		t.Errorf("only %d grants", grants)
	}
	a := dial(t, sidecars[0].socket)
	sidecars[0].await("everything to be free", func() bool {
		return len(a.call("GET", "/v1/locks?scope=all", "").json["locks"].([]any)) == 0
	})
}

// TestTokensGrow: tokens grow through releases, concurrent first acquires and restarts.
// Proves: promise 3
func TestTokensGrow(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		dir := folder(t)
		last := int64(0)
		for range 3 {
			s := startIn(t, dir, o)
			tokens := make(chan int64, 100)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					a := dial(t, s.socket)
					for range 10 {
						token := a.acquire("grows", `{"wait_ms":20000}`)
						tokens <- token // while the lock is held, so in the order of the grants
						a.release("grows", token)
					}
				})
			}
			wg.Wait()
			close(tokens)
			for token := range tokens {
				if token <= last {
					t.Fatalf("token %d after %d", token, last)
				}
				last = token
			}
			if code := s.stop(); code != 0 {
				t.Fatalf("stopped with code %d", code)
			}
		}
	})
}

// TestGracefulStop: a sidecar that drains is not ready, refuses acquires, and ends waits. Releases
// still work. A connection stays open until its locks are free.
// Proves: trap Shutdown
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"DRAIN_TIMEOUT": "1h"}))
		holder, waiter, other := dial(t, s.socket), dial(t, s.socket), dial(t, s.socket)
		token := holder.acquire("held", "")
		ttl := other.acquire("outlives", `{"bind":"ttl","ttl_ms":60000}`)
		waiter.send("PUT", lockPath("held"), `{"wait_ms":-1}`)
		s.awaitQueue("held", 1)
		s.signal(syscall.SIGHUP) // ignored: the sidecar stops at the next signal, not at this one
		s.signal(syscall.SIGTERM)
		waiter.read("PUT", lockPath("held")).want(503, "draining")
		other.call("PUT", lockPath("new"), "").want(503, "draining")
		other.call("GET", "/readyz", "").want(503, "draining")
		other.call("GET", "/healthz", "")
		if view := other.call("GET", lockPath("held"), ""); view.str("state") != "held" {
			t.Errorf("while draining: %s", view.body)
		}
		holder.release("held", token)
		if code := s.wait(); code != 0 {
			t.Errorf("ended with code %d", code)
		}
		if _, err := os.Stat(s.socket); err == nil {
			t.Error("the socket file still exists")
		}
		if o["STORE_URL"] != "memory://" {
			again := startIn(t, folder(t), o)
			a := dial(t, again.socket)
			a.release("outlives", ttl) // the bind:ttl lock survived the stop
			a.acquire("held", "")
		}
	})
}

// TestDrainLimit: the drain ends at its timeout, even if an app still holds locks. The app is told that it has lost them.
// Proves: promise 10, trap Shutdown
func TestDrainLimit(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	s := start(t, o.with(options{"DRAIN_TIMEOUT": "100ms"}))
	session := openSession(t, s.socket, "")
	token := dial(t, s.socket).acquire("kept", "", session.joins())
	if code := s.stop(); code != 0 {
		t.Errorf("ended with code %d", code)
	}
	if e := session.want("lost"); e.data["key"] != "kept" || e.data["reason"] != "shutdown" {
		t.Errorf("event %s %s", e.name, e.raw)
	}
	next := start(t, o)
	if after := dial(t, next.socket).acquire("kept", ""); after <= token {
		t.Errorf("token %d after %d", after, token)
	}
}

// TestOneSidecarASocket: a sidecar does not take over a live socket, but it takes over a stale one.
// Proves: trap unlinked file
func TestOneSidecarASocket(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	first := startIn(t, dir, nil)
	dial(t, first.socket).acquire("x", "")
	second := launch(t, dir, nil)
	if code := second.wait(); code == 0 {
		t.Error("a second sidecar started on the same socket")
	}
	if !strings.Contains(second.log.String(), first.socket) {
		t.Errorf("the second sidecar does not name the socket:\n%s", second.log)
	}
	dial(t, first.socket).call("PUT", lockPath("x"), "").want(423, "held")
	first.kill()
	third := startIn(t, dir, nil)
	dial(t, third.socket).acquire("x", "")
}

// TestUnreachableStore: a sidecar starts although its database is down.
func TestUnreachableStore(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := launch(t, dir, options{"STORE_URL": "postgres://nobody@127.0.0.1:1/none", "STORE_TIMEOUT": "500ms"})
	s.await("an answer", func() bool {
		a, err := tryDial(t, s.socket)
		if err != nil {
			return false
		}
		defer a.close()
		a.call("GET", "/healthz", "").want(200, "")
		ready := a.call("GET", "/readyz", "").want(503, "store_unavailable")
		return ready.header.Get("Retry-After") != ""
	})
	began := time.Now()
	ans := dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	if ans.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the answer took %s", took)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("stopped with code %d", code)
	}
}
