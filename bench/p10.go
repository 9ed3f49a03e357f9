package main

import "fmt"

// p10 measures a key that 32 clients want at the same time and release at once. One sidecar
// on PostgreSQL stands beside the same on memory://. Two and eight sidecars stand beside one
// client that commits updates of one row: a grant to another sidecar is told after it is
// durable, and one follows the other.
func (b *bench) p10() ([]result, error) {
	const clients = 32
	h, err := b.hotKeys("p10", 8)
	if err != nil {
		return nil, err
	}
	defer h.stop()
	ours := []struct {
		servers []*process
		runs
	}{{servers: []*process{h.memory}}, {servers: h.sidecars[:1]}, {servers: h.sidecars[:2]}, {servers: h.sidecars}}
	var updates, advisory []float64
	for range b.rounds {
		for i := range ours {
			r, err := b.once("hot", clients, ours[i].servers...)
			if err != nil {
				return nil, err
			}
			ours[i].runs = append(ours[i].runs, r)
			b.log.Printf("P10 %d clients of %d sidecars: %.0f grants/s, p99 of a pair %.1f ms, %s",
				clients, len(ours[i].servers), r.rate(), milliseconds(r.P99), runs{r}.cost())
		}
		u, err := b.pgbench(h.url, hotUpdate, 1)
		if err != nil {
			return nil, err
		}
		a, err := b.pgbench(h.url, hotAdvisory, clients)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P10 one client's updates: %.0f/s; advisory lock, %d clients: %.0f/s", u, clients, a)
		updates, advisory = append(updates, u), append(advisory, a)
	}
	row := func(id string, i int, peer string, peers []float64) result {
		ratio := median(ratios(ours[i].rates(), peers))
		return result{
			id: id, what: fmt.Sprintf("one hot key, %d clients, sidecars: %d, beside %s", clients, len(ours[i].servers), peer),
			figure: fmt.Sprintf("%.0f grants/s, %s", median(ours[i].rates()), ours[i].cost()), peer: fmt.Sprintf("%s: %.0f/s", peer, median(peers)),
			ratio: fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	const ceiling, lock = "one client's durable one-row updates", "`pg_advisory_lock` with as many clients"
	return []result{
		row("P10a", 1, "the same on `memory://`", ours[0].rates()).wants(0.6),
		row("P10b", 2, ceiling, updates).wants(0.5),
		row("P10c", 3, ceiling, updates).wants(0.3),
		row("P10", 1, lock, advisory),
		row("P10", 2, lock, advisory),
	}, nil
}
