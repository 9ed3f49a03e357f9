package e2e

import (
	"errors"
	"fmt"
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
// Proves: A7
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
// Proves: A7
func TestEtcd(t *testing.T) {
	t.Parallel()
	o, c := onEtcd(t)
	outliveRestart(t, o, func() { c.Nodes[0].Restart(t) }, "")
}

// TestEtcdKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
// Proves: A7
func TestEtcdKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onEtcd(t)
	killSidecar(t, o)
}

// TestEtcdThreeServers: a sidecar whose URL names three servers goes on without one of them.
// Proves: A7
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
	startWithoutServer(t, o, strings.Replace(o["STORE_URL"], "://", "://user:s3cret@", 1), func() { c.Nodes[0].Restart(t) }, "")
}

// TestEtcdCommands: the commands of the README work on etcd.
func TestEtcdCommands(t *testing.T) {
	t.Parallel()
	o, _ := onEtcd(t)
	runCommands(t, start(t, o))
}

// TestEtcdFull: a server that has reached its quota refuses grants and releases, and the answer says what to do. Locks are
// renewed meanwhile. When an operator has made room, the sidecar goes on, and repeats the releases of connections that closed.
// Proves: A7
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
