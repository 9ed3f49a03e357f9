package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// growListeners measures what a notification costs PostgreSQL while ever more
// connections listen, each on a channel of its own, as those of sidecars do.
func (b *bench) growListeners() (*curve, error) {
	const others = 100
	g := &curve{
		name: "listeners", title: "A notification over listening connections", x: "listening connections",
		about: "No sidecar: each connection listens on a channel of its own, and one more notifies a channel on which nobody does, again and again. PostgreSQL wakes every process that listens in the database, whatever its channel.",
		columns: []column{
			{"median (ms)", "time of a NOTIFY (ms)", "%.3f"},
			{"p99 (ms)", "time of a NOTIFY (ms)", "%.3f"},
			{"notifications/s", "rate (1/s)", "%.0f"},
			{"PostgreSQL (µs a notification)", "processor time (µs a notification)", "%.1f"},
		},
	}
	steps := b.upTo(1, 10, 100, 500, 1_000)
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", fmt.Sprint(steps[len(steps)-1]+others)))
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	c, err := b.counter(url)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var listeners []*pgx.Conn
	defer func() {
		for _, l := range listeners {
			_ = l.Close(context.WithoutCancel(b.ctx))
		}
	}()
	for _, n := range steps {
		for len(listeners) < n {
			l, err := pgx.Connect(b.ctx, url)
			if err != nil {
				return nil, err
			}
			listeners = append(listeners, l)
			if _, err := l.Exec(b.ctx, fmt.Sprintf("LISTEN bench_%d", len(listeners))); err != nil {
				return nil, err
			}
		}
		if err := b.rest(time.Second); err != nil { // the new processes come to rest
			return nil, err
		}
		times, cpu, err := b.notify(c)
		if err != nil {
			return nil, err
		}
		g.note(b, n, median(times), p99(times), float64(len(times))/b.length.Seconds(), float64(cpu.Microseconds())/float64(len(times)))
	}
	return g, nil
}

// notify notifies for a time, and returns how many milliseconds each took, and what
// all of them cost PostgreSQL.
func (b *bench) notify(c *counter) (times []float64, cpu time.Duration, err error) {
	before, err := c.serverCPU()
	if err != nil {
		return nil, 0, err
	}
	for began := time.Now(); time.Since(began) < b.length; {
		from := time.Now()
		if err := c.exec("SELECT pg_notify('bench_nobody', '')"); err != nil {
			return nil, 0, err
		}
		times = append(times, milliseconds(time.Since(from)))
	}
	after, err := c.serverCPU()
	return times, after - before, err
}
