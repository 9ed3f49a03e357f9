package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// p6 measures how long it takes from a release to the grant of a waiter behind
// another sidecar, in turns with the least that two connections could do.
func (b *bench) p6() ([]result, error) {
	const goalMedian, goalP99 = 1.2, 4.0 // milliseconds
	p, err := b.pods("p6")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	direct, err := b.directHandOff(p)
	if err != nil {
		return nil, err
	}
	defer direct.close()
	holder, err := dial(p.a.socket)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	var ours, peers []float64
	round := func() error {
		if _, err := holder.acquire(handOffKey, nil); err != nil {
			return err
		}
		ms, err := p.handOff(func() error {
			_, err := holder.release(handOffKey, nil)
			return err
		})
		if err != nil {
			return err
		}
		d, err := direct.handOff()
		ours, peers = append(ours, ms), append(peers, d)
		return err
	}
	if err := round(); err != nil { // statements are prepared in it
		return nil, err
	}
	ours, peers = nil, nil
	if err := p.reset(); err != nil {
		return nil, err
	}
	began := time.Now()
	n, err := b.repeat(100*b.rounds, round)
	if err != nil {
		return nil, err
	}
	// The renewals of both sidecars look after the waiters, too.
	bound := 2 * renewalsIn(time.Since(began))
	checks, _, err := p.count("/* locksidecar:check */")
	if err != nil {
		return nil, err
	}
	all, _, err := p.count("")
	if err != nil {
		return nil, err
	}
	b.log.Printf("P6 %d hand-offs: median %.2f ms, p99 %.2f ms; direct %.2f ms, %.2f ms; %d statements, %d of them checks",
		n, median(ours), p99(ours), median(peers), p99(peers), all, checks)
	polls, err := b.checksOfWaiter(p, holder)
	if err != nil {
		return nil, err
	}
	row := func(what string, figure, peer, goal float64) result {
		return result{
			id: "P6", what: "hand-off to a waiter behind another sidecar, " + what,
			figure: fmt.Sprintf("%.2f ms (of %d)", figure, n), peer: fmt.Sprintf("direct: %.2f ms", peer), ratio: fmt.Sprintf("%.2f of direct", figure/peer),
			goal: fmt.Sprintf("at most %.1f ms", goal), reached: figure <= goal,
		}
	}
	middle := row("median", median(ours), median(peers), goalMedian)
	middle.score, middle.less = median(ours)/median(peers), true
	return []result{
		middle,
		row("p99", p99(ours), p99(peers), goalP99),
		{
			id: "P6", what: "waiters' checks of the store, a hand-off", peer: "–", ratio: "–",
			figure: fmt.Sprintf("%.2f (%.1f statements in all, from acquire to the waiter's release)", float64(checks)/float64(n), float64(all)/float64(n)),
			goal:   "none but one a renewal", reached: checks <= bound,
		},
		polls,
	}, nil
}

// checksOfWaiter counts how often a waiter's sidecar asks the store while nothing
// happens: the times of hand-offs are too short to tell polling.
func (b *bench) checksOfWaiter(p *pods, holder *conn) (result, error) {
	const quiet = 10 * time.Second
	bound := 1 + renewalsIn(quiet)
	if _, err := holder.acquire(handOffKey, nil); err != nil {
		return result{}, err
	}
	var checks int64
	_, err := p.handOff(func() error {
		if err := p.reset(); err != nil {
			return err
		}
		if err := b.rest(quiet); err != nil {
			return err
		}
		var err error
		if checks, _, err = p.count("/* locksidecar:check */"); err != nil {
			return err
		}
		_, err = holder.release(handOffKey, nil)
		return err
	})
	b.log.Printf("P6 a waiter that waits for %s: %d checks", quiet, checks)
	return result{
		id: "P6", what: fmt.Sprintf("checks of the store for a waiter that waits for %s", quiet), figure: fmt.Sprint(checks), peer: "–", ratio: "–",
		goal: fmt.Sprintf("at most %d: one a TTL, one a renewal", bound), reached: checks <= bound,
	}, err
}

// directHandOff is the peer of P6: two connections to a database of their own on
// the same server. One releases and notifies in one statement, which commits; the
// other, which listens, wakes up and looks.
type directHandOff struct {
	ctx              context.Context
	releaser, waiter *pgx.Conn
}

const (
	directHandOffTable = `CREATE TABLE direct_handoff (key text PRIMARY KEY, owner integer NOT NULL); INSERT INTO direct_handoff VALUES ('bench', 0)`
	directRelease      = `WITH released AS (UPDATE direct_handoff SET owner = owner + 1 WHERE key = $1 RETURNING key)
		SELECT pg_notify('direct_handoff', key) FROM released`
	directLook = `SELECT owner FROM direct_handoff WHERE key = $1`
)

func (b *bench) directHandOff(p *pods) (_ *directHandOff, err error) {
	url, err := p.cluster.MakeDatabase(b.ctx)
	if err != nil {
		return nil, err
	}
	d := &directHandOff{ctx: b.ctx}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.releaser, err = pgx.Connect(b.ctx, url); err != nil {
		return nil, err
	}
	if d.waiter, err = pgx.Connect(b.ctx, url); err != nil {
		return nil, err
	}
	if _, err = d.releaser.Exec(b.ctx, directHandOffTable); err != nil {
		return nil, err
	}
	_, err = d.waiter.Exec(b.ctx, "LISTEN direct_handoff")
	return d, err
}

func (d *directHandOff) close() {
	for _, c := range []*pgx.Conn{d.releaser, d.waiter} {
		if c != nil {
			_ = c.Close(context.WithoutCancel(d.ctx))
		}
	}
}

// handOff returns how long it takes, in milliseconds.
func (d *directHandOff) handOff() (float64, error) {
	ctx, cancel := context.WithTimeout(d.ctx, handOffWait)
	defer cancel()
	granted := make(chan grant, 1)
	go func() {
		_, err := d.waiter.WaitForNotification(ctx)
		if err == nil {
			var owner int
			err = d.waiter.QueryRow(ctx, directLook, "bench").Scan(&owner)
		}
		granted <- grant{at: time.Now(), err: err}
	}()
	pause()
	released := time.Now()
	_, err := d.releaser.Exec(ctx, directRelease, "bench")
	if err != nil {
		cancel()
	}
	g := <-granted
	if err == nil {
		err = g.err
	}
	if err != nil {
		return 0, fmt.Errorf("direct hand-off: %w", err)
	}
	return float64(g.at.Sub(released)) / float64(time.Millisecond), nil
}
