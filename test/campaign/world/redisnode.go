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
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
)

// RedisNode is one of several servers.
type RedisNode struct {
	*redistest.Server
	// peers is where the other servers and the sentinel reach it. In a cluster, bus is where they gossip with it, and host is where its own
	// connections come from.
	peers, bus *process.Link
	host       string
	folder     string
}

// redisServers have a disk and a clock in common.
type redisServers struct {
	*clock
	nodes []*RedisNode
	disk  string
	logs  string
}

func (r *redisServers) prepare(tb testing.TB, c Config) {
	tb.Helper()
	r.disk, r.logs, r.clock = filepath.Join(c.Folder, diskName), c.Logs, newClock(tb, c.Folder)
	if err := mount(r.disk); err != nil {
		tb.Fatal(err)
	}
}

// run starts one more server.
func (r *redisServers) run(tb testing.TB, args ...string) *RedisNode {
	tb.Helper()
	number := len(r.nodes)
	folder := filepath.Join(r.disk, fmt.Sprint(number))
	if err := os.Mkdir(folder, 0o755); err != nil {
		tb.Fatal(err)
	}
	s, err := redistest.RunIn(r.environment(), append([]string{
		"--dir", folder, "--appendonly", "yes", "--appendfsync", "everysec", "--repl-diskless-sync", "yes", "--repl-backlog-size", "8mb",
	}, args...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	tb.Cleanup(func() { keepLog(r.logs, fmt.Sprintf("redis%d", number), s) })
	n := &RedisNode{Server: s, peers: process.NewLink(tb, s.Address), folder: folder}
	r.nodes = append(r.nodes, n)
	return n
}

func keepLog(folder, name string, s *redistest.Server) {
	if text, err := os.ReadFile(s.Log()); err == nil {
		_ = os.WriteFile(filepath.Join(folder, name+".log"), text, 0o644)
	}
}

// always sets a value of the configuration, now and after each start.
func (n *RedisNode) always(tb testing.TB, name, value string) {
	n.Always("--"+name, value)
	n.Do(tb, "CONFIG", "SET", name, value)
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

// ahead is by how much a server's clock is ahead of this machine's.
func (n *RedisNode) ahead() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := clientOfRedis(n.Address)
	defer func() { _ = c.Close() }()
	return quickest(ctx, func() (time.Time, error) { return c.Time(ctx).Result() })
}

// Forget removes the data of a server that has ended.
func (n *RedisNode) Forget() error {
	return errors.Join(os.RemoveAll(filepath.Join(n.folder, "appendonlydir")), os.RemoveAll(filepath.Join(n.folder, "dump.rdb")))
}

// Fill fills the disk, and returns what makes room again. Then it does what an operator must do: a server writes its file anew, because Redis 7.0.15
// may not be able to read a file of which it could not write a part.
func (r *redisServers) Fill() (room func() error, err error) {
	empty, err := fill(r.disk)
	return func() error {
		err := empty()
		for _, n := range r.nodes {
			if err == nil && n.Running() {
				err = n.rewrite()
			}
		}
		return err
	}, err
}

// rewrite makes a server write its file anew, unless it ends.
func (n *RedisNode) rewrite() error {
	if err := await("a server begins to write its file anew", func() error {
		_, err := n.Ask("BGREWRITEAOF")
		if !n.Running() {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	return await("the file is written", func() error {
		for _, line := range []string{"aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0", "aof_last_bgrewrite_status:ok"} {
			if n.Running() && !n.says("persistence", line) {
				return fmt.Errorf("not yet %s", line)
			}
		}
		return nil
	})
}

// failed reads the servers' logs for crashes. A server may end itself if it cannot write to its disk, and says so in another way.
func (r *redisServers) failed() error {
	var errs []error
	for _, n := range r.nodes {
		text, err := os.ReadFile(n.Log())
		if bytes.Contains(text, []byte("crashed by signal")) || bytes.Contains(text, []byte("ASSERTION FAILED")) {
			err = errors.Join(err, fmt.Errorf("world: a crash in %s", n.Log()))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func clientOfRedis(address string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: address, MaxRetries: -1, Protocol: 2, DisableIdentity: true, PoolSize: 1, ContextTimeoutEnabled: true, DialerRetries: 1})
}

func listen(tb testing.TB) (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		tb.Cleanup(func() { _ = listener.Close() })
	}
	return listener, err
}

// renamed is a proxy to a server. next reads a part of the server's answers, in which it replaces the addresses of servers.
func renamed(listener net.Listener, target string, next func(*bufio.Reader) ([]byte, error)) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		go relay(near, target, next)
	}
}

func relay(near net.Conn, target string, next func(*bufio.Reader) ([]byte, error)) {
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
	from := bufio.NewReader(far)
	for {
		part, err := next(from)
		if _, werr := near.Write(part); err != nil || werr != nil {
			return
		}
	}
}
