package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// several returns the body of a call for several keys.
func several(names []string, more string) string {
	list, _ := json.Marshal(names)
	return fmt.Sprintf(`{"keys":%s%s}`, list, more)
}

// grantedAll checks that all keys are granted in the order of the call, and returns the tokens.
func (ans answer) grantedAll(names []string) map[string]int64 {
	ans.t.Helper()
	ans.want(200, "")
	locks, _ := ans.json["locks"].([]any)
	if len(locks) != len(names) {
		ans.t.Fatalf("%d locks, want %d: %s", len(locks), len(names), ans.body)
	}
	tokens := map[string]int64{}
	for i, l := range locks {
		one := answer{t: ans.t, status: 200, body: ans.body, json: l.(map[string]any)}
		if one.str("key") != names[i] {
			ans.t.Fatalf("lock %d is %s, want %s: %s", i, one.str("key"), names[i], ans.body)
		}
		tokens[names[i]] = one.granted()
	}
	return tokens
}

// TestSeveralKeys: a call gets all keys or none. Afterwards each lock is separate.
func TestSeveralKeys(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		a, other := dial(t, s.socket), dial(t, s.socket)
		names := []string{"c", "a", "b"}
		tokens := a.call("POST", "/v1/locks", several(names, `,"data":{"by":"a"}`)).grantedAll(names)
		for key, token := range tokens {
			a.call("PATCH", lockPath(key), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
			other.call("PUT", lockPath(key), "").want(423, "held")
		}
		// If one key is held, the call gets no key.
		if ans := other.call("POST", "/v1/locks", several([]string{"z", "b", "0"}, "")).want(423, "held"); ans.str("key") != "b" {
			t.Errorf("the answer should name the held key b: %s", ans.body)
		}
		for _, key := range []string{"0", "z"} {
			other.release(key, other.acquire(key, "", "Cache-Control: no-cache"))
		}
		other.call("POST", "/v1/locks", several([]string{"a", "d"}, `,"wait_ms":50`)).want(423, "wait_timeout")
		a.call("POST", "/v1/locks", several([]string{"a", "e"}, "")).want(423, "held")
		a.call("POST", "/v1/locks", several([]string{"a", "e"}, `,"wait_ms":-1`)).want(400, "invalid_request")
		a.call("POST", "/v1/locks", several([]string{"e", "e"}, "")).want(400, "invalid_request")

		// One lock is released, and the others end with the session.
		a.release("b", tokens["b"])
		other.send("POST", "/v1/locks", several([]string{"c", "b"}, `,"wait_ms":-1`))
		s.awaitQueue("c", 1)
		a.close()
		taken := other.read("POST", "/v1/locks").grantedAll([]string{"c", "b"})
		if taken["c"] <= tokens["c"] || taken["b"] <= tokens["b"] {
			t.Errorf("tokens %v after %v", taken, tokens)
		}
	})
}

// TestSeveralKeysNeverDeadlock: a thousand calls for random keys in random order behind two
// sidecars compete with calls for single keys. Each call is granted in its turn. A key never has
// two holders, and nothing is left.
// Proves: promise 14
func TestSeveralKeysNeverDeadlock(t *testing.T) {
	const (
		names, calls = 20, 1000
		clients      = 40 // half of them call for several keys
		longest      = 10 * time.Second
	)
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithoutFsync(), pgtest.WithSetting("deadlock_timeout", "10ms"))
	for name, urls := range map[string]func() (string, string){
		"memory":   func() (string, string) { return "memory://", "" },
		"postgres": func() (string, string) { url := own.NewDatabase(t); return url, url },
	} {
		t.Run(name, func(t *testing.T) {
			storeURL, url := urls()
			o := options{"STORE_URL": storeURL, "LOG_LEVEL": "info"}
			sidecars := []*sidecar{start(t, o)}
			if url != "" {
				sidecars = append(sidecars, start(t, o))
			}
			all := keys("several", names)
			r := &register{t: t}
			var mu sync.Mutex
			var slowest time.Duration
			var wg sync.WaitGroup
			for id := range clients {
				a := dial(t, sidecars[id%len(sidecars)].socket)
				wg.Go(func() {
					for range calls / (clients / 2) {
						began := time.Now()
						want := slices.Clone(all)
						rand.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
						var tokens map[string]int64
						if id < clients/2 {
							want = want[:2+rand.N(4)]
							tokens = a.call("POST", "/v1/locks", several(want, `,"wait_ms":-1`)).grantedAll(want)
						} else {
							want = want[:1]
							tokens = map[string]int64{want[0]: a.acquire(want[0], `{"wait_ms":-1}`)}
						}
						mu.Lock()
						slowest = max(slowest, time.Since(began))
						mu.Unlock()
						for key, token := range tokens {
							r.granted(key, int64(id+1), token)
						}
						for key, token := range tokens {
							r.ending(key, int64(id+1))
							a.release(key, token)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d grants, the longest wait was %s", r.grants.Load(), slowest.Round(time.Millisecond))
			if slowest > longest {
				t.Errorf("a call waited for %s, want at most %s", slowest, longest)
			}
			if url != "" {
				nothingLeft(t, url)
			}
			for _, s := range sidecars {
				s.noErrors()
			}
		})
	}
}

// TestSeveralKeysKilled: a call for several keys waits for the last ones. Its granted keys are
// freed with its app, and with its sidecar.
// Proves: promise 14
func TestSeveralKeysKilled(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	one, two := start(t, o), start(t, o.with(options{"TTL": "1s"}))
	holder := dial(t, one.socket)
	token := holder.acquire("m", "")
	leaving, dying := dial(t, one.socket), dial(t, two.socket)
	leaving.send("POST", "/v1/locks", several([]string{"m", "a", "b"}, `,"wait_ms":-1`))
	one.awaitQueue("m", 1)
	leaving.close()
	one.awaitQueue("m", 0)
	dying.send("POST", "/v1/locks", several([]string{"m", "a", "z"}, `,"wait_ms":-1`))
	one.awaitQueue("m", 1)
	two.kill()
	taker := dial(t, one.socket)
	names := []string{"a", "b", "z"}
	tokens := taker.call("POST", "/v1/locks", several(names, `,"wait_ms":-1`)).grantedAll(names)
	for key, token := range tokens {
		taker.release(key, token)
	}
	holder.release("m", token)
	nothingLeft(t, url)
}
