package main

import (
	"fmt"
	"sync/atomic"
	"time"
)

// growWatch is how long each step is watched.
const growWatch = 4 * renewInterval

// growLocks measures what renewals cost while ever more locks are held.
func (b *bench) growLocks() (*curve, error) {
	const sessions = 100
	g := &curve{
		name: "locks", title: "Renewals over held locks", x: "held locks",
		about: fmt.Sprintf("One sidecar on PostgreSQL; at each step up to %d more connections acquire what is missing and rest. Watched for %s a step, with a renewal each %s.", sessions, growWatch, renewInterval),
		columns: []column{
			{"renewals in the time", "renewal statements", "%.0f"},
			{"rows a renewal", "rows a renewal", "%.1f"},
			{"a renewal (ms of PostgreSQL's time)", "a renewal (ms)", "%.3f"},
			{"all statements in the time", "", "%.0f"},
			{"sidecar (% of a core)", "processor time (% of a core)", "%.3f"},
			{"resident memory (MiB)", "memory (MiB)", "%.0f"},
		},
	}
	sidecar, c, stop, err := b.onPostgres("locks")
	if err != nil {
		return nil, err
	}
	defer stop()
	var conns []*conn
	defer func() {
		_ = sidecar.cmd.Process.Kill() // it would take long to release them all
		closeAll(conns)
	}()
	held := 0
	for _, n := range b.upTo(1, 1_000, 10_000, 100_000, 1_000_000) {
		more, err := dialMany([]string{sidecar.socket}, min(sessions, n-held))
		conns = append(conns, more...)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := b.holdUpTo(more, held, n); err != nil {
			return nil, err
		}
		b.log.Printf("growth: %d locks are held; the last %d took %.1f s", n, n-held, time.Since(began).Seconds())
		held = n
		figures, err := b.renewals(c, sidecar, n)
		if err != nil {
			return nil, err
		}
		g.note(b, n, figures...)
	}
	return g, nil
}

// holdUpTo lets the connections acquire what is missing.
func (b *bench) holdUpTo(conns []*conn, held, n int) error {
	var next atomic.Int64
	next.Store(int64(held))
	return onEach(conns, func(c *conn, _ int) (err error) {
		var request []byte
		for i := next.Add(1); i <= int64(n); i = next.Add(1) {
			if request, err = c.acquire(fmt.Sprintf("bench:%026d", i), request); err != nil {
				return err
			}
		}
		return b.ctx.Err()
	})
}

// renewals watches the renewals of so many locks and returns growLocks' columns.
func (b *bench) renewals(c *counter, sidecar *process, locks int) ([]float64, error) {
	if err := b.rest(renewInterval); err != nil {
		return nil, err
	}
	if err := c.reset(); err != nil {
		return nil, err
	}
	before, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := b.rest(growWatch); err != nil {
		return nil, err
	}
	after, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	share := (after - before).Seconds() / time.Since(began).Seconds()
	const renewal = "/* locksidecar:lease_renew */"
	renewals, rows, err := c.count(renewal)
	if err != nil {
		return nil, err
	}
	microseconds, err := c.number(`SELECT coalesce(1000 * sum(total_exec_time) / sum(calls), 0)::bigint FROM pg_stat_statements WHERE starts_with(query, $1)`, renewal)
	if err != nil {
		return nil, err
	}
	all, _, err := c.count("")
	if err != nil {
		return nil, err
	}
	held, err := c.held()
	if err == nil && held != int64(locks) {
		err = fmt.Errorf("of %d locks only %d were held at the end", locks, held)
	}
	rss, _ := sidecar.memory()
	return []float64{
		float64(renewals), float64(rows) / float64(max(renewals, 1)), float64(microseconds) / 1000, float64(all), share * 100, float64(rss) / mib,
	}, err
}

// growSidecars measures what idle sidecars cost the database.
func (b *bench) growSidecars() (*curve, error) {
	g := &curve{
		name: "sidecars", title: "PostgreSQL's load over idle sidecars", x: "sidecars",
		about: fmt.Sprintf("Each sidecar is a process of its own, with one lock of one app, so one lease. Watched for %s a step, %s after the last has started.", growWatch, fleetSettle),
		columns: []column{
			{"statements/s", "SQL statements a second", "%.2f"},
			{"connections, median", "open connections", "%.0f"},
			{"connections, p99", "open connections", "%.0f"},
			{"PostgreSQL (% of a core)", "processor time (% of a core)", "%.2f"},
			{"all sidecars (% of a core)", "processor time (% of a core)", "%.2f"},
		},
	}
	steps := b.upTo(1, 20, 100, 500)
	f, err := b.fleet(steps[len(steps)-1])
	if err != nil {
		return nil, err
	}
	defer f.stop()
	for _, n := range steps {
		began := time.Now()
		if err := f.grow(n); err != nil {
			return nil, err
		}
		b.log.Printf("growth: %d sidecars run; it took %.1f s", n, time.Since(began).Seconds())
		if err := b.rest(fleetSettle); err != nil {
			return nil, err
		}
		seen, err := f.watch(growWatch)
		if err != nil {
			return nil, err
		}
		b.log.Printf("growth: %d sidecars: %s", n, seen.each)
		seconds := growWatch.Seconds()
		g.note(b, n, float64(seen.statements)/seconds, median(seen.connections), p99(seen.connections),
			seen.server.Seconds()/seconds*100, seen.sidecars.Seconds()/seconds*100)
	}
	return g, nil
}
