package main

import (
	"errors"
	"fmt"
	"time"
)

// loaded is a run, and what it cost the database.
type loaded struct {
	run
	statements, wal int64
	database        time.Duration // processor time
}

// loaded runs an operation, after a while to come into its stride, and counts.
func (b *bench) loaded(c *counter, operation string, connections int, sidecars ...*process) (r loaded, err error) {
	const stride = 4 // part of a measurement's length
	l, err := b.loader(operation, connections, sidecars...)
	if err != nil {
		return r, err
	}
	defer l.stop()
	if _, err := l.run(b.length/stride, sidecars...); err != nil {
		return r, err
	}
	if err := c.reset(); err != nil {
		return r, err
	}
	const written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
	wal, err := c.number(written)
	if err != nil {
		return r, err
	}
	cpu, err := c.serverCPU()
	if err != nil {
		return r, err
	}
	if r.run, err = l.run(b.length, sidecars...); err != nil {
		return r, err
	}
	after, err := c.serverCPU()
	if err != nil {
		return r, err
	}
	r.database = after - cpu
	if r.wal, err = c.number(written); err != nil {
		return r, err
	}
	r.wal -= wal
	r.statements, _, err = c.count("")
	return r, err
}

func (r loaded) perOperation(n int64) float64 { return float64(n) / float64(max(r.Operations, 1)) }

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// growConnections measures acquire and release on PostgreSQL.
func (b *bench) growConnections() (*curve, error) {
	g := &curve{
		name: "connections", title: "Acquire and release over connections", x: "connections",
		about: "One sidecar on PostgreSQL; each connection acquires and releases a key of its own, again and again. The times are those of a pair.",
		columns: []column{
			{"pairs/s", "rate (pairs/s)", "%.0f"},
			{"median (ms)", "time of a pair (ms)", "%.2f"},
			{"p99 (ms)", "time of a pair (ms)", "%.2f"},
			{"statements a pair", "SQL statements a pair", "%.3f"},
			{"WAL bytes a pair", "WAL (bytes a pair)", "%.0f"},
			{"sidecar (µs a pair)", "processor time (µs a pair)", "%.1f"},
			{"PostgreSQL (µs a pair)", "processor time (µs a pair)", "%.1f"},
			{"the load itself (µs a pair)", "processor time (µs a pair)", "%.1f"},
		},
	}
	sidecar, c, stop, err := b.onPostgres("connections")
	if err != nil {
		return nil, err
	}
	defer stop()
	for _, n := range b.upTo(1, 4, 16, 64, 256, 1024, 4096) {
		r, err := b.loaded(c, "pair", n, sidecar)
		if err != nil {
			return nil, err
		}
		g.note(b, n, r.rate(), milliseconds(r.Median), milliseconds(r.P99), r.perOperation(r.statements), r.perOperation(r.wal),
			r.each(r.server), r.each(r.database), r.each(r.CPU))
	}
	return g, nil
}

// onPostgres starts a sidecar on a database of its own.
func (b *bench) onPostgres(name string) (sidecar *process, c *counter, stop func(), err error) {
	cluster, url, err := b.database()
	if err != nil {
		return nil, nil, nil, err
	}
	if sidecar, err = b.sidecar(name, "STORE_URL="+url); err != nil {
		cluster.Stop()
		return nil, nil, nil, err
	}
	if c, err = b.counter(url); err != nil {
		sidecar.stop()
		cluster.Stop()
		return nil, nil, nil, err
	}
	return sidecar, c, func() {
		c.close()
		sidecar.stop()
		cluster.Stop()
	}, nil
}

// growRows measures acquires of new keys, while the table of locks has ever more rows.
func (b *bench) growRows() (*curve, error) {
	g := &curve{
		name: "rows", title: "Acquire over the rows of the table of locks", x: "rows",
		about: "The table is filled by SQL with locks that somebody else holds; then keys are acquired that lie anywhere between them, on 1 and on 64 connections, and kept until the connection ends. Before each measurement stand VACUUM ANALYZE and CHECKPOINT, so that WAL has whole pages of the table and its index.",
		columns: []column{
			{"median, 1 connection (ms)", "time of an acquire (ms)", "%.2f"},
			{"p99, 1 connection (ms)", "time of an acquire (ms)", "%.2f"},
			{"median, 64 (ms)", "time of an acquire (ms)", "%.2f"},
			{"p99, 64 (ms)", "time of an acquire (ms)", "%.2f"},
			{"acquires/s, 64", "rate (acquires/s)", "%.0f"},
			{"WAL bytes an acquire, 64", "WAL (bytes an acquire)", "%.0f"},
			{"PostgreSQL, 64 (µs an acquire)", "processor time (µs an acquire)", "%.1f"},
			{"table and index (MiB)", "", "%.0f"},
		},
	}
	sidecar, c, stop, err := b.onPostgres("rows")
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := c.exec("SET work_mem = '512MB'"); err != nil { // to sort what is filled in
		return nil, err
	}
	there := 0
	for _, n := range b.upTo(1_000, 10_000, 100_000, 1_000_000, 10_000_000) {
		if err := b.fill(c, there, n); err != nil {
			return nil, err
		}
		there = n
		one, err := b.loaded(c, "keep", 1, sidecar)
		if err != nil {
			return nil, err
		}
		many, err := b.loaded(c, "keep", 64, sidecar)
		if err != nil {
			return nil, err
		}
		size, err := c.number("SELECT pg_total_relation_size('locksidecar.locks')")
		if err != nil {
			return nil, err
		}
		g.note(b, n, milliseconds(one.Median), milliseconds(one.P99), milliseconds(many.Median), milliseconds(many.P99), many.rate(),
			many.perOperation(many.wal), many.each(many.database), float64(size)/mib)
	}
	return g, nil
}

// fill adds locks, from the first to the last, which leases of nobody's hold.
func (b *bench) fill(c *counter, from, to int) error {
	// So that progress is seen, and sorting fits into memory. Each goes over the whole
	// index, and after a checkpoint that is all of it in WAL.
	const atOnce = 3_000_000
	for first := from + 1; first <= to; first += atOnce {
		last := min(first+atOnce-1, to)
		began := time.Now()
		// In the order of the index: page after page, instead of anywhere for each row.
		if err := c.exec(fmt.Sprintf(`WITH lease AS (
				INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
				VALUES (gen_random_uuid(), 'bench', 'bench', false, '1 day', clock_timestamp() + interval '1 day') RETURNING id)
			INSERT INTO locksidecar.locks (namespace, key, lease_id, token, attempt_id, acquired_at)
			SELECT 'default', k.key, lease.id, k.n, gen_random_uuid(), clock_timestamp()
			FROM lease, (SELECT n, md5(n::text) AS key FROM generate_series(%d, %d) n ORDER BY key) k`, first, last)); err != nil {
			return err
		}
		b.log.Printf("growth: the table is filled up to %d rows; the last %d took %.0f s", last, last-first+1, time.Since(began).Seconds())
	}
	return errors.Join(c.exec("VACUUM ANALYZE locksidecar.locks"), c.exec("CHECKPOINT"))
}
