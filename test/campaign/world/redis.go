package world

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
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

// RedisNode is one of two servers.
type RedisNode struct {
	*redistest.Server
	// peers is where the other server and the sentinel reach it.
	peers  *process.Link
	folder string
}

// RedisGroup is a primary, an asynchronous replica, and a sentinel that promotes the replica.
type RedisGroup struct {
	nodes    [2]*RedisNode
	sentinel *redistest.Server
	primary  atomic.Int32
	disk     string
	clock    clock
}

func newRedis(tb testing.TB, c Config) *RedisGroup {
	tb.Helper()
	g := &RedisGroup{disk: filepath.Join(c.Folder, diskName), clock: clock{file: filepath.Join(c.Folder, "clock")}}
	if err := errors.Join(mount(g.disk), g.Step(0)); err != nil {
		tb.Fatal(err)
	}
	// jemalloc asks for the time while libfaketime begins, which allocates memory. So the server gets libc's malloc.
	env := []string{"LD_PRELOAD=" + faketimeThreads(tb) + " libc.so.6", "FAKETIME_TIMESTAMP_FILE=" + g.clock.file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
	for i := range g.nodes {
		folder := filepath.Join(g.disk, fmt.Sprint(i))
		if err := os.Mkdir(folder, 0o755); err != nil {
			tb.Fatal(err)
		}
		s, err := redistest.RunIn(env, "--dir", folder, "--appendonly", "yes", "--appendfsync", "everysec", "--repl-diskless-sync", "yes",
			"--min-replicas-max-lag", "1", "--repl-backlog-size", "8mb")
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(s.Stop)
		n := &RedisNode{Server: s, peers: process.NewLink(tb, s.Address), folder: folder}
		host, port, _ := strings.Cut(n.peers.Address, ":")
		s.Always("--replica-announce-ip", host, "--replica-announce-port", port)
		s.Do(tb, "CONFIG", "SET", "replica-announce-ip", host, "replica-announce-port", port)
		g.nodes[i] = n
	}
	var err error
	if g.sentinel, err = redistest.RunSentinel(g.nodes[0].peers.Address, downAfter); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(g.sentinel.Stop)
	tb.Cleanup(func() { g.keepLogs(c.Logs) })
	if err := g.Join(g.nodes[1]); err != nil {
		tb.Fatal(err)
	}
	return g
}

func (g *RedisGroup) keepLogs(folder string) {
	logs := map[string]string{"redis0": g.nodes[0].Log(), "redis1": g.nodes[1].Log(), "sentinel": g.sentinel.Log()}
	for name, file := range logs {
		if text, err := os.ReadFile(file); err == nil {
			_ = os.WriteFile(filepath.Join(folder, name+".log"), text, 0o644)
		}
	}
}

// network puts two proxies before each server and the sentinel. The sentinel's answers name the proxies.
func (g *RedisGroup) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	const greeting = 60 // the address of the primary, and an answer
	network := &Network{Greeting: greeting, probe: askSentinel}
	through := func(i int, address string) (string, error) {
		bytes, err := spoilable(tb, server, fmt.Sprintf("%s-%d", name, i), address)
		if err != nil {
			return "", err
		}
		front := process.NewLink(tb, bytes.Listen)
		network.ways = append(network.ways, way{front, bytes})
		return front.Address, nil
	}
	ports := map[string]string{}
	for i, n := range g.nodes {
		front, err := through(i, n.Address)
		if err != nil {
			return nil, err
		}
		ports[portOf(n.peers.Address)] = portOf(front)
	}
	told, err := renamed(tb, g.sentinel.Address, ports)
	if err != nil {
		return nil, err
	}
	front, err := through(len(g.nodes), told)
	network.url = "redis+sentinel://" + front + "/" + redistest.Name
	return network, err
}

func portOf(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}

// renamed makes a proxy to a server, in whose answers it replaces ports by others of the same length.
func renamed(tb testing.TB, target string, ports map[string]string) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(near, target, ports)
		}
	}()
	return listener.Addr().String(), nil
}

func relay(near net.Conn, target string, ports map[string]string) {
	defer func() { _ = near.Close() }()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	go func() {
		defer func() { _ = far.Close() }()
		_, _ = bufio.NewReader(near).WriteTo(far)
	}()
	lines := bufio.NewReader(far)
	for {
		line, err := lines.ReadBytes('\n')
		for from, to := range ports {
			line = bytes.ReplaceAll(line, []byte(from), []byte(to))
		}
		if _, werr := near.Write(line); err != nil || werr != nil {
			return
		}
	}
}

func clientOfRedis(address string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: address, MaxRetries: -1, Protocol: 2, DisableIdentity: true, PoolSize: 1, ContextTimeoutEnabled: true, DialerRetries: 1})
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

// Ask sends a command to a server.
func (n *RedisNode) Ask(args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := clientOfRedis(n.Address)
	defer func() { _ = c.Close() }()
	return c.Do(ctx, args...).Result()
}

func (n *RedisNode) says(section, text string) bool {
	answer, err := n.Ask("INFO", section)
	all, _ := answer.(string)
	return err == nil && strings.Contains(all, text)
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

// Forget removes the files of a server that has ended.
func (n *RedisNode) Forget() error {
	return errors.Join(os.RemoveAll(filepath.Join(n.folder, "appendonlydir")), os.RemoveAll(filepath.Join(n.folder, "dump.rdb")))
}

// Refuses reports whether the primary refuses a write with such an error.
func (g *RedisGroup) Refuses(code string) bool {
	_, err := g.Primary().Ask("SET", "filler:probe", "x")
	return err != nil && strings.HasPrefix(err.Error(), code)
}

// Step sets the clock of all servers ahead by one more duration.
func (g *RedisGroup) Step(by time.Duration) error { return g.clock.Step(by) }

// Ahead is by how much the primary's clock is ahead of this machine's.
func (g *RedisGroup) Ahead() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := clientOfRedis(g.Primary().Address)
	defer func() { _ = c.Close() }()
	return quickest(ctx, func() (time.Time, error) { return c.Time(ctx).Result() })
}

// Fill fills the disk, and returns what makes room again.
func (g *RedisGroup) Fill() (room func() error, err error) { return fill(g.disk) }

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
	return stored.Redis(func(context.Context) (*goredis.Client, error) { return clientOfRedis(g.Primary().Address), nil })
}

// failed reads the servers' logs for crashes. A replica ends itself if it cannot write to its disk, and says so in another way.
func (g *RedisGroup) failed() error {
	var errs []error
	for _, n := range g.nodes {
		text, err := os.ReadFile(n.Log())
		if bytes.Contains(text, []byte("crashed by signal")) || bytes.Contains(text, []byte("ASSERTION FAILED")) {
			err = errors.Join(err, fmt.Errorf("world: a crash in %s", n.Log()))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
