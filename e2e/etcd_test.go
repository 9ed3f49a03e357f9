package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
)

// onEtcd returns the options of sidecars on a server of the test's own.
func onEtcd(t *testing.T, o ...etcdtest.Option) (options, *etcdtest.Cluster) {
	t.Helper()
	c := etcdtest.Start(t, o...)
	return options{"STORE_URL": "etcd://" + c.Addresses() + "/e2e"}, c
}

// sharedEtcd is a server for the tests that do not harm it. Each has a prefix of its own.
var (
	sharedEtcd   = sync.OnceValues(func() (*etcdtest.Cluster, error) { return etcdtest.Run() })
	etcdPrefixes atomic.Int64
)

func onSharedEtcd(t *testing.T) options {
	t.Helper()
	c, err := sharedEtcd()
	if err != nil {
		t.Fatal(err)
	}
	return options{"STORE_URL": fmt.Sprintf("etcd://%s/e2e%d", c.Addresses(), etcdPrefixes.Add(1))}
}

// TestEtcdGoneForLong: the same as TestDatabaseGoneForLong.
func TestEtcdGoneForLong(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t)
	goneForLong(t, o["STORE_URL"], c.Nodes[0].Kill, func() { c.Nodes[0].Restart(t) })
	nothingLeftOnEtcd(t, c, "/e2e")
}

// nothingLeftOnEtcd waits until only leases that sidecars renew are left under a prefix.
func nothingLeftOnEtcd(t *testing.T, c *etcdtest.Cluster, prefix string) {
	t.Helper()
	client := c.Client(t)
	count := func(kind string) int64 {
		found, err := client.Get(t.Context(), prefix+"/"+kind+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return found.Count
	}
	eventually(t, "the end of all leases of single locks", func() bool { return count("l") == count("o") })
}

// TestEtcd: two sidecars on etcd exclude each other, hand locks on in order, and outlive a restart of the server.
func TestEtcd(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t)
	one, two := start(t, o), start(t, o)
	holder, other := dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("line", "")
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

	held := holder.acquire("kept", "")
	before := other.acquire("again", "")
	other.release("again", before)
	c.Nodes[0].Restart(t)
	one.await("ready", one.tryReady)
	two.await("ready", two.tryReady)
	other.call("PUT", lockPath("kept"), "").want(423, "held")
	after := other.acquire("again", "")
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

// TestEtcdKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
func TestEtcdKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onEtcd(t)
	one, two := start(t, o.with(options{"TTL": "2s"})), start(t, o)
	dial(t, one.socket).acquire("session", "")
	dial(t, one.socket).acquire("own", `{"bind":"ttl","ttl_ms":600000}`)
	waiter := dial(t, two.socket)
	waiter.send("PUT", lockPath("session"), `{"wait_ms":-1}`)
	looker := dial(t, two.socket)
	two.await("the waiter", func() bool {
		return looker.call("GET", lockPath("session"), "", "Cache-Control: no-cache").int("queue_length") == 1
	})
	one.kill()
	began := time.Now()
	waiter.read("PUT", lockPath("session")).granted()
	t.Logf("granted %s after the kill", time.Since(began).Round(time.Millisecond))
	looker.call("PUT", lockPath("own"), "").want(423, "held")
}

// TestEtcdThreeServers: a sidecar whose URL names three servers goes on without one of them.
func TestEtcdThreeServers(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t, etcdtest.Nodes(3))
	s := start(t, o)
	a := dial(t, s.socket)
	token := a.acquire("kept", "")
	c.Leader(t).Kill()
	s.await("an acquire", func() bool { return dial(t, s.socket).call("PUT", lockPath("new"), "").status == 200 })
	a.release("kept", token)
}

// TestEtcdUnreachable: a server that is down at the start is used when it is up. The log never has the password.
func TestEtcdUnreachable(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t)
	c.Nodes[0].Kill()
	file := filepath.Join(t.TempDir(), "url")
	secret := strings.Replace(o["STORE_URL"], "://", "://user:s3cret@", 1)
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	s := launch(t, folder(t), options{"STORE_URL_FILE": file})
	s.await("the reason", func() bool { return len(s.logged("not ready yet")) > 0 })
	dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	if text := s.log.String(); strings.Contains(text, "s3cret") {
		t.Errorf("the log has the password:\n%s", text)
	}
	if err := os.WriteFile(file, []byte(o["STORE_URL"]), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Restart(t)
	s.await("ready", s.tryReady)
	dial(t, s.socket).acquire("x", "")
}

// TestEtcdCommands: the commands of the README work on etcd.
func TestEtcdCommands(t *testing.T) {
	t.Parallel()
	o, _ := onEtcd(t)
	s := start(t, o)
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

// TestEtcdFull: a server that has reached its quota refuses grants and releases, and the answer says what to do. Locks are
// renewed meanwhile. When an operator has made room, the sidecar goes on, and repeats the releases of connections that closed.
func TestEtcdFull(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t, etcdtest.WithQuota(8<<20))
	s := start(t, o.with(options{"TTL": "2s"}))
	a, other, gone := dial(t, s.socket), dial(t, s.socket), dial(t, s.socket)
	kept, released := a.acquire("kept", ""), a.acquire("released", "")
	gone.acquire("dropped", "")
	client := c.Client(t)
	fill := func() (err error) {
		for i := 0; i < 100 && err == nil; i++ {
			_, err = client.Put(t.Context(), fmt.Sprint("/filler/", i), strings.Repeat("x", 1<<20))
		}
		return err
	}
	if err := fill(); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("the server is not full: %v", err)
	}
	full := time.Now()
	refused := other.call("PUT", lockPath("new"), "").want(503, "store_unavailable")
	if !strings.Contains(refused.str("detail"), "NOSPACE") || !strings.Contains(refused.str("detail"), "alarm disarm") {
		t.Errorf("the answer does not say why: %s", refused.body)
	}
	a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("released"), released), "").want(503, "store_unavailable")
	gone.close()
	s.await("more than the TTL", func() bool { return time.Since(full) > 3*time.Second })
	a.call("PATCH", lockPath("kept"), fmt.Sprintf(`{"token":%d}`, kept)).want(200, "") // it was renewed

	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.Delete(t.Context(), "/filler/", clientv3.WithPrefix()))
	c.Compact(t)
	must(client.Defragment(t.Context(), c.Nodes[0].Address))
	must(client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}))
	other.acquire("new", "")
	a.release("kept", kept)
	a.release("released", released)
	other.acquire("dropped", `{"wait_ms":20000}`)
}
