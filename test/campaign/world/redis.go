package world

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// downAfter is how long a sentinel waits for the primary before it promotes the replica: longer than a busy machine lets a server
// wait, because no fault explains such a failover.
const downAfter = 4 * time.Second

// RedisGroup is a primary, an asynchronous replica, and a sentinel that promotes the replica.
type RedisGroup struct {
	redisServers
	sentinel *redistest.Server
	primary  atomic.Int32
}

func newRedis(tb testing.TB, c Config) *RedisGroup {
	tb.Helper()
	g := &RedisGroup{}
	g.prepare(tb, c)
	for range 2 {
		n := g.run(tb, "--min-replicas-max-lag", "1")
		host, port, _ := strings.Cut(n.peers.Address, ":")
		n.always(tb, "replica-announce-ip", host)
		n.always(tb, "replica-announce-port", port)
	}
	var err error
	if g.sentinel, err = redistest.RunSentinel(g.nodes[0].peers.Address, downAfter); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(g.sentinel.Stop)
	tb.Cleanup(func() { keepLog(c.Logs, "sentinel", g.sentinel) })
	if err := g.Join(g.nodes[1]); err != nil {
		tb.Fatal(err)
	}
	return g
}

// network puts two proxies before each server and the sentinel. The sentinel's answers name the proxies.
func (g *RedisGroup) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	const greeting = 60 // the address of the primary, and an answer
	network := &Network{Greeting: greeting, probe: askSentinel}
	ports := map[string]string{}
	for i, n := range g.nodes {
		front, err := network.through(tb, server, fmt.Sprintf("%s-%d", name, i), n.Address)
		if err != nil {
			return nil, err
		}
		ports[portOf(n.peers.Address)] = portOf(front)
	}
	told, err := listen(tb)
	if err != nil {
		return nil, err
	}
	go renamed(told, g.sentinel.Address, renameSentinel(ports))
	front, err := network.through(tb, server, name+"-sentinel", told.Addr().String())
	network.url = "redis+sentinel://" + front + "/" + redistest.Name
	return network, err
}

// through puts two proxies before a server, and returns where a sidecar connects.
func (n *Network) through(tb testing.TB, server *toxiproxy.ApiServer, name, address string) (string, error) {
	proxy, err := spoilable(tb, server, name, address)
	if err != nil {
		return "", err
	}
	front := process.NewLink(tb, proxy.Listen)
	n.ways = append(n.ways, way{front, proxy})
	return front.Address, nil
}

// renameSentinel reads a line of a sentinel's answer, and replaces ports by others of the same length.
func renameSentinel(ports map[string]string) func(from *bufio.Reader) ([]byte, error) {
	return func(from *bufio.Reader) ([]byte, error) {
		line, err := from.ReadBytes('\n')
		for from, to := range ports {
			line = bytes.ReplaceAll(line, []byte(from), []byte(to))
		}
		return line, err
	}
}

func portOf(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}

// askSentinel asks for the primary, and asks that.
func askSentinel(ctx context.Context, url string) error {
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "redis+sentinel://"), "/")
	sentinel := clientOfRedis(host)
	defer func() { _ = sentinel.Close() }()
	found, err := sentinel.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.Name).StringSlice()
	if err != nil || len(found) != 2 {
		return errors.Join(err, errors.New("no primary"))
	}
	primary := clientOfRedis(net.JoinHostPort(found[0], found[1]))
	defer func() { _ = primary.Close() }()
	return primary.Ping(ctx).Err()
}

// Primary is the present primary, as far as the faults know.
func (g *RedisGroup) Primary() *RedisNode { return g.nodes[g.primary.Load()] }

// Other is the other server.
func (g *RedisGroup) Other(n *RedisNode) *RedisNode {
	if n == g.nodes[0] {
		return g.nodes[1]
	}
	return g.nodes[0]
}

// Promoted reports whether the sentinel has made a server the primary, and notes it.
func (g *RedisGroup) Promoted(n *RedisNode) bool {
	if !n.says("replication", "role:master") {
		return false
	}
	for i := range g.nodes {
		if g.nodes[i] == n {
			g.primary.Store(int32(i))
		}
	}
	return true
}

// Join makes a server that runs, or not, the replica of the primary, and waits until both know of each other.
func (g *RedisGroup) Join(n *RedisNode) error {
	host, port, _ := strings.Cut(g.Other(n).peers.Address, ":")
	if !n.Running() {
		if err := n.Again("--replicaof", host+" "+port); err != nil {
			return err
		}
	}
	err := await("the replica has a copy", func() error {
		if !n.says("replication", "master_link_status:up") || !n.says("replication", "master_port:"+port) {
			_, err := n.Ask("REPLICAOF", host, port)
			time.Sleep(100 * time.Millisecond) // the copy takes a moment
			return errors.Join(err, errors.New("not yet"))
		}
		return nil
	})
	return errors.Join(err, await("the sentinel knows the replica", func() error { return g.knows(n) }))
}

// knows asks whether the sentinel could promote a replica.
func (g *RedisGroup) knows(n *RedisNode) error {
	answer, err := (&RedisNode{Server: g.sentinel}).Ask("SENTINEL", "REPLICAS", redistest.Name)
	text := fmt.Sprint(answer)
	for _, want := range []string{"flags slave ", "master-link-status ok", portOf(n.peers.Address)} {
		if !strings.Contains(text, want) {
			return errors.Join(err, fmt.Errorf("the sentinel does not know that the replica works: %.200s", text))
		}
	}
	return err
}

// Isolate cuts a server off from the other one and the sentinel, and Rejoin ends that.
func (n *RedisNode) Isolate() { n.peers.Cut() }

// Rejoin ends Isolate.
func (n *RedisNode) Rejoin() { n.peers.Mend() }

// Refuses reports whether the primary refuses a write with such an error.
func (g *RedisGroup) Refuses(code string) bool {
	_, err := g.Primary().Ask("SET", "filler:probe", "x")
	return err != nil && strings.HasPrefix(err.Error(), code)
}

// Ahead is by how much the primary's clock is ahead of this machine's.
func (g *RedisGroup) Ahead() (time.Duration, error) { return g.Primary().ahead() }

// Answers implements [Store].
func (g *RedisGroup) Answers(limit time.Duration) error {
	_, err := timed(limit, func(ctx context.Context) error {
		c := clientOfRedis(g.Primary().Address)
		defer func() { _ = c.Close() }()
		return c.Set(ctx, "filler:probe", "x", 0).Err()
	})
	return err
}

// View implements [Store].
func (g *RedisGroup) View() stored.View {
	return stored.Redis(func() *goredis.Client { return clientOfRedis(g.Primary().Address) })
}
