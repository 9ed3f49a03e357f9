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
	var ours, direct, ratios []float64
	for range b.rounds {
		d, err := b.pgbench(url, 1)
		if err != nil {
			return nil, err
		}
		p, err := b.pairs(sidecar.socket, 1)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P3 one client: %.3f ms a pair; direct %.3f ms", 1000/p, 1000/d)
		ours, direct, ratios = append(ours, 1000/p), append(direct, 1000/d), append(ratios, d/p)
	}
	return []result{{
		id: "P3", what: "one client's acquire+release on PostgreSQL",
		figure: fmt.Sprintf("%.3f ms", median(ours)), peer: fmt.Sprintf("direct: %.3f ms", median(direct)),
		ratio: fmt.Sprintf("%.2f of direct", median(ratios)), goal: fmt.Sprintf("at most %.2f", goal), reached: median(ratios) <= goal,
	}}, nil
}
