package main

import (
	"fmt"
	"strings"
)

// p2 measures acquire and release on PostgreSQL, every connection with a key of
// its own, against pgbench: with as many clients as connections, and, since a
// database with many more clients gets slower, with what is best for it.
func (b *bench) p2() ([]result, error) {
	const few, many = 64, 1024
	const goalFew, goalMany = 1.5, 3
	clients := []int{16, 64, 128} // few is one of them; pgtest's clusters take 300
	sidecar, url, stop, err := b.besideDirect("p2")
	if err != nil {
		return nil, err
	}
	defer stop()
	direct := make(map[int][]float64)
	ours := make(map[int]runs)
	for range b.rounds {
		for _, n := range []int{few, many} {
			p, err := b.once("pair", n, sidecar)
			if err != nil {
				return nil, err
			}
			ours[n] = append(ours[n], p)
		}
		var line strings.Builder
		for _, n := range clients {
			d, err := b.pgbench(url, directPair, n)
			if err != nil {
				return nil, err
			}
			direct[n] = append(direct[n], d)
			fmt.Fprintf(&line, ", %.0f at %d", d, n)
		}
		last := len(ours[few]) - 1
		b.log.Printf("P2 %.0f pairs/s at %d connections, %.0f at %d; direct%s", ours[few][last].rate(), few, ours[many][last].rate(), many, strings.TrimPrefix(line.String(), ","))
	}
	best := clients[0]
	for _, n := range clients {
		if median(direct[n]) > median(direct[best]) {
			best = n
		}
	}
	row := func(connections, peers int, peer string, goal float64) result {
		ratio := median(ratios(ours[connections].rates(), direct[peers]))
		return result{
			id: "P2", what: fmt.Sprintf("acquire+release on PostgreSQL, %d connections", connections),
			figure: fmt.Sprintf("%.0f pairs/s, %s", median(ours[connections].rates()), ours[connections].cost()), peer: fmt.Sprintf("%s: %.0f pairs/s", peer, median(direct[peers])),
			ratio: fmt.Sprintf("%.2f of direct", ratio), score: ratio, goal: fmt.Sprintf("at least %.2f", goal), reached: ratio >= goal,
		}
	}
	return []result{
		row(few, few, fmt.Sprintf("direct, %d clients", few), goalFew),
		row(many, best, fmt.Sprintf("direct's best, %d clients", best), goalMany),
	}, nil
}
