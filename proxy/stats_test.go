package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
)

func stat(namespace, name string, held, expired, waiting, seconds, longest int64) store.Stat {
	return store.Stat{
		Namespace: namespace, Name: name, Held: held, Shared: held / 2, Expired: expired, Waiting: waiting,
		Average: time.Duration(seconds) * time.Second / time.Duration(max(1, held)), Longest: time.Duration(longest) * time.Second,
	}
}

var someStats = store.Stats{
	Types: []store.Stat{
		stat("shop", "order", 10, 1, 5, 30, 9), stat("bank", "account", 4, 0, 0, 4, 2),
		stat("shop", "", 3, 0, 1, 60, 50), stat("shop", "cart", 0, 2, 0, 0, 0), stat("", store.Others, 2, 1, 1, 200, 199),
	},
	Pods: []store.Stat{stat("shop", "web-0", 13, 3, 0, 90, 50), stat("bank", "web-0", 6, 1, 0, 204, 199)},
}

func line(name, text string, held, expired, waiting, average, longest int) string {
	waits := ""
	if waiting >= 0 {
		waits = fmt.Sprintf(`"waiting":%d,`, waiting)
	}
	return fmt.Sprintf(`{"namespace":%s,"held":%d,"shared":%d,"expired":%d,%s"average_held_ms":%d,"longest_held_ms":%d}`,
		strings.Replace(text, ":", `,"`+name+`":`, 1), held, held/2, expired, waits, average, longest)
}

func TestStats(t *testing.T) {
	f := start(t, func(c *Config) { c.Namespace = "shop" })
	f.locks.count = func(context.Context) (store.Stats, error) { return someStats, nil }
	order, account := line("type", `"shop":"order"`, 10, 1, 5, 3000, 9000), line("type", `"bank":"account"`, 4, 0, 0, 1000, 2000)
	none, cart := line("type", `"shop":""`, 3, 0, 1, 20000, 50000), line("type", `"shop":"cart"`, 0, 2, 0, 0, 0)
	ours, theirs := line("pod", `"shop":"web-0"`, 13, 3, -1, 6923, 50000), line("pod", `"bank":"web-0"`, 6, 1, -1, 34000, 199000)
	const all = `{"held":19,"shared":9,"expired":4,"waiting":7,"average_held_ms":15473,"longest_held_ms":199000,`
	const own = `{"held":13,"shared":6,"expired":3,"waiting":6,"average_held_ms":6923,"longest_held_ms":50000,`
	list := func(types, pods string) string { return `"types":[` + types + `],"pods":[` + pods + `]}` }
	full := all + list(order+","+account+","+none+","+cart+","+line("type", `null:"_others"`, 2, 1, 1, 100000, 199000), ours+","+theirs)
	for query, want := range map[string]string{
		"?scope=database": full, "?limit=1000&scope=database": full, "?limit=20&scope=database": full,
		"?scope=database&limit=1": all + list(order+","+line("type", `null:"_others"`, 9, 3, 2, 29333, 199000),
			ours+","+line("pod", `null:"_others"`, 6, 1, -1, 34000, 199000)),
		"":                         own + list(order+","+none+","+cart, ours),
		"?scope=namespace":         own + list(order+","+none+","+cart, ours),
		"?scope=namespace&limit=2": own + list(order+","+none+","+line("type", `null:"_others"`, 0, 2, 0, 0, 0), ours),
	} {
		a := f.dial().do("GET", "/v1/stats"+query, "")
		a.want(t, 200, "")
		if a.text != want {
			t.Errorf("%s:\n%s, want\n%s", query, a.text, want)
		}
	}
	empty := start(t)
	if a := empty.dial().do("GET", "/v1/stats", ""); a.text != `{"held":0,"shared":0,"expired":0,"waiting":0,"average_held_ms":0,"longest_held_ms":0,"types":[],"pods":[]}` {
		t.Error(a.text)
	}
}

// A fleet's locks may be held for longer in all than 292 years.
func TestStatsAddUp(t *testing.T) {
	f := start(t)
	f.locks.count = func(context.Context) (store.Stats, error) {
		year := stat("n", "x", 1, 0, 0, math.MaxInt64/int64(time.Second), 1)
		return store.Stats{Types: []store.Stat{year, year, year}}, nil
	}
	if a := f.dial().do("GET", "/v1/stats?scope=database&limit=1", ""); a.json["average_held_ms"] != 9223372036000.0 {
		t.Error(a.text)
	}
}

