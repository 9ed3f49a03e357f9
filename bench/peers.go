package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
)

// contender is a server that grants locks, ours or a peer.
type contender struct {
	name string
	// durable: what it granted survives a loss of power. Ours are beside those peers
	// that promise as much as they do.
	durable bool
	*process
	load    func(connections int) (*loader, error)
	figures map[int]runs
}

// peers measures acquire and release beside other servers that grant locks. These
// serve TCP on loopback, as they do to apps on other machines; the sidecar serves its
// own pod.
func (b *bench) peers() ([]result, error) {
	const share = 4 // of a measurement's length: there are many
	connections := []int{1, 64, 256}
	contenders, stop, err := b.contenders()
	defer stop()
	if err != nil {
		return nil, err
	}
	short := *b
	short.length /= share
	for range b.rounds {
		for _, n := range connections {
			var line strings.Builder
			for _, c := range contenders {
				r, err := c.measure(&short, n)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
				fmt.Fprintf(&line, "; %s %.0f pairs/s, %s", c.name, r.rate(), runs{r}.cost())
			}
			b.log.Printf("peers %d connections%s", n, line.String())
		}
	}
	return peerRows(contenders, connections), nil
}

// measure takes one run.
func (c *contender) measure(b *bench, connections int) (run, error) {
	l, err := c.load(connections)
	if err != nil {
		return run{}, err
	}
	defer l.stop()
	r, err := l.run(b.length, c.process)
	c.figures[connections] = append(c.figures[connections], r)
	return r, err
}

// oursFirst is how many of the contenders, the first ones, are locksidecar's.
const oursFirst = 3

// peerRows sets ours beside those that promise the same.
func peerRows(contenders []*contender, connections []int) (rows []result) {
	for _, n := range connections {
		for _, our := range contenders[:oursFirst] {
			for _, peer := range contenders[oursFirst:] {
				if peer.durable != our.durable {
					continue
				}
				mine, theirs := our.figures[n], peer.figures[n]
				ratio := median(ratios(mine.rates(), theirs.rates()))
				rows = append(rows, result{
					id: "peers", what: fmt.Sprintf("%s beside %s, %d connections", our.name, peer.name, n),
					figure: fmt.Sprintf("%.0f pairs/s, %s", median(mine.rates()), mine.cost()),
					peer:   fmt.Sprintf("%s: %.0f pairs/s, %s", peer.name, median(theirs.rates()), theirs.cost()),
					ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
				})
			}
		}
	}
	return rows
}

// contenders starts all of them, ours first. stop ends them, after an error too.
func (b *bench) contenders() (all []*contender, stop func(), err error) {
	var ends []func()
	stop = func() {
		for _, end := range ends {
			end()
		}
	}
	binary := filepath.Join(b.folder, "peers")
	if err := b.buildPeers(binary); err != nil {
		return nil, stop, err
	}
	cluster, url, err := b.database()
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, cluster.Stop)
	quorum, quorumAt, err := b.startPeer(startEtcd)
	if err != nil {
		return nil, stop, fmt.Errorf("etcd: %w", err)
	}
	ends = append(ends, quorum.stop)
	for _, s := range []struct{ name, store string }{
		{"locksidecar on `memory://`", "memory://"}, {"locksidecar on PostgreSQL", url}, {"locksidecar on etcd", "etcd://" + quorumAt},
	} {
		p, err := b.sidecar(fmt.Sprintf("peers%d", len(all)), "STORE_URL="+s.store)
		if err != nil {
			return nil, stop, err
		}
		ends = append(ends, p.stop)
		all = append(all, &contender{name: s.name, durable: s.store != "memory://", process: p, figures: make(map[int]runs), load: func(n int) (*loader, error) {
			return b.loader("pair", n, p)
		}})
	}
	loadOf := func(program, address string) func(int) (*loader, error) {
		return func(n int) (*loader, error) { return b.loadBy(exec.Command(binary, program, address, strconv.Itoa(n))) }
	}
	for _, peer := range others {
		p, address, err := b.startPeer(peer.start)
		if err != nil {
			return nil, stop, fmt.Errorf("%s: %w", peer.name, err)
		}
		ends = append(ends, p.stop)
		all = append(all, &contender{name: peer.name, durable: peer.durable, process: p, figures: make(map[int]runs), load: loadOf("redis", address)})
	}
	// On the server that our sidecar uses.
	all = append(all, &contender{name: "etcd", durable: true, process: quorum, figures: make(map[int]runs), load: loadOf("etcd", quorumAt)})
	return all, stop, nil
}

// starter returns the command of a server that has its files in a folder.
type starter func(folder, port string) ([]string, error)

// others are the peers that have a server of their own.
var others = []struct {
	name    string
	durable bool
	start   starter
}{
	{"Redis without persistence", false, startRedis("--appendonly", "no")},
	{"Redis, `appendfsync always`", true, startRedis("--appendonly", "yes", "--appendfsync", "always")},
}

// startRedis makes no snapshots.
func startRedis(more ...string) starter {
	return func(folder, port string) ([]string, error) {
		return append([]string{"redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", folder}, more...), nil
	}
}

// startEtcd is one member on its own, whose other port only itself knows.
func startEtcd(folder, port string) ([]string, error) {
	program, err := etcdtest.Binary()
	if err != nil {
		return nil, err
	}
	clients, members := "http://127.0.0.1:"+port, "http://127.0.0.1:0"
	return []string{
		program, "--data-dir", folder, "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", members, "--log-level", "error",
	}, nil
}

// startPeer starts a server on a free port and waits until it takes connections.
func (b *bench) startPeer(command starter) (*process, string, error) {
	folder, err := os.MkdirTemp(b.folder, "peer")
	if err != nil {
		return nil, "", err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	address := free.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err := errors.Join(err, free.Close()); err != nil {
		return nil, "", err
	}
	args, err := command(folder, port)
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil { // what they write is of no interest
		return nil, "", fmt.Errorf("%w (make bench installs it)", err)
	}
	p := &process{cmd: cmd}
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return p, address, nil
		}
		_ = b.rest(10 * time.Millisecond)
	}
	p.stop()
	return nil, "", errors.New("it did not become ready")
}

// buildPeers builds the load process that knows the peers.
func (b *bench) buildPeers(binary string) error {
	cmd := exec.CommandContext(b.ctx, "go", "build", "-o", binary, ".")
	cmd.Dir = filepath.Join("bench", "peers")
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building bench/peers: %w\n%s", err, out)
	}
	return nil
}
