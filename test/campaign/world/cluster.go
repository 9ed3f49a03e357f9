package world

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store/redis"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

const (
	clusterNodes = 6
	firstHost    = 11
)

// RedisCluster is three primaries with an asynchronous replica each, which the others promote.
//
// The servers gossip through links, and come from addresses of their own, so one can be cut off from the others while sidecars
// still reach it.
type RedisCluster struct{ redisServers }

func newRedisCluster(tb testing.TB, c Config) *RedisCluster {
	tb.Helper()
	g := &RedisCluster{}
	g.prepare(tb, c)
	var addresses []string
	for i := range clusterNodes {
		port, err := pgtest.FreePort()
		if err != nil {
			tb.Fatal(err)
		}
		bus := process.NewLink(tb, fmt.Sprintf("127.0.0.1:%d", port))
		host := fmt.Sprintf("127.0.0.%d", firstHost+i)
		n := g.run(tb, "--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(port), "--cluster-announce-bus-port", portOf(bus.Address), "--cluster-announce-ip", "127.0.0.1",
			"--bind-source-addr", host, "--cluster-node-timeout", fmt.Sprint(downAfter.Milliseconds()), "--cluster-allow-replica-migration", "no",
			"--min-replicas-max-lag", "1")
		n.bus, n.host = bus, host
		n.always(tb, "cluster-announce-port", portOf(n.peers.Address))
		addresses = append(addresses, n.peers.Address)
	}
	if err := errors.Join(redistest.MakeCluster(addresses...), g.Settled()); err != nil {
		tb.Fatal(err)
	}
	return g
}

// network puts two proxies before each server. The answers of servers name the proxies.
func (g *RedisCluster) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	const greeting = 400 // the addresses of the servers
	network := &Network{Greeting: greeting, probe: askCluster}
	ports := map[string]string{}
	var hosts []string
	var listeners []net.Listener
	for i, n := range g.nodes {
		told, err := listen(tb)
		if err != nil {
			return nil, err
		}
		front, err := network.through(tb, server, fmt.Sprintf("%s-%d", name, i), told.Addr().String())
		if err != nil {
			return nil, err
		}
		ports[portOf(n.peers.Address)] = portOf(front)
		hosts, listeners = append(hosts, front), append(listeners, told)
	}
	for i, told := range listeners {
		go renamed(told, g.nodes[i].Address, renameCluster(ports))
	}
	network.url = "redis+cluster://" + strings.Join(hosts, ",")
	return network, nil
}

// renameCluster reads an answer, and replaces the ports in it if it is an error that sends the client to another server, or the
// list of all slots.
func renameCluster(ports map[string]string) func(from *bufio.Reader) ([]byte, error) {
	return func(from *bufio.Reader) ([]byte, error) {
		var b bytes.Buffer
		err := answer(from, &b)
		answer := b.Bytes()
		if bytes.HasPrefix(answer, []byte("-MOVED ")) || bytes.HasPrefix(answer, []byte("-ASK ")) || isSlots(answer) {
			for from, to := range ports {
				answer = bytes.ReplaceAll(answer, []byte(":"+from+"\r\n"), []byte(":"+to+"\r\n"))
			}
		}
		return answer, err
	}
}

// isSlots reports whether an answer is a list of lists that begin with a number: no other answer to a sidecar is.
func isSlots(answer []byte) bool {
	lines := bytes.SplitN(answer, []byte("\r\n"), 4)
	return len(lines) == 4 && bytes.HasPrefix(lines[0], []byte("*")) && bytes.HasPrefix(lines[1], []byte("*")) && bytes.HasPrefix(lines[2], []byte(":"))
}

