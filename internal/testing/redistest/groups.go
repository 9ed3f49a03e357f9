package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// Sentinel is a master and a replica, between which a sentinel chooses.
type Sentinel struct {
	Master, Replica, Sentinel *Server
}

// Name is the name of the master.
const Name = "locks"

// StartSentinel starts them. The sentinel replaces a master that does not answer for a second.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	g := &Sentinel{Master: Start(tb, args...), Replica: Start(tb, args...)}
	g.Replica.Follow(tb, g.Master.Address)
	var err error
	if g.Sentinel, err = RunSentinel(g.Master.Address, time.Second); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(g.Sentinel.Stop)
	await.Until(tb, "the sentinel knows the replica", func() bool {
		found, _ := g.Sentinel.Do(tb, "SENTINEL", "REPLICAS", Name).([]any)
		return len(found) == 1
	})
	return g
}

// RunSentinel starts a sentinel that replaces a master which does not answer for so long.
func RunSentinel(master string, downAfter time.Duration) (*Server, error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(master, ":")
	_, own, _ := strings.Cut(s.Address, ":")
	file := filepath.Join(s.folder, "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s 1\nsentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 3000\n",
		own, s.folder, Name, host, port, Name, downAfter.Milliseconds(), Name)
	s.args = []string{file, "--sentinel"}
	if err = os.WriteFile(file, []byte(text), 0o600); err == nil {
		err = s.launch()
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// URL is that of the store.
func (g *Sentinel) URL() string { return "redis+sentinel://" + g.Sentinel.Address + "/" + Name }

// FailedOver waits until the sentinel has made the replica the master. The sentinel then closes all connections of the
// new master, so a question may fail.
func (g *Sentinel) FailedOver(tb testing.TB) {
	tb.Helper()
	c := g.Replica.Client()
	defer func() { _ = c.Close() }()
	await.Until(tb, "the replica is the master", func() bool {
		text, err := c.Info(tb.Context(), "replication").Result()
		return err == nil && strings.Contains(text, "role:master")
	})
}

// Cluster is three masters, and a replica of each.
type Cluster struct{ Nodes []*Server }

// StartCluster starts a cluster.
func StartCluster(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	var addresses []string
	for range 6 {
		bus, err := pgtest.FreePort()
		if err != nil {
			tb.Fatal(err)
		}
		n := Start(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(bus), "--cluster-node-timeout", "2000", "--cluster-allow-replica-migration", "no", "--cluster-announce-ip", "127.0.0.1",
		}, args...)...)
		c.Nodes = append(c.Nodes, n)
		addresses = append(addresses, n.Address)
	}
	if err := MakeCluster(addresses...); err != nil {
		tb.Fatal(err)
	}
	c.settled(tb)
	return c
}

// MakeCluster makes a cluster of servers that run with --cluster-enabled: each master has a replica.
func MakeCluster(addresses ...string) error {
	return cli(append(append([]string{"create"}, addresses...), "--cluster-replicas", "1", "--cluster-yes")...)
}

// cli runs redis-cli --cluster.
func cli(args ...string) error {
	cmd := exec.Command("redis-cli", append([]string{"--cluster"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("redis-cli --cluster %s: %w\n%s", strings.Join(args, " "), err, out[max(0, len(out)-cliTail):])
	}
	return err
}

// cliTail is so many bytes of the output of redis-cli in an error.
const cliTail = 3000

// settled waits until all nodes say that the cluster works, and the replicas have a copy.
func (c *Cluster) settled(tb testing.TB) {
	tb.Helper()
	for _, n := range c.Nodes {
		if !n.run.Running() {
			continue
		}
		await.Until(tb, "the cluster works", func() bool {
			text, _ := n.Do(tb, "CLUSTER", "INFO").(string)
			role := n.Info(tb, "replication", "role")
			return strings.Contains(text, "cluster_state:ok") &&
				(role == "master" || n.Info(tb, "replication", "master_link_status") == "up")
		})
	}
}

// URL is that of the store. It names three of the nodes.
func (c *Cluster) URL() string {
	return "redis+cluster://" + c.Nodes[0].Address + "," + c.Nodes[1].Address + "," + c.Nodes[2].Address
}

// Masters returns the nodes that run and take writes.
func (c *Cluster) Masters(tb testing.TB) (masters []*Server) {
	tb.Helper()
	for _, n := range c.Nodes {
		if n.run.Running() && n.Info(tb, "replication", "role") == "master" {
			masters = append(masters, n)
		}
	}
	return masters
}

// switchOverLimit is longer than a replica tries to take over (CLUSTER_MF_TIMEOUT).
const switchOverLimit = 6 * time.Second

// SwitchOver lets the replica of a master take over, as an operator does: it has all that the master had. It returns the new master. The former one
// may not know yet that it is none.
func (c *Cluster) SwitchOver(tb testing.TB, master *Server) *Server {
	tb.Helper()
	replica := c.ReplicaOf(tb, master)
	var asked time.Time
	await.Until(tb, "the replica is the master", func() bool {
		if time.Since(asked) > switchOverLimit { // it has given up
			replica.Do(tb, "CLUSTER", "FAILOVER")
			asked = time.Now()
		}
		return replica.Info(tb, "replication", "role") == "master"
	})
	return replica
}

// ReplicaOf returns the replica of a master.
func (c *Cluster) ReplicaOf(tb testing.TB, master *Server) *Server {
	tb.Helper()
	_, port, _ := strings.Cut(master.Address, ":")
	for _, n := range c.Nodes {
		if n.Info(tb, "replication", "role") == "slave" && n.Info(tb, "replication", "master_port") == port {
			return n
		}
	}
	tb.Fatalf("%s has no replica", master.Address)
	panic("unreachable")
}
