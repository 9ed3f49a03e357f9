package e2e

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// usualKeep is a KEEP for keys in use, longestKeep one that an idle key lives under while a test looks at it.
	usualKeep, longestKeep = "200ms", "2s"
	// keepUses is how often a key is used before somebody else wants it. So keeping it has paid, and it is kept again the next time.
	keepUses = 5
)

// keepers runs a test on stores that keep keys. requests is how many requests of sidecars the server has counted; nil: it does not count.
func keepers(t *testing.T, test func(t *testing.T, o options, requests func() int64)) {
	t.Helper()
	chosen := strings.Split(*only, ",")
	for name, on := range map[string]func(*testing.T) options{"etcd": onSharedEtcd, "mysql": onSharedMySQL} {
		if slices.Contains(chosen, name) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, on(t), nil)
			})
		}
	}
	if slices.Contains(chosen, "postgres") {
		t.Run("postgres", func(t *testing.T) {
			t.Parallel()
			o, url := onPostgres(t)
			test(t, o, func() int64 { return cluster.Statements(t, url, anyStatement) })
		})
	}
	if slices.Contains(chosen, "redis") {
		t.Run("redis", func(t *testing.T) {
			t.Parallel()
			o, server := onRedis(t)
			delete(o, "TTL")
			test(t, o.with(options{"FAILOVER": "quick"}), func() (calls int64) {
				stats, _ := server.Do(t, "INFO", "commandstats").(string)
				for _, found := range regexp.MustCompile(`cmdstat_fcall(?:_ro)?:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
					n, _ := strconv.ParseInt(found[1], 10, 64)
					calls += n
				}
				return calls
			})
		})
	}
}

// figure is a metric of a sidecar; 0 if it has none.
func (s *sidecar) figure(series string) float64 {
	s.t.Helper()
	v, _ := s.figures().value(series)
	return v
}

// recalls is how many kept keys of a sidecar were wanted elsewhere.
func (s *sidecar) recalls() float64 {
	s.t.Helper()
	f := s.figures()
	had, _ := f.value(`locksidecar_recalls_total{paid="true"}`)
	not, _ := f.value(`locksidecar_recalls_total{paid="false"}`)
	return had + not
}

// keeps lets an app use a key until its sidecar keeps it, and some times more. It returns the last token.
func (s *sidecar) keeps(a *app, key string) (token int64) {
	s.t.Helper()
	s.await("a kept key", func() bool {
		token = a.acquire(key, `{"wait_ms":5000}`)
		a.release(key, token)
		return s.figure("locksidecar_kept_keys") == 1
	})
	for range keepUses {
		token = a.acquire(key, `{"wait_ms":5000}`)
		a.release(key, token)
	}
	return token
}

// recalled repeats a test until the key was still kept when somebody wanted it, because a slow machine may have given it up before.
func (s *sidecar) recalled(test func()) {
	s.t.Helper()
	s.await("a recall", func() bool {
		before := s.recalls()
		test()
		return s.recalls() > before
	})
}

// TestAKeyInUseCostsNoStatements: one app wants one key again and again. The server counts a few requests in place of two for each pair.
// Proves: rule cost, trap kept key
func TestAKeyInUseCostsNoStatements(t *testing.T) {
	t.Parallel()
	const pairs, most = 1000, 100 // a pair without keeping costs two, and all of these cost about a dozen
	keepers(t, func(t *testing.T, o options, requests func() int64) {
		s := start(t, o.with(options{"KEEP": usualKeep, "TTL": "1h"}))
		a, last := dial(t, s.socket), int64(0)
		s.await("a kept key", func() bool {
			last = a.acquire("own", "")
			a.release("own", last)
			return s.figure("locksidecar_kept_grants_total") > 0
		})
		if requests == nil {
			requests = func() int64 { return 0 }
		}
		grants, before, began := s.figure("locksidecar_kept_grants_total"), requests(), time.Now()
		for range pairs {
			token := a.acquire("own", "")
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			a.release("own", token)
			last = token
		}
		cost, kept := requests()-before, s.figure("locksidecar_kept_grants_total")-grants
		t.Logf("%d pairs in %s: %d requests, %g grants of a kept key", pairs, time.Since(began).Round(time.Millisecond), cost, kept)
		if cost > most || kept < pairs-most {
			t.Errorf("want at most %d requests", most)
		}
		s.await("the key to be given up", func() bool { return s.figure("locksidecar_kept_keys") == 0 })
	})
}

// TestNothingIsKeptByDefault: without KEEP, and on memory://, each grant is the store's.
func TestNothingIsKeptByDefault(t *testing.T) {
	t.Parallel()
	const pairs = 50
	use := func(t *testing.T, o options) {
		t.Helper()
		s := start(t, o)
		a := dial(t, s.socket)
		for range pairs {
			a.release("own", a.acquire("own", ""))
		}
		if grants, keys := s.figure("locksidecar_kept_grants_total"), s.figure("locksidecar_kept_keys"); grants+keys != 0 {
			t.Errorf("%g kept keys, %g grants of kept keys", keys, grants)
		}
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		use(t, options{"STORE_URL": "memory://", "KEEP": longestKeep})
	})
	keepers(t, func(t *testing.T, o options, requests func() int64) {
		use(t, o.with(options{"KEEP": "", "TTL": "1h"}))
		if requests == nil {
			return
		}
		if cost := requests(); cost < 2*pairs {
			t.Errorf("%d requests for %d pairs: one was not sent", cost, pairs)
		}
	})
}

// TestAnIdleKeptKeyIsWantedElsewhere: a call of another pod gets a key that is kept and in no use at once, whether it waits or not.
// Proves: promise 6, trap kept key
func TestAnIdleKeptKeyIsWantedElsewhere(t *testing.T) {
	t.Parallel()
	const times = 10
	limit := slowed(250 * time.Millisecond) // far below what frees the key by itself: 2 s
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
		one, two := start(t, o), start(t, o)
		a, b := dial(t, one.socket), dial(t, two.socket)
		for what, want := range map[string]func() int64{
			"wait": func() int64 { return b.acquire("wanted", `{"wait_ms":-1}`) },
			"try": func() (token int64) {
				two.await("a try that succeeds", func() bool { // a loaded machine may need more than one
					ans := b.call("PUT", lockPath("wanted"), "")
					if ans.status == 200 {
						token = ans.granted()
					}
					return token != 0
				})
				return token
			},
		} {
			var took []time.Duration
			for range times {
				one.recalled(func() {
					last := one.keeps(a, "wanted")
					began := time.Now()
					token := want()
					took = append(took, time.Since(began))
					if token <= last {
						t.Errorf("token %d after %d", token, last)
					}
					b.release("wanted", token)
				})
			}
			slices.Sort(took)
			t.Logf("%s: %s at least, median %s, %s at most", what, took[0], took[len(took)/2], took[len(took)-1])
			if median := took[len(took)/2]; median > limit {
				t.Errorf("%s: want at most %s", what, limit)
			}
		}
	})
}

// TestAKeptKeyIsFree: all that its own sidecar's apps can want of an idle key, they get, and its own answers are exact. Others see that it
// is kept.
// Proves: promise 18, trap kept key
func TestAKeptKeyIsFree(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h"})
		one, two := start(t, o), start(t, o)
		a, other, b := dial(t, one.socket), dial(t, one.socket), dial(t, two.socket)
		const fresh = "Cache-Control: no-cache"
		for name, ask := range map[string]struct {
			method, path, body string
		}{
			"shared":       {"PUT", lockPath("own"), `{"mode":"shared"}`},
			"bind:ttl":     {"PUT", lockPath("own"), `{"bind":"ttl","ttl_ms":600000}`},
			"min_hold":     {"PUT", lockPath("own"), `{"min_hold_ms":1,"max_hold_ms":600000}`},
			"another TTL":  {"PUT", lockPath("own"), `{"ttl_ms":60000}`},
			"several keys": {"POST", "/v1/locks", several([]string{"another", "own"}, "")},
		} {
			last := one.keeps(a, "own")
			ans := other.call(ask.method, ask.path, ask.body).want(200, "")
			if locks, some := ans.json["locks"].([]any); some {
				for _, lock := range locks {
					ans = answer{t: t, status: 200, json: lock.(map[string]any), body: ans.body}
					other.release(ans.str("key"), ans.int("token"))
				}
				continue
			}
			if token := ans.granted(); token <= last {
				t.Errorf("%s: token %d after %d", name, token, last)
			}
			other.release("own", ans.int("token"))
		}
		one.keeps(a, "own")
		for _, header := range []string{fresh, "X-None: 1"} {
			if ans := a.call("GET", lockPath("own"), "", header); ans.str("state") != "free" || ans.json["kept"] != false {
				t.Errorf("%s: %s", header, ans.body)
			}
		}
		two.await("a look at a kept key", func() bool { // a slow machine may have given it up
			one.keeps(a, "own")
			seen := b.call("GET", lockPath("own"), "", fresh)
			return seen.str("state") == "held" && seen.json["kept"] == true
		})
		two.await("a list with a kept key", func() bool {
			one.keeps(a, "own")
			return strings.Contains(string(b.call("GET", "/v1/locks", "").body), `"kept":true`)
		})
		one.keeps(a, "own")
		if list := a.call("GET", "/v1/locks", ""); strings.Contains(string(list.body), `"kept":true`) {
			t.Errorf("its own sidecar lists: %s", list.body)
		}
	})
}

// TestAKeptKeyIsAskedToStop: a request to stop, or a break, means a holder. It finds none in an idle key, and the next holder hears of none.
// Proves: promise 17, trap kept key
func TestAKeptKeyIsAskedToStop(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h", "ALLOW_FORCE": "true"})
		one, two := start(t, o), start(t, o)
		a, b := dial(t, one.socket), dial(t, two.socket)
		for name, ask := range map[string]func(){
			"a stop by its own pod": func() { a.call("POST", stopPath("idle"), "").want(404, "not_held") },
			"a break by its own pod": func() {
				a.call("DELETE", lockPath("idle")+"?force=true", "").want(404, "not_held")
			},
			"a stop by another pod": func() {
				if ans := b.call("POST", stopPath("idle"), ""); ans.status != 202 {
					ans.want(404, "not_held")
				}
			},
			"a break by another pod": func() {
				if ans := b.call("DELETE", lockPath("idle")+"?force=true", ""); ans.status != 200 {
					ans.want(404, "not_held")
				}
			},
		} {
			last := one.keeps(a, "idle")
			ask()
			next := a.acquire("idle", `{"wait_ms":10000}`)
			if next <= last {
				t.Errorf("%s: token %d after %d", name, next, last)
			}
			if held := a.call("PATCH", lockPath("idle"), fmt.Sprintf(`{"token":%d}`, next)).want(200, ""); held.json["stopping"] != nil {
				t.Errorf("%s: the next holder is asked to stop: %s", name, held.body)
			}
			a.release("idle", next)
			b.release("idle", b.acquire("idle", `{"wait_ms":10000}`))
		}
	})
}

// TestWatchersOfAKeptKey: a grant without the store makes no event. So a watched key is not kept.
// Proves: promise 16, trap kept key
func TestWatchersOfAKeptKey(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h"})
		one, two := start(t, o), start(t, o)
		a := dial(t, one.socket)
		for _, at := range []*sidecar{two, one} {
			one.keeps(a, "watched")
			events, _ := watchKey(t, at.socket, "watched")
			for range 3 {
				token := a.acquire("watched", `{"wait_ms":10000}`)
				for _, name := range []string{"acquired", "released"} {
					for e := events.next(); e.name != name || fmt.Sprint(e.data["token"]) != fmt.Sprint(token); e = events.next() {
						t.Logf("before %s of %d: %s %s", name, token, e.name, e.raw) // the end of the kept grant
					}
					if name == "acquired" {
						a.release("watched", token)
					}
				}
			}
			events.close()
		}
	})
}

// TestTheKeeperEnds: nobody waits longer for a key because it was kept, than for one that an app holds.
// Proves: promise 7, promise 8, trap kept key
func TestTheKeeperEnds(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	free := slowed(500 * time.Millisecond)
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "POSTGRES_POLL_INTERVAL": noPoll})
		for name, test := range map[string]struct {
			limit time.Duration
			end   func(one *sidecar, a *app)
		}{
			"the sidecar is told to end": {free, func(one *sidecar, _ *app) { one.signal(syscall.SIGTERM) }},
			"the app closes its connection while it holds the key": {free, func(one *sidecar, a *app) {
				one.keeps(a, "left")
				a.acquire("left", "")
				a.close()
			}},
			"the app has closed its connection": {free, func(_ *sidecar, a *app) { a.close() }},
			"the sidecar is killed":             {ttl + free, func(one *sidecar, _ *app) { one.kill() }},
			"the sidecar is frozen":             {ttl + free, func(one *sidecar, _ *app) { one.signal(syscall.SIGSTOP) }},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				one, two := start(t, o.with(options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms", "NAMESPACE": name})), start(t, o.with(options{"TTL": "1h", "NAMESPACE": name}))
				a, b := dial(t, one.socket), dial(t, two.socket)
				last := one.keeps(a, "left")
				test.end(one, a)
				began := time.Now()
				token := b.acquire("left", `{"wait_ms":-1}`)
				took := time.Since(began)
				t.Logf("granted %s after the end", took.Round(time.Millisecond))
				if token <= last || took > test.limit {
					t.Errorf("token %d after %d; want it within %s", token, last, test.limit)
				}
				if name == "the sidecar is told to end" {
					if code := one.wait(); code != 0 {
						t.Errorf("the sidecar ended with %d", code)
					}
				}
			})
		}
	})
}

// TestAKeptKeyInUseIsWantedElsewhere: a session has got a kept key. A call of another pod is refused as ever, and from then on all see who has the key.
// Proves: promise 1, promise 18, trap recall
func TestAKeptKeyInUseIsWantedElsewhere(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h", "CACHE_TTL": "0"})
		one, two := start(t, o), start(t, o)
		a, b := dial(t, one.socket), dial(t, two.socket)
		for _, wait := range []string{"0", "50"} {
			one.keeps(a, "used")
			taker := dial(t, one.socket)
			grant := taker.call("PUT", lockPath("used"), "")
			token := grant.granted()
			for range 3 {
				began := time.Now()
				if ans := b.call("PUT", lockPath("used"), `{"wait_ms":`+wait+`}`); ans.status != 423 {
					t.Fatalf("two hold the key: %s", ans.body)
				}
				t.Logf("refused after %s", time.Since(began).Round(100*time.Microsecond))
			}
			two.await("the true holder", func() bool {
				ans := b.call("PUT", lockPath("used"), "")
				holder, _ := ans.json["holder"].(map[string]any)
				return ans.status == 423 && ans.json["kept"] == false && holder["session"] == grant.str("session")
			})
			taker.call("PATCH", lockPath("used"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
			taker.release("used", token)
			b.release("used", b.acquire("used", `{"wait_ms":5000}`))
		}
	})
}

// TestDeadlocksAmongKeptKeys: the holders of a circle have got kept keys, of which the store knows other holders. The search finds the true ones.
func TestDeadlocksAmongKeptKeys(t *testing.T) {
	t.Parallel()
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h"})
		one, two := start(t, o), start(t, o)
		first, second := dial(t, one.socket), dial(t, two.socket)
		one.keeps(first, "x")
		two.keeps(second, "y")
		a, b := dial(t, one.socket), dial(t, two.socket)
		x, y := a.call("PUT", lockPath("x"), ""), b.call("PUT", lockPath("y"), "")
		x.granted()
		y.granted()
		a.send("PUT", lockPath("y"), `{"wait_ms":-1}`)
		b.send("PUT", lockPath("x"), `{"wait_ms":-1}`)
		two.await("the circle", func() bool {
			out, err := exec.Command(binary, "--socket", two.socket, "deadlocks").CombinedOutput()
			return err != nil && strings.Contains(string(out), "deadlock of 2") &&
				strings.Contains(string(out), x.str("session")) && strings.Contains(string(out), y.str("session"))
		})
	})
}

// TestADrainGivesUpFirst: a sidecar that waits for an app to go keeps nothing meanwhile. Nobody asks for the key, so nothing else frees it so soon.
// Proves: trap kept key
func TestADrainGivesUpFirst(t *testing.T) {
	t.Parallel()
	const soon, tries = 700 * time.Millisecond, 5 // without the drain, a kept key lives for 2 s
	keepers(t, func(t *testing.T, o options, _ func() int64) {
		o = o.with(options{"KEEP": longestKeep, "TTL": "1h"})
		two := start(t, o)
		b := dial(t, two.socket)
		held := func() bool {
			return b.call("GET", lockPath("kept"), "", "Cache-Control: no-cache").str("state") == "held"
		}
		for n := range tries {
			one := start(t, o)
			a, stays := dial(t, one.socket), dial(t, one.socket)
			stays.acquire(fmt.Sprint("held:", n), "") // the drain waits for it
			one.keeps(a, "kept")
			if !held() {
				continue // the machine was too slow
			}
			one.signal(syscall.SIGTERM)
			began := time.Now()
			two.await("the key to be free", func() bool { return !held() })
			took := time.Since(began)
			if stays.call("GET", lockPath("kept"), "").status != 200 {
				t.Fatal("the sidecar has ended: this proves nothing")
			}
			stays.close()
			one.wait()
			if t.Logf("free after %s", took.Round(time.Millisecond)); took < soon {
				return
			}
		}
		t.Errorf("want it within %s", soon)
	})
}
