package main

import (
	"fmt"
	"strconv"
	"time"
)

// p11 measures shared locks behind two sidecars on PostgreSQL: a semaphore, many readers of one key, and a writer
// among readers.
func (b *bench) p11() (results []result, err error) {
	h, err := b.hotKeys("p11", 2)
	if err != nil {
		return nil, err
	}
	defer h.stop()
	count, err := b.counter(h.url)
	if err != nil {
		return nil, err
	}
	defer count.close()
	for _, measure := range []func(*hotKeys, *counter) ([]result, error){b.semaphore, b.readers, b.writers} {
		rows, err := measure(h, count)
		if err != nil {
			return nil, err
		}
		results = append(results, rows...)
	}
	return results, nil
}

// semaphore measures clients that want one of its places, and release it at once. An exclusive key that as many
// clients want, and one client that commits updates of one row, stand beside it.
func (b *bench) semaphore(h *hotKeys, _ *counter) ([]result, error) {
	const clients = 64
	var semaphore, exclusive runs
	var updates []float64
	for range b.rounds {
		for _, o := range []struct {
			what string
			to   *runs
		}{{"semaphore", &semaphore}, {"hot", &exclusive}} {
			r, err := b.once(o.what, clients, h.sidecars...)
			if err != nil {
				return nil, err
			}
			*o.to = append(*o.to, r)
			b.log.Printf("P11a %s, %d clients of %d sidecars: %.0f grants/s, p99 of a pair %.1f ms, %s",
				o.what, clients, len(h.sidecars), r.rate(), milliseconds(r.P99), runs{r}.cost())
		}
		u, err := b.pgbench(h.url, hotUpdate, 1)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P11a one client's updates: %.0f/s", u)
		updates = append(updates, u)
	}
	row := func(peer string, peers []float64) result {
		ratio := median(ratios(semaphore.rates(), peers))
		return result{
			id: "P11a", what: fmt.Sprintf("a semaphore of %d, %d clients, sidecars: %d, beside %s", semaphoreLimit, clients, len(h.sidecars), peer),
			figure: fmt.Sprintf("%.0f grants/s, %s", median(semaphore.rates()), semaphore.cost()), peer: fmt.Sprintf("%s: %.0f/s", peer, median(peers)),
			ratio: fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	return []result{row("one exclusive key", exclusive.rates()), row("one client's durable one-row updates", updates)}, nil
}

// crowd is what it took until many calls held what they asked for, all at the same time.
type crowd struct {
	length     time.Duration
	statements int64
	each       string // kind of statement
}

// readers measures calls that share one key, sent at the same time. As many calls for keys of their own stand beside it.
func (b *bench) readers(h *hotKeys, counter *counter) ([]result, error) {
	const clients = 1000
	conns, err := dialMany([]string{h.sidecars[0].socket, h.sidecars[1].socket}, clients)
	defer closeAll(conns)
	if err != nil {
		return nil, err
	}
	own := func(i int) string { return "bench:own:" + strconv.Itoa(i) }
	one := func(int) string { return readKey }
	kinds := []struct {
		what, body string
		key        func(i int) string
		rates      []float64
		times      []float64
		statements []float64
	}{
		{what: "readers of one key", key: one, body: `{"mode":"shared"}`},
		{what: "readers of one key that would wait", key: one, body: `{"mode":"shared","wait_ms":20000}`},
		{what: "keys of their own", key: own},
	}
	for range b.rounds {
		for i := range kinds {
			k := &kinds[i]
			c, err := b.crowd(conns, counter, k.key, k.body)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k.what, err)
			}
			k.rates, k.times = append(k.rates, clients/c.length.Seconds()), append(k.times, milliseconds(c.length))
			k.statements = append(k.statements, float64(c.statements))
			b.log.Printf("P11b %d calls, %s: all hold after %.0f ms, %d statements (%s)", clients, k.what, milliseconds(c.length), c.statements, c.each)
		}
	}
	var results []result
	peers := &kinds[len(kinds)-1]
	for i := range kinds[:len(kinds)-1] {
		k := &kinds[i]
		ratio := median(ratios(k.rates, peers.rates))
		results = append(results, result{
			id: "P11b", what: fmt.Sprintf("%d %s, all at once, sidecars: %d", clients, k.what, len(h.sidecars)),
			figure: fmt.Sprintf("%.0f grants/s, all hold after %.0f ms, %.0f statements", median(k.rates), median(k.times), median(k.statements)),
			peer:   fmt.Sprintf("%s: %.0f grants/s, %.0f statements", peers.what, median(peers.rates), median(peers.statements)),
			ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		})
	}
	return results, nil
}

// crowd has all connections acquire at the same time. When all hold, it checks that, and they release.
func (b *bench) crowd(conns []*conn, counter *counter, key func(i int) string, body string) (c crowd, err error) {
	if err := counter.reset(); err != nil {
		return c, err
	}
	began := time.Now()
	if err := onEach(conns, func(c *conn, i int) error {
		_, err := c.call(nil, "PUT", key(i), []byte(body), 200)
		return err
	}); err != nil {
		return c, err
	}
	c.length = time.Since(began)
	if c.statements, _, err = counter.count(""); err != nil {
		return c, err
	}
	if c.each, err = counter.each(); err != nil {
		return c, err
	}
	held, err := counter.number(`SELECT (SELECT count(*) FROM locksidecar.shares) +
		(SELECT count(*) FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id)`)
	if err != nil {
		return c, err
	}
	if held != int64(len(conns)) {
		return c, fmt.Errorf("%d calls were granted, and %d locks are held", len(conns), held)
	}
	return c, onEach(conns, func(c *conn, i int) error {
		_, err := c.release(key(i), nil)
		return err
	})
}
