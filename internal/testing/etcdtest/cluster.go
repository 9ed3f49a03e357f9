package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
)

const folderPrefix = "lsetcd-"

// startLimit is how long a server may take until it serves.
const startLimit = time.Minute

// Cluster is one server or several in a temporary folder.
type Cluster struct {
	// Nodes are the servers. Those that were killed or frozen stay in their places.
	Nodes  []*Node
	folder string
	client *tls.Config
	peers  *peers // nil if nodes cannot be cut off from each other
}

// Node is one server. Its methods must not be called at the same time.
type Node struct {
	// Address is host:port for clients.
	Address string
	cluster *Cluster
	binary  string
	name    string
	args    []string
	listen  string
	peer    string
	env     []string
	run     *process.Process
}

// Run starts a cluster and waits until it serves, for TestMain and for programs. The caller stops it.
func Run(options ...Option) (*Cluster, error) {
	s := settings{nodes: 1}
	for _, option := range options {
		option(&s)
	}
	if s.binary == "" {
		var err error
		if s.binary, err = Binary(); err != nil {
			return nil, err
		}
	}
	folder, err := process.NewFolder("", folderPrefix)
	if err != nil {
		return nil, err
	}
	c := &Cluster{folder: folder}
	if err := c.setUp(&s); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Start starts a cluster that is stopped when the test ends.
func Start(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	c, err := Run(options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}

func (c *Cluster) setUp(s *settings) error {
	scheme, host, flags, err := c.secure(s.tls)
	if err != nil {
		return err
	}
	for i := range s.nodes {
		client, err := pgtest.FreePort()
		if err != nil {
			return err
		}
		peer, err := pgtest.FreePort()
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, &Node{
			Address: fmt.Sprintf("%s:%d", host, client), peer: fmt.Sprintf("http://127.0.0.1:%d", peer),
			listen: fmt.Sprintf("%s127.0.0.1:%d", scheme, client), cluster: c, binary: s.binary, name: fmt.Sprintf("n%d", i),
		})
	}
	advertised := map[*Node]string{}
	for _, n := range c.Nodes {
		advertised[n] = n.peer
	}
	if s.split {
		if c.peers, err = separate(c.Nodes, advertised); err != nil {
			return err
		}
	}
	var members []string
	for _, n := range c.Nodes {
		members = append(members, n.name+"="+advertised[n])
	}
	for _, n := range c.Nodes {
		n.args = append([]string{
			"--name=" + n.name, "--data-dir=" + filepath.Join(c.folder, n.name), "--logger=zap", "--log-level=warn",
			"--listen-client-urls=" + n.listen, "--advertise-client-urls=" + scheme + n.Address,
			"--listen-peer-urls=" + n.peer, "--initial-advertise-peer-urls=" + advertised[n],
			"--initial-cluster=" + strings.Join(members, ","), "--unsafe-no-fsync",
		}, append(flags, s.flags...)...)
	}
	return c.launch(c.Nodes...)
}

// secure writes the servers' certificate, and returns how clients connect and the servers' flags.
func (c *Cluster) secure(t *tlsFiles) (scheme, host string, flags []string, err error) {
	if t == nil {
		return "http://", "127.0.0.1", nil, nil
	}
	pair := t.authority.Issue("localhost", time.Now().Add(time.Hour))
	for name, text := range map[string][]byte{"ca.crt": t.authority.PEM(), "tls.crt": pair.Cert, "tls.key": pair.Key} {
		if err := os.WriteFile(filepath.Join(c.folder, name), text, 0o600); err != nil {
			return "", "", nil, fmt.Errorf("etcdtest: %w", err)
		}
	}
	own := t.authority.IssueClient("test")
	cert, err := tls.X509KeyPair(own.Cert, own.Key)
	if err != nil {
		return "", "", nil, fmt.Errorf("etcdtest: %w", err)
	}
	c.client = &tls.Config{RootCAs: t.authority.Pool(), Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	flags = []string{"--cert-file=" + filepath.Join(c.folder, "tls.crt"), "--key-file=" + filepath.Join(c.folder, "tls.key")}
	if t.clientCerts {
		flags = append(flags, "--client-cert-auth", "--trusted-ca-file="+filepath.Join(c.folder, "ca.crt"))
	}
	return "https://", "localhost", flags, nil
}

// Stop kills all servers and removes their folder.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes {
		n.Kill()
	}
	if c.peers != nil {
		c.peers.stop()
	}
	_ = os.RemoveAll(c.folder)
}

// Addresses returns host:port of all nodes, separated by commas, as in a store's URL.
func (c *Cluster) Addresses() string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.Address)
	}
	return strings.Join(all, ",")
}

