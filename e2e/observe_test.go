package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// figures reads /metrics.
func (s *sidecar) figures() figures {
	s.t.Helper()
	a := dial(s.t, s.socket)
	defer a.close()
	ans := a.call("GET", "/metrics", "")
	if ans.status != 200 {
		s.t.Fatalf("GET /metrics: %d %s", ans.status, ans.body)
	}
	return figures{s.t, string(ans.body)}
}

type figures struct {
	t    *testing.T
	text string
}

// value returns the value of a series in this exact form, such as
// locksidecar_locks_held{mode="exclusive",type="order"}, and false if there is none.
func (f figures) value(series string) (float64, bool) {
	f.t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)`).FindStringSubmatch(f.text)
	if found == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		f.t.Fatalf("%s: %v", series, err)
	}
	return v, true
}

// command runs a command of the built binary against a sidecar.
func (s *sidecar) command(args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("locksidecar %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestFiguresCount: events of locks are counted exactly, and gauges return to zero.
// Proves: rule metrics
func TestFiguresCount(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		a, b := dial(t, s.socket), dial(t, s.socket)
		token := a.acquire("order:1", "")
		b.call("PUT", lockPath("order:1"), "").want(423, "held")
		b.send("PUT", lockPath("order:1"), `{"wait_ms":-1}`)
		s.awaitQueue("order:1", 1)
		want := func(when string, series map[string]float64) {
			t.Helper()
			f := s.figures()
			for name, v := range series {
				if got, _ := f.value(name); got != v {
					t.Errorf("%s: %s is %v, want %v", when, name, got, v)
				}
			}
		}
		want("with a holder and a waiter", map[string]float64{
			`locksidecar_locks_held{mode="exclusive",type="order"}`:                      1,
			`locksidecar_waiters{type="order"}`:                                          1,
			`locksidecar_acquires_total{mode="exclusive",result="granted",type="order"}`: 1,
			`locksidecar_acquires_total{mode="exclusive",result="held",type="order"}`:    1,
			`locksidecar_store_ready`:                                                    1,
		})
		a.release("order:1", token)
		next := b.read("PUT", lockPath("order:1")).granted()
		b.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("order:1"), token), "").want(409, "not_holder")
		b.release("order:1", next)
		a.acquire("order:2", "")
		a.close()
		s.await("the drop", func() bool { // a loss is counted before the number of held locks changes
			f := s.figures()
			lost, _ := f.value(`locksidecar_lost_total{reason="disconnected",type="order"}`)
			held, _ := f.value(`locksidecar_locks_held{mode="exclusive",type="order"}`)
			return lost == 1 && held == 0
		})
		want("at the end", map[string]float64{
			`locksidecar_locks_held{mode="exclusive",type="order"}`:                      0,
			`locksidecar_waiters{type="order"}`:                                          0,
			`locksidecar_acquires_total{mode="exclusive",result="granted",type="order"}`: 3,
			`locksidecar_releases_total{result="released",type="order"}`:                 2,
			`locksidecar_releases_total{result="not_holder",type="order"}`:               1,
			`locksidecar_hold_duration_seconds_count{type="order"}`:                      3,
			`locksidecar_wait_duration_seconds_count{type="order"}`:                      3,
			`locksidecar_problems_total{code="held"}`:                                    1,
			`locksidecar_hand_off_duration_seconds_count`:                                1,
		})
	})
}

// TestFiguresAreBounded: keys do not become labels, and the number of types is limited.
// Proves: rule metrics, threat control characters, threat admin listener
func TestFiguresAreBounded(t *testing.T) {
	t.Parallel()
	const types = 300
	s := start(t, options{"STORE_URL": "memory://"})
	a := dial(t, s.socket)
	for i := range types {
		a.acquire(fmt.Sprintf("kind%d:secret-%d", i, i), "")
	}
	a.acquire("secret-without-type", "")
	a.acquire(strings.Repeat("t", 300)+":secret-of-a-long-type", "")
	f := s.figures()
	if strings.Contains(f.text, "secret") || strings.Contains(f.text, strings.Repeat("t", 100)) {
		t.Error("a key became a label")
	}
	if n := strings.Count(f.text, "\nlocksidecar_locks_held{"); n > 60 {
		t.Errorf("%d types have their own series", n)
	}
	for _, name := range []string{"_others", "_none"} {
		if v, _ := f.value(`locksidecar_locks_held{mode="exclusive",type="` + name + `"}`); v == 0 {
			t.Errorf("no locks of the type %s", name)
		}
	}
}

// TestLogsNameTheTrace: a refusal is logged with the trace of its call. A flood of refusals does
// not fill the log, and the log counts the omitted ones.
// Proves: threat flood
func TestLogsNameTheTrace(t *testing.T) {
	t.Parallel()
	const flood = 2000
	s := start(t, options{"STORE_URL": "memory://"})
	a := dial(t, s.socket)
	trace, _, header := aTrace(7)
	refused := func() {
		a.call("DELETE", lockPath("wrong")+"?token=12345", "", header).want(409, "not_holder")
	}
	refused()
	s.await("the log line with the refusal and its trace", func() bool { return len(s.logged("claim refused", `"trace_id":"`+trace+`"`)) == 1 })
	for range flood {
		refused()
	}
	s.await("the log line with the number of omitted lines", func() bool { return len(s.logged("left out")) > 0 })
	if n := len(s.logged("claim refused")); n < 20 || n > flood/2 {
		t.Errorf("%d of %d refusals were logged", n, flood)
	}
	if v, _ := s.figures().value("locksidecar_log_lines_dropped_total"); v == 0 {
		t.Error("the metric counts no omitted lines")
	}
}

// TestStats: locks of all namespaces in the database are counted by SQL.
// Proves: threat other namespace
func TestStats(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	one := start(t, o.with(options{"POD": "pod-one", "NAMESPACE": "shop"}))
	two := start(t, o.with(options{"POD": "pod-two", "NAMESPACE": "stock"}))
	a, b := dial(t, one.socket), dial(t, two.socket)
	for i := range 3 {
		a.acquire(fmt.Sprintf("order:%d", i), "")
	}
	a.acquire("plain", "")
	b.acquire("order:1", "") // another lock, because the namespace differs
	waiting := dial(t, one.socket)
	waiting.send("PUT", lockPath("order:0"), `{"wait_ms":-1}`)
	one.awaitQueue("order:0", 1)

	var got struct {
		Held    int `json:"held"`
		Waiting int `json:"waiting"`
		Types   []struct {
			Namespace string `json:"namespace"`
			Type      string `json:"type"`
			Held      int    `json:"held"`
			Waiting   int    `json:"waiting"`
		} `json:"types"`
		Pods []struct {
			Namespace string `json:"namespace"`
			Pod       string `json:"pod"`
			Held      int    `json:"held"`
		} `json:"pods"`
	}
	read := func(args ...string) {
		t.Helper()
		got.Types, got.Pods = nil, nil
		if err := json.Unmarshal([]byte(two.command(append([]string{"stats", "--json"}, args...)...)), &got); err != nil {
			t.Fatal(err)
		}
	}
	read("--scope", "database")
	if got.Held != 5 || got.Waiting != 1 {
		t.Errorf("%d held, %d waiting, want 5 and 1", got.Held, got.Waiting)
	}
	if text := fmt.Sprint(got.Types); text != "[{shop order 3 1} {shop  1 0} {stock order 1 0}]" {
		t.Errorf("by type: %s", text)
	}
	if text := fmt.Sprint(got.Pods); text != "[{shop pod-one 4} {stock pod-two 1}]" {
		t.Errorf("by pod: %s", text)
	}
	read()
	if got.Held != 1 || len(got.Types) != 1 {
		t.Errorf("in one namespace: %+v", got)
	}
	if text := two.command("stats", "--scope", "database"); !strings.Contains(text, "pod-one") || !strings.Contains(text, "(none)") {
		t.Errorf("as text:\n%s", text)
	}
	if text := one.command("top", "--once"); !strings.Contains(text, "order:0") || strings.Contains(text, "pod-two") {
		t.Errorf("top:\n%s", text)
	}
}

// TestFleetFigures: one of the scraped sidecars shows the counts of the whole database. A sidecar
// without scrapes sends no statements.
// Proves: rule metrics
func TestFleetFigures(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	all := []*sidecar{start(t, o), start(t, o), start(t, o)}
	dial(t, all[0].socket).acquire("order:1", "")
	leaders := func() (n int, series string) {
		for _, s := range all {
			f := s.figures()
			if v, _ := f.value("locksidecar_fleet_leader"); v == 1 {
				n++
			}
			if strings.Contains(f.text, "locksidecar_fleet_locks{") {
				series += f.text
			}
		}
		return n, series
	}
	eventually(t, "an elected sidecar with counts", func() bool {
		n, series := leaders()
		return n == 1 && strings.Contains(series, `locksidecar_fleet_locks{lock_namespace="default",type="order"} 1`)
	})
	for range 20 {
		if n, _ := leaders(); n != 1 {
			t.Fatalf("%d sidecars are elected", n)
		}
	}
}
