package cli

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

func TestTopPrintsOnce(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	out, err := command("--socket", f.socket, "top", "--type", "job", "--sort", "key", "--reverse", "--filter", "JOB")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "locksidecar top: 3 held, 2 shown, at ") ||
		lines[1] != "KEY    MODE       HOLDER    AGE    WAITERS  EXPIRES  STOPPING" ||
		lines[2] != "job:b  exclusive  web-1/s2  2s     12       15s      -" ||
		lines[3] != "job:a  exclusive  web-2/s1  1m30s  0        14s      -" || lines[4] != "" {
		t.Errorf("\n%s", out)
	}
	if query := f.asked()[0].Encode(); query != "limit=1000&scope=all&type=job" {
		t.Errorf("asked for %s", query)
	}
}

// The holder of a kept lock has perhaps released it. Each table of locks says so.
func TestTablesShowKeptLocks(t *testing.T) {
	f := newFakeSidecar(t)
	lock := listedLock("a", "web-0", "s1", time.Second, time.Second, 0)
	lock.Kept = true
	f.holds(lock, listedLock("b", "web-0", "s1", time.Second, time.Second, 0))
	for _, test := range []struct{ command, a, b string }{
		{"top", `(?m)^a .* web-0/s1, kept  `, `(?m)^b .* web-0/s1        `},
		{"ls", `(?m)^a .* web-0  s1, kept  `, `(?m)^b .* web-0  s1        `},
	} {
		out, err := command(append([]string{"--socket", f.socket}, strings.Fields(test.command)...)...)
		if err != nil || !regexp.MustCompile(test.a).MatchString(out) || !regexp.MustCompile(test.b).MatchString(out) {
			t.Errorf("%s: %v\n%s", test.command, err, out)
		}
	}
	var out strings.Builder
	if err := writeLock(&lock, &out); err != nil || !strings.Contains(out.String(), "yes: perhaps no session has it now") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// Each order puts trouble first, and --reverse last.
func TestTopOrders(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	for sort, want := range map[string]string{
		"key": "job:a job:b other:c", "holder": "job:b job:a other:c", "age": "other:c job:a job:b",
		"waiters": "job:b other:c job:a", "expiry": "other:c job:a job:b",
	} {
		for _, reverse := range []bool{false, true} {
			out, err := command("--socket", f.socket, "top", "--sort", sort, fmt.Sprintf("--reverse=%t", reverse))
			var keys []string
			for _, line := range strings.Split(strings.TrimSpace(out), "\n")[2:] {
				keys = append(keys, strings.Fields(line)[0])
			}
			if reverse {
				slices.Reverse(keys)
			}
			if got := strings.Join(keys, " "); err != nil || got != want {
				t.Errorf("%s, reverse %t: %v, %s, want %s", sort, reverse, err, got, want)
			}
		}
	}
}

// A filter finds a part of the key, the session or the owner, in capitals or not.
func TestTopFilters(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(append(threeLocks(), listedLock("evil\x1b]0;x\x07", "\u009b2J", "s", 0, 0, 0))...)
	for filter, want := range map[string]string{"OTHER": "other:c", "WEB-1/S2": "job:b", "(Flow-7)": "other:c", "evil": `evil\x1b]0;x\a`} {
		out, err := command("--socket", f.socket, "top", "--filter", filter)
		if lines := strings.Split(out, "\n"); err != nil || len(lines) != 4 || !strings.HasPrefix(lines[2], want+"  ") {
			t.Errorf("%s: %v, %q", filter, err, out)
		}
	}
}

func threeLocks() []client.Lock {
	owner := "flow-7"
	c := listedLock("other:c", "web-3", "s3", 30*time.Hour, 400*time.Millisecond, 1)
	c.Holder.Owner, c.Holder.Session = &owner, nil
	return []client.Lock{
		listedLock("job:a", "web-2", "s1", 90*time.Second, 14*time.Second, 0),
		listedLock("job:b", "web-1", "s2", 2*time.Second, 15*time.Second, 12),
		c,
	}
}

// TestTopPages: all pages are read, up to a limit. The output says if there are more.
func TestTopPages(t *testing.T) {
	f := newFakeSidecar(t)
	var locks []client.Lock
	for i := range maxTopLocks + 1 {
		locks = append(locks, listedLock(fmt.Sprintf("k%05d", i), "p", "s", 0, 0, 0))
	}
	for _, test := range []struct {
		held, pages int
		says        string
	}{
		{0, 1, " 0 held, 0 shown, at "},
		{client.PageSize, 1, "1000 held, 1000 shown"},
		{client.PageSize + 1, 2, "1001 held, 1001 shown"},
		{maxTopLocks, 10, " 10000 held"},
		{maxTopLocks + 1, 10, "more than 10000 held"},
	} {
		f.holds(locks[:test.held]...)
		before := len(f.asked())
		out, err := command("--socket", f.socket, "top")
		if err != nil || !strings.Contains(out, test.says) || len(f.asked())-before != test.pages {
			t.Errorf("%d locks: %v, %d pages, %.200s", test.held, err, len(f.asked())-before, out)
		}
	}
}

func TestTopRefused(t *testing.T) {
	f := newFakeSidecar(t)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"top", "--sort", "colour"}, exitcode.Usage, `--sort is "colour"; allowed: age, waiters, expiry, key, holder`},
		{[]string{"top", "--interval", "99ms"}, exitcode.Usage, "--interval is 99ms; allowed: 100ms or more"},
		{[]string{"top", "--scope", "session"}, exitcode.Usage, `--scope is "session"; allowed: all, pod`},
		{[]string{"top", "--once", "--interval", "1s"}, exitcode.Usage, "--once and --interval do not go together"},
		{[]string{"top", "x"}, exitcode.Usage, "usage: locksidecar top"},
		{[]string{"--socket", "/no/such/socket", "top", "--once"}, exitcode.Unavailable, "no sidecar listens"},
	} {
		_, err := command(append([]string{"--socket", f.socket}, test.args...)...)
		if exitcode.Of(err) != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%q: %v", test.args, err)
		}
	}
	if len(f.asked()) > 0 {
		t.Error("the sidecar was asked for what is not allowed")
	}
}