// Client returns a client of all nodes, or only of the given ones, that is closed when the test ends.
func (c *Cluster) Client(tb testing.TB, nodes ...*Node) *clientv3.Client {
	tb.Helper()
	client, err := c.Connect(nodes...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Connect returns a client as Client does, which the caller closes.
func (c *Cluster) Connect(nodes ...*Node) (*clientv3.Client, error) {
	if len(nodes) == 0 {
		nodes = c.Nodes
	}
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.Address)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: c.client, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("etcdtest: %w", err)
	}
	return client, nil
}

// Leader waits until the nodes that run agree on a leader, and returns it.
func (c *Cluster) Leader(tb testing.TB) *Node {
	tb.Helper()
	var leader *Node
	await.Until(tb, "the servers have a leader", func() bool {
		leader = c.Leads()
		return leader != nil
	})
	return leader
}

// Leads returns the node that says in the highest term that it is the leader, or nil. A frozen node says nothing, and one
// that is cut off may not know yet that it was replaced.
func (c *Cluster) Leads() (leader *Node) {
	var term uint64
	for _, n := range c.Nodes {
		status, err := n.Status()
		if err == nil && status.Leader == status.Header.MemberId && status.RaftTerm > term {
			leader, term = n, status.RaftTerm
		}
	}
	return leader
}

// Followers returns the nodes that are not the leader.
func (c *Cluster) Followers(tb testing.TB) []*Node {
	tb.Helper()
	leader := c.Leader(tb)
	var others []*Node
	for _, n := range c.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	return others
}

// Compact makes the servers forget all revisions but the present one.
func (c *Cluster) Compact(tb testing.TB) {
	tb.Helper()
	client := c.Client(tb)
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	now, err := client.Get(ctx, "/")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		tb.Fatal(err)
	}
}

// launch starts nodes and returns when each serves.
func (c *Cluster) launch(nodes ...*Node) error {
	for _, n := range nodes {
		var err error
		cmd := exec.Command(n.binary, n.args...)
		cmd.Env = append([]string{"ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH, "GOMAXPROCS=2"}, n.env...)
		if n.run, err = process.Start(cmd, nil, n.Log()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for _, n := range nodes {
		if err := n.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Log is the file with the server's output.
func (n *Node) Log() string { return filepath.Join(n.cluster.folder, n.name+".log") }

// await asks a starting server until it answers a read, which needs a leader.
func (n *Node) await(ctx context.Context) error {
	client, err := n.cluster.Connect(n)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(try, "/")
		cancel()
		if err == nil || errors.Is(err, rpctypes.ErrUserEmpty) { // with authentication, it serves others
			return nil
		}
		select {
		case <-n.run.Ended:
			return fmt.Errorf("etcdtest: the server ended while it started:\n%s", process.Tail(n.Log()))
		case <-ctx.Done():
			return fmt.Errorf("etcdtest: the server does not answer: %w\n%s", err, process.Tail(n.Log()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Status asks the server how it is, for at most a second.
func (n *Node) Status() (*clientv3.StatusResponse, error) {
	client, err := n.cluster.Connect(n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return client.Status(ctx, n.Address)
}

// Kill ends the server as kill -9 does, and keeps its data.
func (n *Node) Kill() { n.run.Kill() }

// Freeze stops the server's process until Thaw, and returns when it has stopped. Its connections stay open.
func (n *Node) Freeze() { n.run.Freeze() }

// Thaw lets a frozen server go on.
func (n *Node) Thaw() { n.run.Thaw() }

// Restart kills the server if it runs, starts it again on the same data, and waits until it serves.
func (n *Node) Restart(tb testing.TB) {
	tb.Helper()
	if err := n.Again(); err != nil {
		tb.Fatal(err)
	}
}

// Again does the same for programs.
func (n *Node) Again() error {
	n.Kill()
	return n.cluster.launch(n)
}

// Wipe removes a killed server's data.
func (n *Node) Wipe(tb testing.TB) {
	tb.Helper()
	if err := os.RemoveAll(filepath.Join(n.cluster.folder, n.name)); err != nil {
		tb.Fatal(err)
	}
}

// Revive starts killed servers together, since a majority must run before any of them serves.
func (c *Cluster) Revive(tb testing.TB) {
	tb.Helper()
	if err := c.AllAgain(); err != nil {
		tb.Fatal(err)
	}
}

// AllAgain does the same for programs.
func (c *Cluster) AllAgain() error {
	var dead []*Node
	for _, n := range c.Nodes {
		if !n.run.Running() {
			dead = append(dead, n)
		}
	}
	return c.launch(dead...)
}