// answer reads one answer of a server in RESP2, with those in it.
func answer(from *bufio.Reader, to *bytes.Buffer) error {
	line, err := from.ReadBytes('\n')
	if to.Write(line); err != nil {
		return err
	}
	size, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch {
	case line[0] == '$' && err == nil && size >= 0:
		text := make([]byte, size+len("\r\n"))
		n, err := io.ReadFull(from, text)
		to.Write(text[:n])
		return err
	case line[0] == '*' && err == nil:
		for range size {
			if err := answer(from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// askCluster asks the first server that answers for the slots.
func askCluster(ctx context.Context, url string) (err error) {
	for host := range strings.SplitSeq(strings.TrimPrefix(url, "redis+cluster://"), ",") {
		c := clientOfRedis(host)
		_, err = c.ClusterSlots(ctx).Result()
		if _ = c.Close(); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// client leads to all servers, past the sidecars' proxies.
func (g *RedisCluster) client() *goredis.ClusterClient {
	var addresses []string
	for _, n := range g.nodes {
		addresses = append(addresses, n.Address)
	}
	return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: addresses, MaxRetries: -1, MaxRedirects: 3, Protocol: 2, DisableIdentity: true, PoolSize: 1, ContextTimeoutEnabled: true})
}

// Primaries are the servers that run and take writes.
func (g *RedisCluster) Primaries() (found []*RedisNode) {
	for _, n := range g.nodes {
		if n.says("replication", "role:master") {
			found = append(found, n)
		}
	}
	return found
}

// One returns one of the primaries.
func (g *RedisCluster) One(rng *rand.Rand) (*RedisNode, error) {
	all := g.Primaries()
	if len(all) != clusterNodes/2 {
		return nil, fmt.Errorf("world: the cluster has %d primaries", len(all))
	}
	return all[rng.IntN(len(all))], nil
}

// Replica is that of a primary.
func (g *RedisCluster) Replica(primary *RedisNode) (*RedisNode, error) {
	for _, n := range g.nodes {
		if n != primary && n.says("replication", "role:slave") && n.says("replication", "master_port:"+portOf(primary.peers.Address)) {
			return n, nil
		}
	}
	return nil, errors.New("world: the primary has no replica")
}

// Promoted reports whether a server takes writes.
func (g *RedisCluster) Promoted(n *RedisNode) bool {
	return n.says("replication", "role:master")
}

// Settled starts the servers that do not run, and waits until the cluster is complete: three primaries, each with a replica that has a copy.
func (g *RedisCluster) Settled() error {
	for _, n := range g.nodes {
		if !n.Running() {
			if err := n.Again(); err != nil {
				return err
			}
		}
	}
	return await("the cluster is complete", func() error {
		defer time.Sleep(50 * time.Millisecond) // twelve questions
		for i, n := range g.nodes {
			if !g.clusterSays(n, "cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:6", "cluster_size:3") {
				return fmt.Errorf("server %d says that the cluster is not complete", i)
			}
			if !n.says("replication", "master_link_status:up") && !n.says("replication", "connected_slaves:1") {
				return fmt.Errorf("server %d has no other one", i)
			}
		}
		if n := len(g.Primaries()); n != clusterNodes/2 {
			return fmt.Errorf("%d primaries", n)
		}
		return nil
	})
}

// clusterSays reports whether a server says all of this about the cluster.
func (g *RedisCluster) clusterSays(n *RedisNode, lines ...string) bool {
	info, err := n.Ask("CLUSTER", "INFO")
	text, _ := info.(string)
	return err == nil && !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(text, line) })
}

// Isolate cuts a server off from the other ones, and Rejoin ends that.
func (g *RedisCluster) Isolate(n *RedisNode) {
	n.peers.Cut()
	n.bus.Cut()
	for _, other := range g.nodes {
		other.peers.CutFrom(n.host)
		other.bus.CutFrom(n.host)
	}
}

// Rejoin ends Isolate.
func (g *RedisCluster) Rejoin(n *RedisNode) {
	n.peers.Mend()
	n.bus.Mend()
	for _, other := range g.nodes {
		other.peers.MendFrom(n.host)
		other.bus.MendFrom(n.host)
	}
}

// Behind cuts the replication of a replica off, which goes on to gossip, and returns what ends that.
func (g *RedisCluster) Behind(replica, primary *RedisNode) (end func()) {
	primary.peers.CutFrom(replica.host)
	return func() { primary.peers.MendFrom(replica.host) }
}

// Slot chooses a slot with locks, the primary that has it, and another one.
func (g *RedisCluster) Slot(rng *rand.Rand) (redistest.SlotMove, error) {
	slots := redis.Slots()
	move := redistest.SlotMove{Slot: slots[rng.IntN(len(slots))]}
	all := g.Primaries()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, n := range all {
		switch owns, err := n.Owns(move.Slot); {
		case err != nil:
			return move, err
		case owns:
			move.From = n.Server
		default:
			move.To = n.Server
		}
	}
	if move.From == nil || move.To == nil {
		return move, fmt.Errorf("world: slot %d has no primary, or there is no other one", move.Slot)
	}
	return move, nil
}

// Refuses reports whether a primary refuses a write with such an error.
func (g *RedisCluster) Refuses(code string) bool {
	err := g.Answers(time.Second)
	return err != nil && strings.HasPrefix(err.Error(), code)
}

// Ahead is by how much the clock of the servers is ahead of this machine's.
func (g *RedisCluster) Ahead() (time.Duration, error) {
	all := g.Primaries()
	if len(all) == 0 {
		return 0, errors.New("world: no primary answers")
	}
	return all[0].ahead()
}

// Answers implements [Store]. Each primary must answer.
func (g *RedisCluster) Answers(limit time.Duration) error {
	_, err := timed(limit, func(ctx context.Context) error {
		c := g.client()
		defer func() { _ = c.Close() }()
		for _, slot := range []string{"0", "1", "2", "3", "4", "5", "6", "7"} { // some of them on each primary
			if err := c.Set(ctx, "filler:"+slot, "x", 0).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// View implements [Store].
func (g *RedisCluster) View() stored.View { return stored.RedisCluster(g.client) }
