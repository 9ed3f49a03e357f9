package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// keepFor is LOCKSIDECAR_KEEP of P12.
const keepFor = "KEEP=200ms"

// keepStore is a server on which P12 measures sidecars that keep keys.
type keepStore struct {
	id, name string
	url      string
	settings []string
	// requests are the statements, or requests, that the server says it has got from sidecars.
	requests func() (int64, error)
	// kinds says how many there were of each kind, where the server knows.
	kinds  func() (string, error)
	server *process // nil where nothing but sidecars is measured on it
	rivals []rival
}

// keepStores starts the servers with these ids; all of them without. stop ends them, after an error too.
func (b *bench) keepStores(ids ...string) (all []*keepStore, stop func(), err error) {
	var ends []func()
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	for _, s := range []struct {
		id    string
		start func(*bench) (*keepStore, func(), error)
	}{{"postgres", keepPostgres}, {"redis", keepRedis}, {"mysql", keepMySQL}, {"etcd", keepEtcd}} {
		if len(ids) > 0 && !slices.Contains(ids, s.id) {
			continue
		}
		one, end, err := s.start(b)
		if end != nil {
			ends = append(ends, end)
		}
		if err != nil {
			return nil, stop, fmt.Errorf("%s: %w", s.id, err)
		}
		one.id = s.id
		all = append(all, one)
	}
	return all, stop, nil
}

func keepPostgres(b *bench) (*keepStore, func(), error) {
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", "300"))
	if err != nil {
		return nil, nil, err
	}
	if out, err := exec.CommandContext(b.ctx, "psql", url, "-qc", directTable).CombinedOutput(); err != nil {
		return nil, cluster.Stop, fmt.Errorf("psql: %w\n%s", err, out)
	}
	c, err := b.counter(url)
	if err != nil {
		return nil, cluster.Stop, err
	}
	requests := func() (int64, error) {
		calls, _, err := c.count("")
		return calls, err
	}
	return &keepStore{name: "PostgreSQL", url: url, requests: requests, kinds: c.each}, func() { c.close(); cluster.Stop() }, nil
}

func keepRedis(b *bench) (*keepStore, func(), error) {
	server, address, err := b.startPeer(startRedis("--appendonly", "no"))
	if err != nil {
		return nil, nil, err
	}
	client := goredis.NewClient(&goredis.Options{Addr: address, Protocol: 2, DisableIdentity: true})
	return &keepStore{
		name: "Redis", url: "redis://" + address, settings: []string{"FAILOVER=quick"}, server: server,
		requests: func() (int64, error) { return redisRequests(b.ctx, client) },
		rivals:   []rival{{name: "SET NX and a script", args: []string{"redis", address}}},
	}, func() { _ = client.Close(); server.stop() }, nil
}

