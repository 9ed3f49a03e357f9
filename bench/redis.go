package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/redis"
)

// onRedis is a Redis that sidecars and the lock of Redis's documentation use, and sidecars on a PostgreSQL beside them.
type onRedis struct {
	server             *process
	address            string
	client             *goredis.Client
	peers              string // the program that knows the other lock
	sidecars, postgres []*process
	ends               []func()
}

// redis measures what P2, P3, P6 and P10 measure, with the sidecar on Redis.
func (b *bench) redis() ([]result, error) {
	o, err := b.onRedis()
	if err != nil {
		return nil, err
	}
	defer o.stop()
	rows, err := o.handOffs(b)
	if err != nil {
		return nil, err
	}
	more, err := o.loads(b)
	return append(rows, more...), err
}

// onRedis starts them. The server has no files, as the other lock's users mostly have it. A sidecar needs no quiet time: nothing
// was forgotten.
func (b *bench) onRedis() (o *onRedis, err error) {
	o = &onRedis{peers: filepath.Join(b.folder, "peers")}
	defer func() {
		if err != nil {
			o.stop()
		}
	}()
	if err := b.buildPeers(o.peers); err != nil {
		return nil, err
	}
	if o.server, o.address, err = b.startPeer(startRedis("--appendonly", "no")); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o.ends = append(o.ends, o.server.stop)
	o.client = goredis.NewClient(&goredis.Options{Addr: o.address, Protocol: 2, DisableIdentity: true})
	o.ends = append(o.ends, func() { _ = o.client.Close() })
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, cluster.Stop)
	for i := range 2 {
		for _, s := range []struct {
			name, url string
			to        *[]*process
		}{{"redis", "redis://" + o.address, &o.sidecars}, {"postgres", url, &o.postgres}} {
			p, err := b.sidecar(fmt.Sprint("re", s.name, i), "STORE_URL="+s.url, "FAILOVER=quick")
			if err != nil {
				return nil, err
			}
			o.ends = append(o.ends, p.stop)
			*s.to = append(*s.to, p)
		}
	}
	return o, nil
}

func (o *onRedis) stop() {
	for i := range o.ends {
		o.ends[len(o.ends)-1-i]()
	}
}

// version is that of the record of the key that is handed off.
func (o *onRedis) version() (int64, error) {
	value, err := o.client.Get(context.Background(), redis.Prefix()+"k:default/"+handOffKey).Result()
	if err == goredis.Nil { //nolint:errorlint // the library compares it so
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	r, err := redis.Record(handOffKey, value)
	return r.Version, err
}

// handOffs measures how long it takes from a release to the grant of a waiter behind another sidecar. The other lock has no
// waiters: they ask again after a pause.
func (o *onRedis) handOffs(b *bench) ([]result, error) {
	const each = 40
	pair := &pods{url: "redis://" + o.address, position: o.version, more: []string{"FAILOVER=quick"}}
	defer pair.stop()
	if err := pair.start(b, "redishandoff"); err != nil {
		return nil, err
	}
	database, err := b.pods("redishandoffpg")
	if err != nil {
		return nil, err
	}
	defer database.stop()
	var ours, beside []float64
	for range b.rounds {
		some, err := b.handOffs(pair, each)
		if err != nil {
			return nil, fmt.Errorf("on Redis: %w", err)
		}
		other, err := b.handOffs(database, each)
		if err != nil {
			return nil, fmt.Errorf("on PostgreSQL: %w", err)
		}
		b.log.Printf("redis P6 %d hand-offs: median %.2f ms, p99 %.2f ms; on PostgreSQL %.2f ms, %.2f ms",
			each, median(some), p99(some), median(other), p99(other))
		ours, beside = append(ours, some...), append(beside, other...)
	}
	row := func(what string, figure, peers float64) result {
		return result{
			id: "redis P6", what: "hand-off to a waiter behind another sidecar, " + what, figure: fmt.Sprintf("%.2f ms (of %d)", figure, len(ours)),
			peer: fmt.Sprintf("sidecars on PostgreSQL: %.2f ms", peers), ratio: fmt.Sprintf("%.2f of it", figure/peers), less: true, goal: none,
		}
	}
	return []result{row("median", median(ours), median(beside)), row("p99", p99(ours), p99(beside))}, nil
}

// redisLoad is a load of the sidecar on Redis, with the same load of others.
type redisLoad struct {
	id, what              string
	operation             string
	connections, sidecars int
	goal                  float64 // of the other lock; 0: none

	ours, lock, onPostgres runs
}

// loads measures pairs of free keys, and a key that all want, in turns.
func (o *onRedis) loads(b *bench) (rows []result, err error) {
	loads := []*redisLoad{
		{id: "P3", what: "acquire+release, one client", operation: "pair", connections: 1, sidecars: 1},
		{id: "P2", what: "acquire+release, 64 connections", operation: "pair", connections: 64, sidecars: 1, goal: 0.6},
		{id: "P2", what: "acquire+release, 256 connections", operation: "pair", connections: 256, sidecars: 1},
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

func (l *redisLoad) measure(b *bench, o *onRedis) error {
	args := []string{"redis", o.address, strconv.Itoa(l.connections)}
	if l.operation == "hot" {
		args = append(args, "hot")
	}
	ours, err := b.once(l.operation, l.connections, o.sidecars[:l.sidecars]...)
	if err != nil {
		return err
	}
	loaded, err := b.loadBy(exec.Command(o.peers, args...))
	lock, err := b.runOnce(loaded, err, []*process{o.server})
	if err != nil {
		return err
	}
	postgres, err := b.once(l.operation, l.connections, o.postgres[:l.sidecars]...)
	if err != nil {
		return err
	}
	l.ours, l.lock, l.onPostgres = append(l.ours, ours), append(l.lock, lock), append(l.onPostgres, postgres)
	var line strings.Builder
	for _, r := range []struct {
		name string
		run
	}{{"the sidecar on Redis", ours}, {"SET NX and a script", lock}, {"the sidecar on PostgreSQL", postgres}} {
		fmt.Fprintf(&line, "; %s %.0f/s, median %.2f ms, p99 %.2f ms, %s", r.name, r.rate(), milliseconds(r.Median), milliseconds(r.P99), runs{r.run}.cost())
	}
	b.log.Printf("redis %s, %s%s", l.id, l.what, line.String())
	return nil
}

func (l *redisLoad) rows() []result {
	row := func(peer string, peers runs) result {
		ratio := median(ratios(l.ours.rates(), peers.rates()))
		return result{
			id: "redis " + l.id, what: fmt.Sprintf("%s, beside %s", l.what, peer),
			figure: fmt.Sprintf("%.0f/s, %.3f ms, %s", median(l.ours.rates()), median(l.ours.medians())/1000, l.ours.cost()),
			peer:   fmt.Sprintf("%s: %.0f/s, %.3f ms", peer, median(peers.rates()), median(peers.medians())/1000),
			ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	beside := row("SET NX and a script", l.lock)
	if l.goal > 0 {
		beside = beside.wants(l.goal)
	}
	return []result{beside, row("the sidecar on PostgreSQL", l.onPostgres)}
}
