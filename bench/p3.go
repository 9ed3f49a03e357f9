package main

import "fmt"

// p3 measures one client's pair on PostgreSQL against pgbench. The floor is the least
// that a sidecar could do.
func (b *bench) p3() ([]result, error) {
	const goal = 1.25
	sidecar, url, stop, err := b.besideDirect("p3")
	if err != nil {
		return nil, err
	}
	defer stop()
	floor, err := b.floor("alone", url)
	if err != nil {
		return nil, err
	}
	defer floor.stop()
	var ours, least runs
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
		f, err := b.once("pair", 1, floor)
		if err != nil {
			return nil, err
		}
		ours, least, direct = append(ours, p), append(least, f), append(direct, 1e6/d)
		b.log.Printf("P3 one client: %.3f ms a pair, %s; %s %.3f ms, %s; direct %.3f ms",
			1000/p.rate(), runs{p}.cost(), floorAlone, 1000/f.rate(), runs{f}.cost(), 1000/d)
	}
	row := func(what string, r runs) result {
		times := r.of(func(r run) float64 { return 1e6 / r.rate() })
		ratio := median(ratios(times, direct))
		return result{
			id: "P3", what: what, figure: fmt.Sprintf("%.3f ms, %s", median(times)/1000, r.cost()),
			peer: fmt.Sprintf("direct: %.3f ms", median(direct)/1000), ratio: fmt.Sprintf("%.2f of direct", ratio), score: ratio, less: true, goal: none,
		}
	}
	lower := row(floorAlone+", one client", least)
	lower.score = 0 // nobody makes it better or worse
	return []result{row("one client's acquire+release on PostgreSQL", ours).wants(goal), lower}, nil
}
