package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
)

// growHot measures one key that ever more clients want and release at once: here, and with what
// people use otherwise.
func (b *bench) growHot() (*curve, error) {
	const rate, wait = "rate (grants/s)", "p99 of a pair (ms)"
	g := &curve{
		name: "hot", title: "One hot key over clients", x: "clients",
		about: "All clients want one key, and release it as soon as they have it. Sidecars, `pg_advisory_lock` (pgbench; it writes nothing) and one client's updates of one row use the same PostgreSQL. A client of Redis (without persistence) that is refused asks again after a random time of up to 10 ms, so there is no queue; etcd is asked by its `concurrency.Mutex`, on a session for each client. The p99 is that of a pair: the wait and the release.",
		columns: []column{
			{"two sidecars, grants/s", rate, "%.0f"},
			{"one sidecar, grants/s", rate, "%.0f"},
			{"Redis, grants/s", rate, "%.0f"},
			{"etcd, grants/s", rate, "%.0f"},
			{"memory://, grants/s", "", "%.0f"},
			{"two sidecars, p99 (ms)", wait, "%.1f"},
			{"one sidecar, p99 (ms)", wait, "%.1f"},
			{"Redis, p99 (ms)", wait, "%.1f"},
			{"etcd, p99 (ms)", wait, "%.1f"},
			{"memory://, p99 (ms)", "", "%.1f"},
			{"pg_advisory_lock, grants/s", rate, "%.0f"},
			{"one client's updates, 1/s", "", "%.0f"},
		},
	}
	h, err := b.hotKeys("hot", 2)
	if err != nil {
		return nil, err
	}
	defer h.stop()
	redis, err := b.hotPeer(h, "redis", others[0].start)
	if err != nil {
		return nil, err
	}
	etcd, err := b.hotPeer(h, "etcd", startEtcd)
	if err != nil {
		return nil, err
	}
	ours := func(servers ...*process) func(int) (run, error) {
		return func(clients int) (run, error) { return b.once("hot", clients, servers...) }
	}
	loads := []func(clients int) (run, error){ours(h.sidecars...), ours(h.sidecars[0]), redis, etcd, ours(h.memory)}
	for _, n := range b.upTo(1, 4, 16, 32, 64, 128) {
		var rates, waits []float64
		for _, load := range loads {
			r, err := load(n)
			if err != nil {
				return nil, err
			}
			rates, waits = append(rates, r.rate()), append(waits, milliseconds(r.P99))
		}
		advisory, err := b.pgbench(h.url, hotAdvisory, n)
		if err != nil {
			return nil, err
		}
		updates, err := b.pgbench(h.url, hotUpdate, 1)
		if err != nil {
			return nil, err
		}
		g.note(b, n, append(append(rates, waits...), advisory, updates)...)
	}
	return g, nil
}

// hotPeer starts another server, which ends with the hot keys', and returns what loads it.
func (b *bench) hotPeer(h *hotKeys, program string, start starter) (func(clients int) (run, error), error) {
	binary := filepath.Join(b.folder, "peers")
	if err := b.buildPeers(binary); err != nil {
		return nil, err
	}
	p, address, err := b.startPeer(start)
	if err != nil {
		return nil, err
	}
	h.ends = append(h.ends, p.stop)
	return func(clients int) (run, error) {
		l, err := b.loadBy(exec.Command(binary, program, address, strconv.Itoa(clients), "hot"))
		return b.runOnce(l, err, []*process{p})
	}, nil
}