// reader reads tables until it has seen enough.
type reader struct {
	read   bytes.Buffer
	enough func(written string) bool
}

var errEnough = errors.New("nobody reads any more")

func (r *reader) Write(p []byte) (int, error) {
	n, _ := r.read.Write(p)
	if r.enough(r.read.String()) {
		return n, errEnough
	}
	return n, nil
}

// TestTopRepeats: table after table; a sidecar that fails meanwhile is told, and asked
// again.
func TestTopRepeats(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	out := &reader{enough: func(written string) bool {
		switch strings.Count(written, "KEY ") {
		case 1:
			f.refuses(500)
		case 2:
			return true
		}
		return false
	}}
	failed := &reader{enough: func(string) bool {
		f.refuses(0)
		return false
	}}
	view := &top{client: client.New(f.socket, "test"), listFlags: listFlags{scope: "pod"}, sort: "age", interval: time.Millisecond}
	err := view.repeat(out, failed)
	if !errors.Is(err, errEnough) || strings.Count(out.read.String(), "3 held, 3 shown") != 2 {
		t.Errorf("%v, %s", err, out.read.String())
	}
	if !strings.Contains(failed.read.String(), `: it is\x1b]0;broken\a on purpose`) {
		t.Errorf("%q", failed.read.String())
	}
}

// TestTopOfASidecar: what a real one answers.
func TestTopOfASidecar(t *testing.T) {
	in := serve(t, map[string]string{"POD": "web-0"})
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("job:1")
	began := time.Now()
	if _, err := in.command("acquire", "deploy", "--ttl", "1h"); err != nil {
		t.Fatal(err)
	}
	out, err := in.command("top", "--sort", "key")
	took := time.Since(began)
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) != 5 || !strings.HasPrefix(lines[2], "deploy  exclusive  web-0 ") || !strings.HasPrefix(lines[3], "job:1   exclusive  web-0/") {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := strings.Fields(lines[2])[5]
	if left, err := time.ParseDuration(shown); err != nil || left > time.Hour+time.Second || left < time.Hour-took-time.Second {
		t.Errorf("after %s it expires in %s, %v", took, shown, err)
	}
}
