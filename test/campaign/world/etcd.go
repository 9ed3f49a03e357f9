package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

const (
	// nodes are as many as can lose one.
	nodes = 3
	// quota is soon reached by the fault that does so, and not by traffic between two compactions.
	quota = 32 << 20
	// compactEvery is how often etcd itself compacts.
	compactEvery = 20 * time.Second
	// etcdPrefix is that of the sidecars' keys, filler of those that fill the servers.
	etcdPrefix, filler = "/campaign", "/filler/"
)

// Servers are etcd's.
type Servers struct {
	cluster *etcdtest.Cluster
	client  *clientv3.Client
}

func newServers(tb testing.TB, c Config) *Servers {
	tb.Helper()
	e := &Servers{cluster: etcdtest.Start(tb, etcdtest.Nodes(nodes), etcdtest.Separable(), etcdtest.WithQuota(quota),
		etcdtest.WithFlag("auto-compaction-mode", "periodic"), etcdtest.WithFlag("auto-compaction-retention", compactEvery.String()))}
	tb.Cleanup(func() { e.keepLogs(c.Logs) })
	e.client = e.cluster.Client(tb)
	return e
}

func (e *Servers) keepLogs(folder string) {
	for i, n := range e.cluster.Nodes {
		if text, err := os.ReadFile(n.Log()); err == nil {
			_ = os.WriteFile(filepath.Join(folder, fmt.Sprintf("etcd%d.log", i)), text, 0o644)
		}
	}
}

// network puts two proxies before each server.
func (e *Servers) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	const greeting = 100 // the beginning of a connection, and an answer
	network := &Network{Greeting: greeting, probe: readAny}
	var addresses []string
	for i, n := range e.cluster.Nodes {
		bytes, err := spoilable(tb, server, fmt.Sprintf("%s-%d", name, i), n.Address)
		if err != nil {
			return nil, err
		}
		front := process.NewLink(tb, bytes.Listen)
		network.ways = append(network.ways, way{front, bytes})
		addresses = append(addresses, front.Address)
	}
	network.url = "etcd://" + strings.Join(addresses, ",") + etcdPrefix
	return network, nil
}

// readAny connects and reads a key that is not there.
func readAny(ctx context.Context, address string) error {
	hosts, _, _ := strings.Cut(strings.TrimPrefix(address, "etcd://"), "/")
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(hosts, ","), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	_, err = client.Get(clientv3.WithRequireLeader(ctx), "/")
	return err
}

// Answers implements [Store].
func (e *Servers) Answers(limit time.Duration) error {
	_, err := timed(limit, func(ctx context.Context) error { return readAny(ctx, e.cluster.Addresses()) })
	return err
}

// View implements [Store].
func (e *Servers) View() stored.View {
	return stored.Etcd(func() (*clientv3.Client, error) { return e.cluster.Connect() }, etcdPrefix)
}

// failed reads the servers' logs for what ends a server.
func (e *Servers) failed() error {
	var errs []error
	for _, n := range e.cluster.Nodes {
		text, err := os.ReadFile(n.Log())
		for _, cry := range []string{"panic", "fatal"} {
			if strings.Contains(string(text), `"level":"`+cry+`"`) {
				err = errors.Join(err, fmt.Errorf("world: %s in %s", cry, n.Log()))
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Nodes are the servers.
func (e *Servers) Nodes() []*etcdtest.Node { return e.cluster.Nodes }

// Leader waits until one of the servers leads.
func (e *Servers) Leader() (leader *etcdtest.Node, err error) {
	err = await("etcd has a leader", func() error {
		if leader = e.cluster.Leads(); leader == nil {
			return errors.New("there is none")
		}
		return nil
	})
	return leader, err
}

// Leads reports whether a server leads the others.
func (e *Servers) Leads(n *etcdtest.Node) bool { return e.cluster.Leads() == n }

// HasLeader reports whether another server than this one leads.
func (e *Servers) HasLeader(but *etcdtest.Node) bool {
	now := e.cluster.Leads()
	return now != nil && now != but
}

// Revive starts the servers that were killed.
func (e *Servers) Revive() error { return e.cluster.AllAgain() }

// within runs a request with a limit.
func (e *Servers) within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx)
}

// Compact makes the servers forget all revisions but the present one. It repeats this until they can, because another fault
// may keep them from it.
func (e *Servers) Compact() error {
	return await("compacting etcd", func() error { return e.within(e.compact) })
}

func (e *Servers) compact(ctx context.Context) error {
	now, err := e.client.Get(ctx, "/")
	if err == nil {
		_, err = e.client.Compact(ctx, now.Header.Revision)
	}
	if errors.Is(err, rpctypes.ErrCompacted) { // etcd itself was first
		err = nil
	}
	return err
}

// Full reports whether the servers refuse what would need room.
func (e *Servers) Full() bool {
	return errors.Is(e.within(func(ctx context.Context) error {
		_, err := e.client.Put(ctx, filler+"probe", "")
		return err
	}), rpctypes.ErrNoSpace)
}

// Fill fills the servers up to their quota, and returns what makes room again, as an operator does.
func (e *Servers) Fill() (room func() error, err error) {
	chunk := strings.Repeat("x", 1<<20)
	err = e.within(func(ctx context.Context) error {
		for i := 0; ; i++ {
			if _, err := e.client.Put(ctx, fmt.Sprint(filler, i), chunk); errors.Is(err, rpctypes.ErrNoSpace) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
	return e.makeRoom, err
}

func (e *Servers) makeRoom() error {
	err := e.within(func(ctx context.Context) error {
		_, err := e.client.Delete(ctx, filler, clientv3.WithPrefix())
		return err
	})
	if err = errors.Join(err, e.Compact()); err != nil {
		return err
	}
	return e.within(func(ctx context.Context) error {
		for _, n := range e.cluster.Nodes {
			if _, err := e.client.Defragment(ctx, n.Address); err != nil {
				return err
			}
		}
		_, err := e.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // of all members
		return err
	})
}
