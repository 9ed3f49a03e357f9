package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const someStats = `{"held":13,"shared":2,"expired":1,"waiting":4,"average_held_ms":90000,"longest_held_ms":3600000,
"types":[
 {"namespace":"prod","type":"backup","held":7,"shared":2,"expired":1,"waiting":4,"average_held_ms":1500,"longest_held_ms":3600000},
 {"namespace":"prod","type":"","held":3,"shared":0,"expired":0,"waiting":0,"average_held_ms":20,"longest_held_ms":30},
 {"namespace":"","type":"_others","held":3,"shared":0,"expired":0,"waiting":0,"average_held_ms":0,"longest_held_ms":0}],
"pods":[{"namespace":"prod","pod":"web-1\u001b[2J","held":11,"shared":2,"expired":1,"average_held_ms":100,"longest_held_ms":3600000}],
"of_the_future":1}`

func TestStats(t *testing.T) {
	f := newFakeSidecar(t)
	f.counts(someStats)
	out, err := command("--socket", f.socket, "stats")
	if err != nil {
		t.Fatal(err)
	}
	const want = `NAMESPACE  TYPE     HELD  SHARED  EXPIRED  WAITING  AVERAGE  LONGEST
prod       backup   7     2       1        4        1.5s     1h0m0s
prod       (none)   3     0       0        0        20ms     30ms
-          _others  3     0       0        0        0s       0s

NAMESPACE  POD           HELD  SHARED  EXPIRED  AVERAGE  LONGEST
prod       web-1\x1b[2J  11    2       1        100ms    1h0m0s
(and 2 held in pods that are not shown, see --limit)

13 held (2 shared), 1 expired, 4 waiting; held for 1m30s on average, 1h0m0s at the longest
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	if query := f.asked()[0].Encode(); query != "limit=20&scope=namespace" {
		t.Errorf("asked for %s", query)
	}
}

func TestStatsOfNothing(t *testing.T) {
	f := newFakeSidecar(t)
	f.counts(`{"held":0,"shared":0,"expired":0,"waiting":0,"average_held_ms":0,"longest_held_ms":0,"types":[],"pods":[]}`)
	out, err := command("--socket", f.socket, "stats", "--scope", "database", "--limit", "1000")
	if err != nil || out != "0 held (0 shared), 0 expired, 0 waiting\n" {
		t.Errorf("%v, %q", err, out)
	}
	if query := f.asked()[0].Encode(); query != "limit=1000&scope=database" {
		t.Errorf("asked for %s", query)
	}
}

func TestStatsAsJSON(t *testing.T) {
	f := newFakeSidecar(t)
	f.counts(someStats)
	out, err := command("--socket", f.socket, "stats", "--json")
	if err != nil || !json.Valid([]byte(out)) || strings.TrimSpace(out) != someStats {
		t.Errorf("%v, %s", err, out)
	}
}

func TestStatsRefused(t *testing.T) {
	f := newFakeSidecar(t)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"stats", "--limit", "0"}, exitcode.Usage, "--limit is 0; allowed: 1 to 1000"},
		{[]string{"stats", "--limit", "1001"}, exitcode.Usage, "--limit is 1001"},
		{[]string{"stats", "--scope", "all"}, exitcode.Usage, `--scope is "all"; allowed: namespace, database`},
		{[]string{"stats", "backup"}, exitcode.Usage, "usage: locksidecar stats"},
	} {
		_, err := command(append([]string{"--socket", f.socket}, test.args...)...)
		if exitcode.Of(err) != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%q: %v", test.args, err)
		}
	}
	if len(f.asked()) != 0 {
		t.Error("the sidecar was asked for what is not allowed")
	}
}
