package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// onEtcd is an etcd that sidecars and etcd's own Mutex use, and sidecars on a PostgreSQL beside them.
type onEtcd struct {
	server             *process
	address, url       string
	peers              string // the program that knows Mutex
	sidecars, postgres []*process
	ends               []func()
}

const etcdSidecars = 2

// etcd measures what P2, P3, P5, P6, P8 and P10 measure, with the sidecar on etcd.
func (b *bench) etcd() (rows []result, err error) {
	for _, measure := range []func() ([]result, error){b.etcdHeld, b.etcdHandOffs, b.etcdLoads} {
		more, err := measure()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// onEtcd starts them.
func (b *bench) onEtcd() (o *onEtcd, err error) {
	o = &onEtcd{peers: filepath.Join(b.folder, "peers")}
	defer func() {
		if err != nil {
			o.stop()
		}
	}()
	if err := b.buildPeers(o.peers); err != nil {
		return nil, err
	}
	if o.server, o.address, err = b.startPeer(startEtcd); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	o.ends = append(o.ends, o.server.stop)
	o.url = "etcd://" + o.address
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, cluster.Stop)
	for i := range etcdSidecars {
		for _, s := range []struct {
			name, url string
			to        *[]*process
		}{{"etcd", o.url, &o.sidecars}, {"postgres", url, &o.postgres}} {
			p, err := b.sidecar(fmt.Sprint("on", s.name, i), "STORE_URL="+s.url)
			if err != nil {
				return nil, err
			}
			o.ends = append(o.ends, p.stop)
			*s.to = append(*s.to, p)
		}
	}
	return o, nil
}

func (o *onEtcd) stop() {
	for i := range o.ends {
		o.ends[len(o.ends)-1-i]()
	}
}

// mutex loads etcd's own Mutex.
func (o *onEtcd) mutex(b *bench, connections int, more ...string) (run, error) {
	args := append([]string{"etcd", o.address, strconv.Itoa(connections)}, more...)
	l, err := b.loadBy(exec.Command(o.peers, args...))
	return b.runOnce(l, err, []*process{o.server})
}

// etcdLoad is a load of the sidecar on etcd, with the same load of others.
type etcdLoad struct {
	id, what    string
	operation   string
	connections int
	sidecars    int
	goal        float64 // of the mutex; 0: none

	onEtcd, mutex, onPostgres runs
}

// etcdLoads measures pairs of free keys, and a key that all want, in turns.
func (b *bench) etcdLoads() (rows []result, err error) {
	o, err := b.onEtcd()
	if err != nil {
		return nil, err
	}
	defer o.stop()
	loads := []*etcdLoad{
		{id: "P3", what: "acquire+release, one client", operation: "pair", connections: 1, sidecars: 1},
		{id: "P2", what: "acquire+release, 64 connections", operation: "pair", connections: 64, sidecars: 1, goal: 2},
		{id: "P2", what: "acquire+release, 256 connections", operation: "pair", connections: 256, sidecars: 1},
		{id: "P2", what: "acquire+release, 1024 connections", operation: "pair", connections: 1024, sidecars: 1},
		{id: "P10", what: "one hot key, 32 clients, one sidecar", operation: "hot", connections: 32, sidecars: 1},
		{id: "P10", what: "one hot key, 32 clients, sidecars: 2", operation: "hot", connections: 32, sidecars: 2},
	}
	for range b.rounds {
		for _, l := range loads {
			if err := l.measure(b, o); err != nil {
				return nil, fmt.Errorf("%s: %w", l.what, err)
			}
		}
	}
	for _, l := range loads {
		rows = append(rows, l.rows()...)
	}
	return rows, nil
}

func (l *etcdLoad) measure(b *bench, o *onEtcd) error {
	var more []string
	if l.operation == "hot" {
		more = []string{"hot"}
	}
	ours, err := b.once(l.operation, l.connections, o.sidecars[:l.sidecars]...)
	if err != nil {
		return err
	}
	mutex, err := o.mutex(b, l.connections, more...)
	if err != nil {
		return err
	}
	postgres, err := b.once(l.operation, l.connections, o.postgres[:l.sidecars]...)
	if err != nil {
		return err
	}
	l.onEtcd, l.mutex, l.onPostgres = append(l.onEtcd, ours), append(l.mutex, mutex), append(l.onPostgres, postgres)
	var line strings.Builder
	for _, r := range []struct {
		name string
		run
	}{{"the sidecar on etcd", ours}, {"etcd's Mutex", mutex}, {"the sidecar on PostgreSQL", postgres}} {
		fmt.Fprintf(&line, "; %s %.0f/s, median %.2f ms, p99 %.2f ms, %s", r.name, r.rate(), milliseconds(r.Median), milliseconds(r.P99), runs{r.run}.cost())
	}
	b.log.Printf("etcd %s, %s%s", l.id, l.what, line.String())
	return nil
}

func (l *etcdLoad) rows() []result {
	row := func(peer string, peers runs) result {
		ratio := median(ratios(l.onEtcd.rates(), peers.rates()))
		return result{
			id: "etcd " + l.id, what: fmt.Sprintf("%s, beside %s", l.what, peer),
			figure: fmt.Sprintf("%.0f/s, %.3f ms, %s", median(l.onEtcd.rates()), median(l.onEtcd.medians())/1000, l.onEtcd.cost()),
			peer:   fmt.Sprintf("%s: %.0f/s, %.3f ms", peer, median(peers.rates()), median(peers.medians())/1000),
			ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	beside := row("etcd's own Mutex", l.mutex)
	if l.goal > 0 {
		beside = beside.wants(l.goal)
	}
	return []result{beside, row("the sidecar on PostgreSQL", l.onPostgres)}
}
