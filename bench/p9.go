package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// fleet is many sidecars on one PostgreSQL, each a process of its own with one lock
// of one app, and so one lease.
type fleet struct {
	*counter
	cluster  *pgtest.Cluster
	b        *bench
	url      string
	sidecars []*process
	apps     []*conn
}

// fleetSettle is longer than a sidecar keeps what it opened for an acquire: what was
// idle for 30 s is closed by a look each 15 s.
const fleetSettle = 50 * time.Second

// fleet starts PostgreSQL for as many sidecars, and none of them yet.
func (b *bench) fleet(most int) (*fleet, error) {
	const others = 100
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", fmt.Sprint(4*most+others)))
	if err != nil {
		return nil, err
	}
	f := &fleet{cluster: cluster, b: b, url: url}
	if f.counter, err = b.counter(url); err != nil {
		cluster.Stop()
		return nil, err
	}
	return f, nil
}

// grow starts sidecars, a few at a time, until there are n.
func (f *fleet) grow(n int) error {
	const atOnce = 8
	for len(f.sidecars) < n {
		batch := min(atOnce, n-len(f.sidecars))
		if len(f.sidecars) == 0 {
			batch = 1 // it makes the schema
		}
		var (
			wg      sync.WaitGroup
			started = make([]*process, batch)
			errs    = make([]error, batch)
		)
		for i := range batch {
			wg.Go(func() {
				started[i], errs[i] = f.b.sidecar(fmt.Sprintf("f%d", len(f.sidecars)+i), "STORE_URL="+f.url)
			})
		}
		wg.Wait()
		for _, s := range started {
			if s != nil {
				f.sidecars = append(f.sidecars, s)
			}
		}
		if err := errors.Join(append(errs, f.b.ctx.Err())...); err != nil {
			return err
		}
	}
	for i := len(f.apps); i < n; i++ {
		app, err := dial(f.sidecars[i].socket)
		if err != nil {
			return err
		}
		f.apps = append(f.apps, app)
		if _, err := app.acquire(fmt.Sprintf("bench:%d", i), nil); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) stop() {
	// Nobody needs what they would tidy up, all at the same time.
	for _, s := range f.sidecars {
		_ = s.cmd.Process.Kill()
	}
	for _, s := range f.sidecars {
		_ = s.cmd.Wait()
	}
	closeAll(f.apps)
	f.counter.close()
	f.cluster.Stop()
}

// idle is what idle sidecars cost in a time.
type idle struct {
	renewals, statements int64
	each                 string    // kind of statement
	connections          []float64 // open, as seen now and then
	server, sidecars     time.Duration
}

// watch lets them idle.
func (f *fleet) watch(length time.Duration) (idle, error) {
	const look = 250 * time.Millisecond
	if err := f.reset(); err != nil {
		return idle{}, err
	}
	var seen idle
	before, err := f.cpu()
	if err != nil {
		return idle{}, err
	}
	for began := time.Now(); time.Since(began) < length; {
		if err := f.b.rest(look); err != nil {
			return idle{}, err
		}
		n, err := f.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'locksidecar'`)
		if err != nil {
			return idle{}, err
		}
		seen.connections = append(seen.connections, float64(n))
	}
	after, err := f.cpu()
	if err != nil {
		return idle{}, err
	}
	seen.server, seen.sidecars = after.server-before.server, after.sidecars-before.sidecars
	if seen.renewals, _, err = f.count("/* locksidecar:lease_renew */"); err != nil {
		return idle{}, err
	}
	if seen.statements, _, err = f.count(""); err != nil {
		return idle{}, err
	}
	if seen.each, err = f.each(); err != nil {
		return idle{}, err
	}
	held, err := f.held()
	if err == nil && held != int64(len(f.apps)) {
		err = fmt.Errorf("of %d locks only %d were held at the end", len(f.apps), held)
	}
	return seen, err
}

// cpu is what PostgreSQL and the sidecars have used.
func (f *fleet) cpu() (used idle, err error) {
	if used.server, err = f.serverCPU(); err != nil {
		return used, err
	}
	used.sidecars, err = cpuOf(f.sidecars)
	return used, err
}

// p9 measures what 200 idle sidecars cost the database.
func (b *bench) p9() ([]result, error) {
	const (
		sidecars = 200
		watched  = 6 * renewInterval
	)
	f, err := b.fleet(sidecars)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	began := time.Now()
	if err := f.grow(sidecars); err != nil {
		return nil, err
	}
	b.log.Printf("P9 %d sidecars started in %.1f s", sidecars, time.Since(began).Seconds())
	if err := b.rest(fleetSettle); err != nil {
		return nil, err
	}
	seen, err := f.watch(watched)
	if err != nil {
		return nil, err
	}
	times, cpu, err := b.notify(f.counter)
	if err != nil {
		return nil, err
	}
	most := p99(seen.connections)
	bound := float64(renewalsIn(watched))
	each := float64(seen.statements) / sidecars
	b.log.Printf("P9 %d idle sidecars in %s: %d statements (%s); connections: median %.0f, p99 %.0f; processor time: PostgreSQL %.2f s, all sidecars %.2f s",
		sidecars, watched, seen.statements, seen.each, median(seen.connections), most, seen.server.Seconds(), seen.sidecars.Seconds())
	wakes := float64(cpu.Microseconds()) / float64(len(times))
	b.log.Printf("P9 %d notifications beside them: median %.3f ms, p99 %.3f ms, PostgreSQL %.1f µs each", len(times), median(times), p99(times), wakes)
	row := func(what, figure, goal string, score float64, reached bool) result {
		return result{id: "P9", what: what, figure: figure, peer: none, ratio: none, goal: goal, score: score, less: true, reached: reached}
	}
	return []result{
		row(fmt.Sprintf("%d idle sidecars with a lease each: statements of a sidecar in %d intervals (%s)", sidecars, watched/renewInterval, watched),
			fmt.Sprintf("%.2f (%.2f of them renewals)", each, float64(seen.renewals)/sidecars),
			fmt.Sprintf("at most %.0f: one an interval, each up to a tenth early", bound), each, seen.renewals >= sidecars && each <= bound),
		row("open connections of a sidecar, p99 of what was seen", fmt.Sprintf("%.2f (median %.2f)", most/sidecars, median(seen.connections)/sidecars),
			"at most 1", most/sidecars, most <= sidecars),
		row("processor time of PostgreSQL for all of them", fmt.Sprintf("%.2f%% of a core", seen.server.Seconds()/watched.Seconds()*100), none, 0, true),
		row("processor time of PostgreSQL for a NOTIFY of others beside them", fmt.Sprintf("%.0f µs", wakes), none, 0, true),
	}, nil
}
