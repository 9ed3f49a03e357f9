package main

import "fmt"

// p3 measures one client's pair on PostgreSQL against pgbench.
func (b *bench) p3() ([]result, error) {
	const goal = 1.25
	sidecar, url, stop, err := b.besideDirect("p3")
	if err != nil {
		return nil, err
	}
	defer stop()
	var ours runs
	var direct []float64 // microseconds
	for range b.rounds {
		d, err := b.pgbench(url, directPair, 1)
		if err != nil {
			return nil, err
		}
		p, err := b.once("pair", 1, sidecar)
		if err != nil {
			return nil, err
		}
		ours, direct = append(ours, p), append(direct, 1e6/d)
		b.log.Printf("P3 one client: %.3f ms a pair, %s; direct %.3f ms", 1000/p.rate(), runs{p}.cost(), 1000/d)
	}
	times := ours.of(func(r run) float64 { return 1e6 / r.rate() })
	ratio := median(ratios(times, direct))
	return []result{{
		id: "P3", what: "one client's acquire+release on PostgreSQL",
		figure: fmt.Sprintf("%.3f ms, %s", median(times)/1000, ours.cost()), peer: fmt.Sprintf("direct: %.3f ms", median(direct)/1000),
		ratio: fmt.Sprintf("%.2f of direct", ratio), score: ratio, less: true, goal: fmt.Sprintf("at most %.2f", goal), reached: ratio <= goal,
	}}, nil
}