func TestStatsIsStrict(t *testing.T) {
	f := start(t, withMetrics)
	f.locks.count = func(context.Context) (store.Stats, error) {
		t.Error("counted")
		return store.Stats{}, nil
	}
	c := f.dial()
	for query, part := range map[string]string{
		"scope=pod": "namespace or database", "scope=": "scope", "scope": "no value", "limit=0": "1 to 1000", "limit=1001": "1 to 1000",
		"limit=x": "limit", "limit=1&limit=1": "twice", "x=1": "known: scope, limit",
	} {
		a := c.do("GET", "/v1/stats?"+query, "")
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	c.do("GET", "/v1/stats", `{"x":1}`).want(t, 400, "invalid_request")
	c.do("POST", "/v1/stats", "").want(t, 405, "method_not_allowed")
	c.do("GET", "/v1/stats/", "").want(t, 404, "not_found")
	dialTo(t, "tcp", f.AdminAddr().String()).do("GET", "/v1/stats", "").want(t, 404, "not_found")
}

// However many ask, it is counted once at a time, and all get what was counted.
func TestStatsAreCountedOnce(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Stats = time.Hour }) // the last to ask may come late
	var counted atomic.Int32
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	f.locks.count = func(ctx context.Context) (store.Stats, error) {
		counted.Add(1)
		begun <- struct{}{}
		select {
		case <-goOn:
			return someStats, nil
		case <-ctx.Done():
			return store.Stats{}, ctx.Err()
		}
	}
	ask := func() *client {
		c := f.dial()
		c.request("GET", "/v1/stats?scope=database", "")
		return c
	}
	first := ask()
	await.Receive(t, begun, "the count")
	var others []*client
	for range 20 {
		others = append(others, ask())
	}
	await.Until(t, "all wait", func() bool { return f.callsUnderWay() == 21 })
	await.Silent(t, begun, "second count")
	// A caller that waits leaves: nobody cares. The caller that counts leaves: the others
	// get its count.
	_ = others[0].Close()
	await.Until(t, "it is gone", func() bool { return len(f.conns.Conns()) == 20 })
	await.Silent(t, begun, "second count")
	_ = first.Close()
	await.Silent(t, begun, "second count")
	close(goOn)
	for _, c := range others[1:] {
		a := c.read()
		a.want(t, 200, "")
		if a.json["held"] != 19.0 {
			t.Error(a.text)
		}
	}
	f.dial().do("GET", "/v1/stats?scope=database&limit=1", "").want(t, 200, "")
	if n := counted.Load(); n != 1 {
		t.Error("counted", n, "times")
	}
}

// The answer of a count is repeated for a while, also if it is a failure. Then the locks are counted again.
func TestStatsAreCountedAgain(t *testing.T) {
	var counted atomic.Int32
	var fails atomic.Bool
	count := func(context.Context) (store.Stats, error) {
		if n := int64(counted.Add(1)); !fails.Load() {
			return store.Stats{Types: []store.Stat{stat("a", "b", n, 0, 0, 0, 0)}}, nil
		}
		return store.Stats{}, &store.Error{Op: "stats", Err: errors.New("away")}
	}
	f := start(t, func(c *Config) { c.Timeouts.Stats = time.Hour })
	f.locks.count = count
	fails.Store(true)
	for range 3 {
		f.dial().do("GET", "/v1/stats?scope=database", "").want(t, 503, "store_unavailable")
	}
	if n := counted.Load(); n != 1 {
		t.Error("counted", n, "times")
	}
	fails.Store(false)
	f.statsCache.turn <- struct{}{}
	f.statsCache.until = time.Time{}
	<-f.statsCache.turn
	for range 3 {
		if a := f.dial().do("GET", "/v1/stats?scope=database", ""); a.json["held"] != 2.0 {
			t.Error(a.text)
		}
	}
	if got := New(Config{}).cfg.Timeouts.Stats; got != time.Second {
		t.Error(got)
	}
}

// A bug while it counts keeps nobody else waiting.
func TestPanicInStats(t *testing.T) {
	f := start(t)
	f.locks.count = func(context.Context) (store.Stats, error) { panic("a bug") }
	for range 2 {
		f.dial().do("GET", "/v1/stats?scope=database", "").want(t, 500, "internal")
	}
}

// All lines of a large fleet are a long answer, of which few stand in memory.
func TestLongStats(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = await.Patience })
	var big store.Stats
	for i := range store.StatLines {
		big.Types = append(big.Types, stat("n", fmt.Sprintf("%s%d", strings.Repeat("t", 400), i), 1, 0, 0, 0, 0))
	}
	f.locks.count = func(context.Context) (store.Stats, error) { return big, nil }
	a := f.dial().do("GET", "/v1/stats?scope=database&limit=1000", "")
	if types, _ := a.json["types"].([]any); len(types) != store.StatLines {
		t.Error(len(types))
	}
	f.takeLongAnswers("/v1/stats?scope=database&limit=1000")
	f.dial().do("GET", "/v1/stats?scope=database&limit=1000", "").want(t, 429, "limit")
	f.dial().do("GET", "/v1/stats?scope=database", "").want(t, 200, "")
}

func TestStatsWithManager(t *testing.T) {
	f, _ := withManager(t, func(c *Config) { c.Namespace = "test" })
	c := f.dial()
	c.do("PUT", "/v1/locks/a:1", "").want(t, 200, "")
	c.do("GET", "/v1/stats?scope=namespace", "").want(t, 200, "")
}
