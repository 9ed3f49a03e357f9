package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/redistest"
)

// onRedis returns the options of sidecars on a server of the test's own, which nobody needs to wait for.
func onRedis(t *testing.T, args ...string) (options, *redistest.Server) {
	t.Helper()
	s := redistest.Start(t, args...)
	return options{"STORE_URL": "redis://" + s.Address, "TTL": "2s"}, s
}

// granted acquires a key as soon as the quiet time of a young server is over.
func (s *sidecar) granted(t *testing.T, c *app, key, body string) int64 {
	t.Helper()
	var token int64
	s.await("a grant after the quiet time", func() bool {
		a := c.call("PUT", lockPath(key), body)
		if a.status == 200 {
			token = a.granted()
		}
		return a.status == 200
	})
	return token
}

// TestRedis: two sidecars on Redis exclude each other, hand locks on in order, and outlive kill -9 of the server, which keeps
// what it granted.
func TestRedis(t *testing.T) {
	t.Parallel()
	o, d := onRedis(t, "--appendonly", "yes", "--appendfsync", "always")
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

	own := holder.acquire("own", `{"bind":"ttl","ttl_ms":600000}`)
	before := other.acquire("again", "")
	other.release("again", before)
	d.Restart(t)
	one.await("ready", one.tryReady)
	two.await("ready", two.tryReady)
	if ready := holder.call("GET", "/readyz", "").want(200, ""); !strings.Contains(string(ready.body), `"kept":"on the disk of one server"`) {
		t.Errorf("/readyz: %s", ready.body)
	}
	after := two.granted(t, other, "again", "")
	if after <= before {
		t.Errorf("token %d after the restart, and %d before", after, before)
	}
	other.release("again", after)
	other.call("PUT", lockPath("own"), "").want(423, "held")
	other.release("own", own)
	for _, s := range []*sidecar{one, two} {
		if code := s.stop(); code != 0 {
			t.Errorf("a sidecar ended with %d:\n%s", code, s.log.tail(20))
		}
	}
}

// TestRedisFailover: a sentinel promotes the replica of a primary that was killed. The session that holds a lock keeps it,
// nothing is granted in the quiet time, and a waiter gets it when it is free.
func TestRedisFailover(t *testing.T) {
	t.Parallel()
	g := redistest.StartSentinel(t)
	o := options{"STORE_URL": g.URL(), "TTL": "6s"}
	one, two := start(t, o), start(t, o)
	holder, other := dial(t, one.socket), dial(t, two.socket)
	token := one.granted(t, holder, "kept", "")
	other.send("PUT", lockPath("kept"), `{"wait_ms":-1}`)
	one.awaitQueue("kept", 1)
	g.Replica.CaughtUp(t, g.Master)
	g.Master.Kill()
	g.FailedOver(t)
	one.await("the new primary answers", func() bool {
		return holder.call("GET", lockPath("kept"), "", "Cache-Control: no-cache").status == 200
	})
	holder.call("PATCH", lockPath("kept"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
	began := time.Now()
	holder.release("kept", token)
	if next := other.read("PUT", lockPath("kept")).granted(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	t.Logf("granted %s after the release", time.Since(began).Round(time.Millisecond))
	if len(one.logged("quiet time after a failover"))+len(two.logged("quiet time after a failover")) == 0 {
		t.Error("no quiet time was logged")
	}
}

// TestRedisKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
func TestRedisKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onRedis(t)
	one, two := start(t, o), start(t, o)
	holder := dial(t, one.socket)
	one.granted(t, holder, "session", "")
	holder.acquire("own", `{"bind":"ttl","ttl_ms":600000}`)
	waiter := dial(t, two.socket)
	waiter.send("PUT", lockPath("session"), `{"wait_ms":-1}`)
	two.awaitQueue("session", 1)
	one.kill()
	began := time.Now()
	waiter.read("PUT", lockPath("session")).granted()
	t.Logf("granted %s after the kill", time.Since(began).Round(time.Millisecond))
	dial(t, two.socket).call("PUT", lockPath("own"), "").want(423, "held")
}

// TestRedisUnreachable: a server that is down at the start is used when it is up, with the password that the file has then. The
// log never has a password.
func TestRedisUnreachable(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--requirepass", "sesame")
	d.Kill()
	file := filepath.Join(t.TempDir(), "url")
	write := func(password string) {
		if err := os.WriteFile(file, []byte("redis://:"+password+"@"+d.Address), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("s3cret")
	s := launch(t, folder(t), options{"STORE_URL_FILE": file, "TTL": "2s"})
	s.await("the reason", func() bool { return len(s.logged("not ready yet")) > 0 })
	dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	d.Restart(t)
	s.await("the other reason", func() bool { return len(s.logged("refuses the user or password")) > 0 })
	write("sesame")
	s.await("ready", s.tryReady)
	s.granted(t, dial(t, s.socket), "x", "")
	if text := s.log.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "sesame") {
		t.Errorf("the log has a password:\n%s", text)
	}
}

// TestRedisCommands: the commands of the README work on Redis.
func TestRedisCommands(t *testing.T) {
	t.Parallel()
	o, _ := onRedis(t)
	s := start(t, o)
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
