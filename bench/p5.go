package main

import (
	"fmt"
	"time"
)

// renewInterval is a third of the default TTL.
const renewInterval = 5 * time.Second

// renewalsIn is how many renewals a sidecar sends at most in a time: each is up to
// a tenth of the interval early, and the first may come at once.
func renewalsIn(d time.Duration) int64 { return int64(d/(renewInterval*9/10)) + 1 }

// p5 measures what many locks cost that are only held.
func (b *bench) p5() ([]result, error) {
	const (
		sessions, locksEach = 100, 1000
		locks               = sessions * locksEach
		settle              = renewInterval
		watched             = 6 * renewInterval
		maxCPU              = 0.01
		maxSize             = 80e6
	)
	bound := renewalsIn(watched)
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	sidecar, err := b.sidecar("p5", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	counter, err := b.counter(url)
	if err != nil {
		return nil, err
	}
	defer counter.close()
	idle, _ := sidecar.memory()
	conns, err := dialMany([]string{sidecar.socket}, sessions)
	defer closeAll(conns) // first of all: a sidecar with locks drains them
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := onEach(conns, func(c *conn, i int) error { return c.hold(b, i, locksEach) }); err != nil {
		return nil, err
	}
	b.log.Printf("P5 %d locks acquired in %.1f s", locks, time.Since(began).Seconds())
	if err := b.rest(settle); err != nil {
		return nil, err
	}
	// The names of the tables are part of the documentation.
	leases, err := counter.number(`SELECT count(DISTINCT l.lease_id) FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id`)
	if err != nil {
		return nil, err
	}
	if err := counter.reset(); err != nil {
		return nil, err
	}
	before, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	if err := b.rest(watched); err != nil {
		return nil, err
	}
	after, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	share := (after - before).Seconds() / time.Since(began).Seconds()
	rss, anonymous := sidecar.memory()
	renewals, rows, err := counter.count("/* locksidecar:lease_renew */")
	if err != nil {
		return nil, err
	}
	all, _, err := counter.count("")
	if err != nil {
		return nil, err
	}
	held, err := counter.held()
	if err != nil {
		return nil, err
	}
	if held != locks {
		return nil, fmt.Errorf("of %d locks only %d were held at the end", locks, held)
	}
	b.log.Printf("P5 %d locks held for %s: %d statements, %d of them renewals, of %d rows; leases: %d; %.2f%% of a core; %.1f MiB resident, %.1f MiB anonymous, %.1f MiB resident without locks, %.1f MiB at the most",
		held, watched, all, renewals, rows, leases, share*100, float64(rss)/mib, float64(anonymous)/mib, float64(idle)/mib, float64(sidecar.status("VmHWM"))/mib)
	row := func(what, figure, goal string, reached bool) result {
		return result{id: "P5", what: what, figure: figure, peer: "–", ratio: "–", goal: goal, reached: reached}
	}
	memory := row("resident memory at the end", fmt.Sprintf("%.1f MiB", float64(rss)/mib), "at most 80 MB", float64(rss) <= maxSize)
	memory.score, memory.less = float64(rss)/mib, true
	return []result{
		row(fmt.Sprintf("%d locks of %d sessions: renewal statements in %d intervals (%s)", locks, sessions, watched/renewInterval, watched),
			fmt.Sprintf("%d (%d statements in all)", renewals, all),
			fmt.Sprintf("at most %d: one an interval, each up to a tenth early", bound), renewals >= 1 && renewals <= bound),
		row("rows that a renewal touches", fmt.Sprintf("%.2f", float64(rows)/float64(max(renewals, 1))),
			fmt.Sprintf("as many as leases: %d", leases), renewals > 0 && rows == renewals*leases),
		row("processor time of the sidecar", fmt.Sprintf("%.2f%% of a core", share*100), "less than 1%", share < maxCPU),
		memory,
	}, nil
}

// hold acquires locks, with keys of 32 bytes, that the i-th connection keeps.
func (c *conn) hold(b *bench, i, locks int) (err error) {
	request := make([]byte, 0, 256)
	for n := range locks {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		if request, err = c.acquire(fmt.Sprintf("bench:%026d", i*locks+n), request); err != nil {
			return err
		}
	}
	return nil
}
