package main

import (
	"fmt"
	"strings"
)

// p2Run is what is measured beside pgbench: a server at some connections.
type p2Run struct {
	server      *process
	name        string
	connections int
	runs
}

// p2 measures acquire and release on PostgreSQL, every connection with a key of
// its own, against pgbench: with as many clients as connections, and, since a
// database with many more clients gets slower, with what is best for it. The floors
// are the least that a sidecar could do, on the same database.
func (b *bench) p2() ([]result, error) {
	const few, many = 64, 1024
	const goalFew, goalMany = 1.5, 3
	clients := []int{16, 64, 128} // few is one of them; pgtest's clusters take 300
	sidecar, url, stop, err := b.besideDirect("p2")
	if err != nil {
		return nil, err
	}
	defer stop()
	ours := []*p2Run{
		{server: sidecar, name: "acquire+release on PostgreSQL", connections: few},
		{server: sidecar, name: "acquire+release on PostgreSQL", connections: many},
	}
	var floors []*process
	defer func() {
		for _, f := range floors {
			f.stop()
		}
	}()
	for _, kind := range []string{"granting", "together", "alone"} {
		floor, err := b.floor(kind, url)
		if err != nil {
			return nil, err
		}
		floors = append(floors, floor)
		ours = append(ours, &p2Run{server: floor, name: floorKinds[kind], connections: few})
		if kind != "alone" { // the database has no room for so many
			ours = append(ours, &p2Run{server: floor, name: floorKinds[kind], connections: many})
		}
	}
	direct := make(map[int][]float64)
	for range b.rounds {
		var line strings.Builder
		for _, r := range ours {
			p, err := b.once("pair", r.connections, r.server)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			r.runs = append(r.runs, p)
			fmt.Fprintf(&line, "; %s at %d: %.0f pairs/s, %s", r.name, r.connections, p.rate(), runs{p}.cost())
		}
		for _, n := range clients {
			d, err := b.pgbench(url, directPair, n)
			if err != nil {
				return nil, err
			}
			direct[n] = append(direct[n], d)
			fmt.Fprintf(&line, "; direct at %d: %.0f", n, d)
		}
		b.log.Printf("P2 %s", strings.TrimPrefix(line.String(), "; "))
	}
	best := clients[0]
	for _, n := range clients {
		if median(direct[n]) > median(direct[best]) {
			best = n
		}
	}
	rows := make([]result, len(ours))
	for i, r := range ours {
		peers, peer, goal := few, fmt.Sprintf("direct, %d clients", few), goalFew
		if r.connections == many {
			peers, peer, goal = best, fmt.Sprintf("direct's best, %d clients", best), goalMany
		}
		rows[i] = r.row(peer, direct[peers])
		if r.server == sidecar {
			rows[i] = rows[i].wants(goal)
		} else {
			rows[i].score = 0 // nobody makes it better or worse
		}
	}
	return rows, nil
}

// row sets it beside pgbench.
func (r *p2Run) row(peer string, direct []float64) result {
	ratio := median(ratios(r.rates(), direct))
	return result{
		id: "P2", what: fmt.Sprintf("%s, %d connections", r.name, r.connections),
		figure: fmt.Sprintf("%.0f pairs/s, %s", median(r.rates()), r.cost()), peer: fmt.Sprintf("%s: %.0f pairs/s", peer, median(direct)),
		ratio: fmt.Sprintf("%.2f of direct", ratio), score: ratio, goal: none,
	}
}

// p2f measures keys that nobody had before, each time another one, against a pgbench that
// inserts such keys.
func (b *bench) p2f() ([]result, error) {
	const connections, goal = 64, 1.2
	sidecar, url, stop, err := b.besideDirect("p2f")
	if err != nil {
		return nil, err
	}
	defer stop()
	ours := &p2Run{server: sidecar, name: "acquire+release of fresh keys on PostgreSQL", connections: connections}
	var direct []float64
	for range b.rounds {
		r, err := b.once("fresh", connections, sidecar)
		if err != nil {
			return nil, err
		}
		d, err := b.pgbench(url, strings.Replace(directPair, directKeys, freshKeys, 1), connections)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P2f %d connections: %.0f pairs/s, %s; direct: %.0f pairs/s", connections, r.rate(), runs{r}.cost(), d)
		ours.runs, direct = append(ours.runs, r), append(direct, d)
	}
	row := ours.row(fmt.Sprintf("direct with fresh keys, %d clients", connections), direct).wants(goal)
	row.id = "P2f"
	return []result{row}, nil
}
