package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// These are the bodies of the tests of etcd, MySQL and Redis.

// granted acquires a key as soon as a quiet time of the store is over.
func (s *sidecar) granted(t *testing.T, c *app, key, body string, headers ...string) int64 {
	t.Helper()
	var token int64
	s.await("a grant after the quiet time", func() bool {
		a := c.call("PUT", lockPath(key), body, headers...)
		if a.status == 200 {
			token = a.granted()
		}
		return a.status == 200
	})
	return token
}

// outliveRestart: two sidecars exclude each other, hand locks on in order, and outlive a restart of the server. kept is the body of
// an acquire whose lock outlives it, too.
func outliveRestart(t *testing.T, o options, restart func(), kept string) {
	t.Helper()
	one, two := start(t, o), start(t, o)
	holder, other := dial(t, one.socket), dial(t, two.socket)
	token := one.granted(t, holder, "line", "")
	other.call("PUT", lockPath("line"), "").want(423, "held")
	if held := other.call("GET", lockPath("line"), "", "Cache-Control: no-cache").want(200, ""); held.str("state") != "held" {
		t.Errorf("the other sidecar sees %s", held.body)
	}
	l := standInLine(t, "line", one, two)
	all := inLine(func(int) bool { return true })
	began := time.Now()
	holder.release("line", token)
	l.run(all)
	t.Logf("%d hand-offs in %s", lineLength, time.Since(began).Round(time.Millisecond))
	l.check(t, all)

	held := holder.acquire("kept", kept)
	before := other.acquire("again", "")
	other.release("again", before)
	restart()
	one.await("ready", one.tryReady)
	two.await("ready", two.tryReady)
	other.call("PUT", lockPath("kept"), "").want(423, "held")
	after := two.granted(t, other, "again", "")
	if after <= before {
		t.Errorf("token %d after the restart, and %d before", after, before)
	}
	other.release("again", after)
	holder.release("kept", held)
	other.release("kept", other.acquire("kept", `{"wait_ms":5000}`))
	for _, s := range []*sidecar{one, two} {
		if code := s.stop(); code != 0 {
			t.Errorf("a sidecar ended with %d:\n%s", code, s.log.tail(20))
		}
	}
}

// killSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a TTL of its own
// stays.
func killSidecar(t *testing.T, o options) {
	t.Helper()
	one, two := start(t, o.with(options{"TTL": "2s"})), start(t, o)
	one.granted(t, dial(t, one.socket), "session", "")
	dial(t, one.socket).acquire("own", `{"bind":"ttl","ttl_ms":600000}`)
	waiter := dial(t, two.socket)
	waiter.send("PUT", lockPath("session"), `{"wait_ms":-1}`)
	two.awaitQueue("session", 1)
	one.kill()
	began := time.Now()
	waiter.read("PUT", lockPath("session")).granted()
	t.Logf("granted %s after the kill", time.Since(began).Round(time.Millisecond))
	dial(t, two.socket).call("PUT", lockPath("own"), "").want(423, "held")
}

// startWithoutServer: a server that is down at the start is used when it is up. The file of the URL first has a wrong password,
// which the log never has. If refusal is not empty, the sidecar logs it when the server is up and refuses the password.
func startWithoutServer(t *testing.T, o options, wrong string, restart func(), refusal string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	write := func(url string) {
		if err := os.WriteFile(file, []byte(url), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(wrong)
	right := o["STORE_URL"]
	delete(o, "STORE_URL")
	s := launch(t, folder(t), o.with(options{"STORE_URL_FILE": file}))
	s.await("the reason", func() bool { return len(s.logged("not ready yet")) > 0 })
	dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	if refusal != "" {
		restart()
		s.await("the other reason", func() bool { return len(s.logged(refusal)) > 0 })
		write(right)
	} else {
		write(right)
		restart()
	}
	s.await("ready", s.tryReady)
	s.granted(t, dial(t, s.socket), "x", "")
	if text := s.log.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "sesame") {
		t.Errorf("the log has a password:\n%s", text)
	}
}

// runCommands: the commands of the README work.
func runCommands(t *testing.T, s *sidecar) {
	t.Helper()
	c := dial(t, s.socket)
	c.release("x", s.granted(t, c, "x", ""))
	command := func(want string, args ...string) {
		t.Helper()
		out, err := exec.Command(binary, append([]string{"--socket", s.socket}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	command("ran", "run", "job", "--", "echo", "ran")
	command("\n", "acquire", "deploy", "--ttl", "60s") // its token
	command("deploy", "ls")
	command("deploy", "get", "deploy")
	command("1 held", "stats")
}
