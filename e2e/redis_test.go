package e2e

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// sharedRedis is a server for the tests that do not harm it. Each has a database of its own. Sidecars have no quiet time there,
// because nothing was forgotten.
var (
	sharedRedis    = sync.OnceValues(func() (*redistest.Server, error) { return redistest.Run("--databases", "4096") })
	redisDatabases atomic.Int64
)

func onSharedRedis(t *testing.T) options {
	t.Helper()
	s, err := sharedRedis()
	if err != nil {
		t.Fatal(err)
	}
	return options{"STORE_URL": fmt.Sprintf("redis://%s/%d", s.Address, redisDatabases.Add(1)), "FAILOVER": "quick"}
}

// TestRedis: two sidecars on Redis exclude each other, hand locks on in order, and outlive kill -9 of the server, which keeps
// what it granted.
// Proves: A9
func TestRedis(t *testing.T) {
	t.Parallel()
	o, d := onRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	outliveRestart(t, o, func() { d.Restart(t) }, `{"bind":"ttl","ttl_ms":600000}`)
	if ready := dial(t, start(t, o).socket).call("GET", "/readyz", "").want(200, ""); !strings.Contains(string(ready.body), `"durability":"on the disk of one server"`) {
		t.Errorf("/readyz: %s", ready.body)
	}
}

// TestRedisFailover: a sentinel promotes the replica of a primary that was killed. The session that holds a lock keeps it,
// nothing is granted in the quiet time, and a waiter gets it when it is free.
// Proves: A9
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
	if len(one.logged("quiet time: nothing is granted"))+len(two.logged("quiet time: nothing is granted")) == 0 {
		t.Error("no quiet time was logged")
	}
}

// TestRedisKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
func TestRedisKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onRedis(t)
	killSidecar(t, o)
}

// TestRedisUnreachable: a server that is down at the start is used when it is up, with the password that the file has then. The
// log never has a password.
func TestRedisUnreachable(t *testing.T) {
	t.Parallel()
	o, d := onRedis(t, "--requirepass", "sesame")
	d.Kill()
	at := func(password string) string { return "redis://:" + password + "@" + d.Address }
	startWithoutServer(t, o.with(options{"STORE_URL": at("sesame")}), at("s3cret"), func() { d.Restart(t) }, "refuses the user or password")
}

// TestRedisCommands: the commands of the README work on Redis.
func TestRedisCommands(t *testing.T) {
	t.Parallel()
	o, _ := onRedis(t)
	runCommands(t, start(t, o))
}
