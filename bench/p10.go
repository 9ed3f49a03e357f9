package main

import (
	"fmt"
	"os/exec"
)

const (
	hotTable  = `CREATE TABLE direct_hot (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); INSERT INTO direct_hot VALUES (1, 0)`
	hotUpdate = `UPDATE direct_hot SET n = n + 1 WHERE id = 1;
`
	hotAdvisory = `SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(1);
`
)

// p10 measures a key that 32 clients behind two sidecars want at the same time,
// against one client that commits one-row updates: no grant is told before it is
// durable, and one follows the other, so that is the ceiling. Beside it stands an
// advisory lock with as many clients, which writes nothing.
func (b *bench) p10() ([]result, error) {
	const clients, goal = 32, 0.3
	p, err := b.pods("p10")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	if out, err := exec.CommandContext(b.ctx, "psql", p.url, "-qc", hotTable).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("psql: %w\n%s", err, out)
	}
	load, err := b.loader("hot", clients, p.a, p.b)
	if err != nil {
		return nil, err
	}
	defer load.stop()
	var ours runs
	var updates, advisory []float64
	for range b.rounds {
		r, err := load.run(b.length, p.a, p.b)
		if err != nil {
			return nil, err
		}
		u, err := b.pgbench(p.url, hotUpdate, 1)
		if err != nil {
			return nil, err
		}
		a, err := b.pgbench(p.url, hotAdvisory, clients)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P10 %d clients: %.0f grants/s, p99 of a pair %.1f ms, %s; one client's updates: %.0f/s; advisory lock: %.0f/s",
			clients, r.rate(), r.P99.Seconds()*1000, runs{r}.cost(), u, a)
		ours, updates, advisory = append(ours, r), append(updates, u), append(advisory, a)
	}
	row := func(peer string, peers []float64) result {
		ratio := median(ratios(ours.rates(), peers))
		return result{
			id: "P10", what: fmt.Sprintf("one hot key, %d clients behind two sidecars, beside %s", clients, peer),
			figure: fmt.Sprintf("%.0f grants/s, %s", median(ours.rates()), ours.cost()), peer: fmt.Sprintf("%s: %.0f/s", peer, median(peers)),
			ratio: fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	ceiling := row("one client's durable one-row updates", updates)
	ceiling.goal, ceiling.reached = fmt.Sprintf("at least %.1f", goal), ceiling.score >= goal
	return []result{ceiling, row(fmt.Sprintf("`pg_advisory_lock` with %d clients", clients), advisory)}, nil
}
