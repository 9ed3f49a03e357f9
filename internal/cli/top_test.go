package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

func TestTopPrintsOnce(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	out, err := command("--socket", f.socket, "top", "--all", "--type", "job", "--sort", "key", "--reverse", "--filter", "JOB")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "locksidecar top: all pods | 3 held, 2 shown | oldest 1d06h | ") ||
		lines[1] != "sorted by key, reversed | type job | filter JOB" ||
		lines[2] != "KEY    HOLDER        AGE  WAITERS  EXPIRES" ||
		lines[3] != "job:b  web-1/s2     2.0s       12    15.0s" ||
		lines[4] != "job:a  web-2/s1    1m30s        0    14.0s" || lines[5] != "" {
		t.Errorf("\n%s", out)
	}
	if query := f.asked()[0].Encode(); query != "limit=1000&scope=all&type=job" {
		t.Errorf("asked for %s", query)
	}
}

// TestTopPages: all pages are read, up to a limit that is told.
func TestTopPages(t *testing.T) {
	f := newFakeSidecar(t)
	var locks []lockView
	for i := range maxTopLocks + 1 {
		locks = append(locks, listedLock(fmt.Sprintf("k%05d", i), "p", "s", 0, 0, 0))
	}
	for _, test := range []struct {
		held, pages int
		says        string
	}{
		{0, 1, ": this pod | 0 held, 0 shown | "}, // and no oldest
		{pageSize, 1, "1000 held, 1000 shown"},
		{pageSize + 1, 2, "1001 held, 1001 shown"},
		{maxTopLocks, 10, ": this pod | 10000 held"},
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
		{[]string{"top", "--sort", "colour"}, exitcode.Usage, `--sort is "colour"; allowed: key, holder, age, waiters, expiry`},
		{[]string{"top", "--interval", "99ms"}, exitcode.Usage, "--interval is 99ms; allowed: 100ms or more"},
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
	out, err := command("__complete", "top", "--sort", "")
	if err != nil || out != "age\nwaiters\nexpiry\nkey\nholder\n:4\n" {
		t.Errorf("%v, %q", err, out)
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
	m := &topModel{sort: byAge}
	err := repeatTop(newClient(f.socket, "test"), m, time.Millisecond, out, failed)
	if !errors.Is(err, errEnough) || strings.Count(out.read.String(), "3 held, 3 shown") != 2 {
		t.Errorf("%v, %s", err, out.read.String())
	}
	if !strings.Contains(failed.read.String(), `: it is\x1b]0;broken\x07 on purpose`) {
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
	if err != nil || len(lines) != 6 || !strings.HasPrefix(lines[3], "deploy  web-0 ") || !strings.HasPrefix(lines[4], "job:1   web-0/") {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := strings.Fields(lines[3])[4] // to the second below
	if left, err := time.ParseDuration(shown); err != nil || left > time.Hour || left < time.Hour-took-time.Second {
		t.Errorf("after %s it expires in %s, %v", took, shown, err)
	}
}

// panicOnTerminal is a view that panics when it asks.
func panicOnTerminal() {
	c := newClient("none", "test")
	c.http = panicking{}
	_ = watchTop(c, &topModel{sort: byAge}, time.Second, os.Stdin, os.Stdout)
}

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("asked") }