// redisRequests are the commands that a sidecar sends. Redis also counts those that its functions call.
func redisRequests(ctx context.Context, client *goredis.Client) (sum int64, err error) {
	text, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	sent := []string{"fcall", "fcall_ro", "function", "subscribe", "unsubscribe", "ping", "hello", "client", "auth", "select", "script", "evalsha", "eval"}
	for line := range strings.Lines(text) {
		name, figures, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		name, _, _ = strings.Cut(name, "|")
		if !ok || !slices.Contains(sent, name) {
			continue
		}
		calls, _, _ := strings.Cut(figures, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO commandstats: %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

func keepMySQL(*bench) (*keepStore, func(), error) {
	m, err := startMariaDB()
	if err != nil {
		return nil, nil, err
	}
	var own int64 // of the bench
	return &keepStore{
		name: "MariaDB", url: m.url, server: m.process, rivals: m.rivals,
		requests: func() (n int64, err error) {
			var name string
			err = m.db.QueryRow("SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
			own++
			return n - own, err
		},
	}, m.stop, nil
}

func keepEtcd(b *bench) (*keepStore, func(), error) {
	server, address, err := b.startPeer(startEtcd)
	if err != nil {
		return nil, nil, err
	}
	return &keepStore{
		name: "etcd", url: "etcd://" + address, server: server,
		requests: func() (sum int64, err error) {
			r, err := etcdAPI{address}.requests()
			for _, n := range r.handled {
				sum += n
			}
			return sum, err
		},
		rivals: []rival{{name: "etcd's own Mutex", args: []string{"etcd", address}}},
	}, server.stop, nil
}

// sidecars starts so many on the store. stop ends them, after an error too.
func (s *keepStore) sidecars(b *bench, n int, keep string) (all []*process, stop func(), err error) {
	stop = func() {
		for _, p := range all {
			p.stop()
		}
	}
	for i := range n {
		settings := append([]string{"STORE_URL=" + s.url, keep}, s.settings...)
		p, err := b.sidecar(fmt.Sprintf("p12%s-%s-%d", s.id, strings.TrimPrefix(keep, "KEEP="), i), settings...)
		if err != nil {
			return all, stop, err
		}
		all = append(all, p)
	}
	return all, stop, nil
}

// kept is a sidecar that keeps keys, or several, in turns with others.
type kept struct {
	*keepStore
	sidecars []*process
	runs
	requests []float64 // for 1,000 pairs
}

// measure runs a load once, and counts the store's requests.
func (k *kept) measure(b *bench, operation string, connections int) (run, error) {
	before, err := k.keepStore.requests()
	if err != nil {
		return run{}, err
	}
	r, err := b.once(operation, connections, k.sidecars...)
	if err != nil {
		return run{}, fmt.Errorf("%s: %w", k.name, err)
	}
	after, err := k.keepStore.requests()
	if err != nil {
		return run{}, err
	}
	k.runs = append(k.runs, r)
	k.requests = append(k.requests, 1000*float64(after-before)/float64(max(r.Operations, 1)))
	return r, nil
}

// pairs are those of all rounds.
func (k *kept) pairs() (n int64) {
	for _, r := range k.runs {
		n += r.Operations
	}
	return n
}

// counts says how many grants were made without the store, and how many keys were recalled, since the sidecars started.
func (k *kept) counts() (string, error) {
	sums := make(map[string]float64)
	for _, p := range k.sidecars {
		c, err := dial(p.socket)
		if err != nil {
			return "", err
		}
		err = c.roundTrip([]byte("GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n"))
		c.close()
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(c.body)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				sums[name] += n
			}
		}
	}
	return fmt.Sprintf("%.0f without the store; %.0f recalls that it has paid to wait for, %.0f others", sums["locksidecar_kept_grants_total"],
		sums[`locksidecar_recalls_total{paid="true"}`], sums[`locksidecar_recalls_total{paid="false"}`]), nil
}

// eachKept starts all stores, a sidecar that keeps keys on each, and one on memory:// beside. stop ends them, after an error too.
func (b *bench) eachKept(id string) (all []*kept, memory *process, stop func(), err error) {
	stores, stopStores, err := b.keepStores()
	ends := []func(){stopStores}
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	if err != nil {
		return nil, nil, stop, err
	}
	if memory, err = b.sidecar(id+"memory", "STORE_URL=memory://", keepFor); err != nil {
		return nil, nil, stop, err
	}
	ends = append(ends, memory.stop)
	for _, s := range stores {
		sidecars, end, err := s.sidecars(b, 1, keepFor)
		ends = append(ends, end)
		if err != nil {
			return nil, nil, stop, err
		}
		all = append(all, &kept{keepStore: s, sidecars: sidecars})
	}
	return all, memory, stop, nil
}

// rival measures another lock on the server.
func (s *keepStore) rival(b *bench, r rival, connections int) (run, error) {
	peers := filepath.Join(b.folder, "peers")
	load, err := b.loadBy(exec.Command(peers, append(slices.Clone(r.args), strconv.Itoa(connections))...))
	return b.runOnce(load, err, []*process{s.server})
}

// keepUses is how often a key is used before somebody elsewhere wants it: often enough that keeping has paid.
const keepUses = 6

// keeps has a client's sidecar keep a key. It reports whether the last grant was one without the store, which is the token after
// the last one.
func (c *conn) keeps(key string) (kept bool, err error) {
	last := int64(0)
	for range 2 * keepUses {
		if _, err := c.acquire(key, nil); err != nil {
			return false, err
		}
		token, err := c.tokenNumber()
		if err != nil {
			return false, err
		}
		kept, last = token == last+1, token
		if _, err := c.release(key, nil); err != nil {
			return false, err
		}
	}
	return kept, nil
}

// timed is how long a call takes until its answer, in milliseconds.
func (c *conn) timed(key string, body []byte) (ms float64, err error) {
	_ = c.SetDeadline(time.Now().Add(handOffWait + 5*time.Second))
	request := fmt.Appendf(nil, "PUT /v1/locks/%s HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
	began := time.Now()
	err = c.roundTrip(request)
	return milliseconds(time.Since(began)), err
}

var errNotKept = errors.New("no key is kept: is this sidecar older than kept keys, or is the machine too slow for KEEP?")
