package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// p12a measures one client that acquires and releases one key again and again, which its sidecar keeps meanwhile. The same on
// memory:// stands beside, and the servers count what they are asked.
func (b *bench) p12a() ([]result, error) {
	const goal, most = 1.3, 12.0
	all, memory, stop, err := b.eachKept("p12a")
	defer stop()
	if err != nil {
		return nil, err
	}
	var least runs
	for range b.rounds {
		m, err := b.once("pair", 1, memory)
		if err != nil {
			return nil, err
		}
		least = append(least, m)
		var line strings.Builder
		fmt.Fprintf(&line, "memory:// %.3f ms a pair, %s", 1000/m.rate(), runs{m}.cost())
		for _, k := range all {
			r, err := k.measure(b, "pair", 1)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&line, "; %s %.3f ms, %s, %.1f requests for 1,000 pairs", k.name, 1000/r.rate(), runs{r}.cost(), k.requests[len(k.requests)-1])
		}
		b.log.Printf("P12a %s", line.String())
	}
	for _, k := range all {
		if k.kinds == nil {
			continue
		}
		kinds, err := k.kinds()
		if err != nil {
			return nil, err
		}
		b.log.Printf("P12a %s: %d pairs; %s", k.name, k.pairs(), kinds)
	}
	times := func(r runs) []float64 { return r.of(func(r run) float64 { return 1e3 / r.rate() }) }
	var rows []result
	for _, k := range all {
		ratio, requests := median(ratios(times(k.runs), times(least))), median(k.requests)
		rows = append(rows, result{
			id: "P12a", what: "one client, one key again and again, on " + k.name, figure: fmt.Sprintf("%.3f ms, %s", median(times(k.runs)), k.cost()),
			peer: fmt.Sprintf("`memory://`: %.3f ms", median(times(least))), ratio: fmt.Sprintf("%.2f of it", ratio), score: ratio, less: true,
		}.wants(goal), result{
			id: "P12a", what: "statements or requests for 1,000 such pairs, as " + k.name + " counts them", figure: fmt.Sprintf("%.1f", requests),
			peer: none, ratio: none, score: requests, less: true, goal: fmt.Sprintf("at most %.0f", most), reached: requests <= most,
		})
	}
	return rows, nil
}

// p12b measures 64 connections with a key each, again and again. Beside: memory://, direct's SQL, and other locks on the same server.
func (b *bench) p12b() ([]result, error) {
	const connections, goal, goalDirect = 64, 0.85, 3.5
	if err := b.buildPeers(filepath.Join(b.folder, "peers")); err != nil {
		return nil, err
	}
	all, memory, stop, err := b.eachKept("p12b")
	defer stop()
	if err != nil {
		return nil, err
	}
	var most runs
	var direct []float64
	rivals := make(map[string]runs)
	for range b.rounds {
		m, err := b.once("pair", connections, memory)
		if err != nil {
			return nil, err
		}
		most = append(most, m)
		var line strings.Builder
		fmt.Fprintf(&line, "memory:// %.0f pairs/s, %s", m.rate(), runs{m}.cost())
		for _, k := range all {
			r, err := k.measure(b, "pair", connections)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&line, "; %s %.0f pairs/s, %s, %.1f requests for 1,000 pairs", k.name, r.rate(), runs{r}.cost(), k.requests[len(k.requests)-1])
			for _, other := range k.rivals {
				r, err := k.rival(b, other, connections)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", other.name, err)
				}
				rivals[other.name] = append(rivals[other.name], r)
				fmt.Fprintf(&line, ", %s %.0f", other.name, r.rate())
			}
			if k.id == "postgres" {
				d, err := b.pgbench(k.url, directPair, connections)
				if err != nil {
					return nil, err
				}
				direct = append(direct, d)
				fmt.Fprintf(&line, ", direct %.0f", d)
			}
		}
		b.log.Printf("P12b %s", line.String())
	}
	var rows []result
	for _, k := range all {
		row := func(peer string, peers []float64, goal float64) {
			ratio := median(ratios(k.rates(), peers))
			rows = append(rows, result{
				id: "P12b", what: fmt.Sprintf("%d connections, a key each, again and again, on %s, beside %s", connections, k.name, peer),
				figure: fmt.Sprintf("%.0f pairs/s, %s", median(k.rates()), k.cost()), peer: fmt.Sprintf("%s: %.0f pairs/s", peer, median(peers)),
				ratio: fmt.Sprintf("%.2f of it", ratio), score: ratio,
			}.wants(goal))
		}
		row("`memory://`", most.rates(), goal)
		for _, other := range k.rivals {
			row(other.name, rivals[other.name].rates(), 1)
		}
		if k.id == "postgres" {
			row("direct", direct, goalDirect)
		}
	}
	return rows, nil
}

// p12c measures two sidecars whose clients take turns at one key, so that keeping it never pays. Beside: sidecars that keep nothing.
func (b *bench) p12c() ([]result, error) {
	const goal = 0.97
	return b.besideNone("P12c", 2, goal, "two sidecars in turn on one key", "alternate", 2)
}

// p12e measures a thousand keys of four sidecars. Of ten acquires nine, or five, are in the pod that had the key last.
func (b *bench) p12e() ([]result, error) {
	const sidecars, connections, goalNear, goalHalf = 4, 64, 2, 0.97
	near, err := b.besideNone("P12e", sidecars, goalNear, "1,000 keys, 4 sidecars, nine of ten acquires in the pod that had the key", "near", connections, "postgres")
	if err != nil {
		return nil, err
	}
	half, err := b.besideNone("P12e", sidecars, goalHalf, "the same with half of the acquires in the pod that had the key", "half", connections, "postgres")
	return append(near, half...), err
}

// besideNone measures a load of sidecars that keep keys, in turns with the same of sidecars that keep none, on the same server. The first
// of the two changes each round.
func (b *bench) besideNone(id string, sidecars int, goal float64, what, operation string, connections int, ids ...string) (rows []result, err error) {
	const slices, more = 2, 2 // many short rounds, because rounds differ by more than 3%
	short := *b
	short.length /= slices
	short.rounds *= more
	stores, stop, err := b.keepStores(ids...)
	defer stop()
	if err != nil {
		return nil, err
	}
	for _, s := range stores {
		row, err := short.besideNoneOn(s, id, sidecars, goal, what, operation, connections)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (b *bench) besideNoneOn(s *keepStore, id string, sidecars int, goal float64, what, operation string, connections int) (result, error) {
	keeping, stop, err := s.sidecars(b, sidecars, keepFor)
	defer stop()
	if err != nil {
		return result{}, err
	}
	others, stopOthers, err := s.sidecars(b, sidecars, "KEEP=0")
	defer stopOthers()
	if err != nil {
		return result{}, err
	}
	sides := [2]*kept{{keepStore: s, sidecars: keeping}, {keepStore: s, sidecars: others}}
	for round := range b.rounds {
		for i := range sides {
			if _, err := sides[(i+round)%len(sides)].measure(b, operation, connections); err != nil {
				return result{}, err
			}
		}
	}
	keeps, today := sides[0], sides[1]
	ratio := median(ratios(keeps.rates(), today.rates()))
	row := result{
		id: id, what: what + ", on " + s.name,
		figure: fmt.Sprintf("%.0f pairs/s, %.0f requests for 1,000 pairs", median(keeps.rates()), median(keeps.requests)),
		peer:   fmt.Sprintf("`KEEP=0`: %.0f pairs/s, %.0f requests", median(today.rates()), median(today.requests)),
		ratio:  fmt.Sprintf("%.3f of it", ratio), score: ratio,
	}.wants(goal)
	took, err := keeps.counts()
	b.log.Printf("%s %s: %s; %s; %s; of %d pairs %s", id, row.what, row.figure, row.peer, row.ratio, keeps.pairs(), took)
	if err != nil {
		return result{}, err
	}
	return row, nil
}

// keepPair are two sidecars on a store, with a client each: one whose sidecar keeps keys, and one that wants them.
type keepPair struct {
	near, far *conn
}

// eachPair measures something of two sidecars on each store.
func (b *bench) eachPair(keep string, measure func(s *keepStore, p keepPair) ([]result, error)) (rows []result, err error) {
	stores, stop, err := b.keepStores()
	defer stop()
	if err != nil {
		return nil, err
	}
	for _, s := range stores {
		more, err := b.onePair(s, keep, measure)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (b *bench) onePair(s *keepStore, keep string, measure func(s *keepStore, p keepPair) ([]result, error)) ([]result, error) {
	sidecars, stop, err := s.sidecars(b, 2, keep)
	defer stop()
	if err != nil {
		return nil, err
	}
	conns, err := dialMany([]string{sidecars[0].socket, sidecars[1].socket}, 2)
	defer closeAll(conns)
	if err != nil {
		return nil, err
	}
	return measure(s, keepPair{conns[0], conns[1]})
}

// p12d measures how long it takes until somebody elsewhere has a key that its sidecar keeps, and nobody uses: who waits for it,
// and who only tries.
func (b *bench) p12d() ([]result, error) {
	const goalP99 = 8.0
	goals := map[string]float64{"postgres": 2.5, "redis": 1.5} // medians
	return b.eachPair(keepFor, func(s *keepStore, p keepPair) (rows []result, err error) {
		for _, ask := range []struct {
			what string
			body []byte
		}{{"by a waiter", []byte(`{"wait_ms":20000}`)}, {"by a try", nil}} {
			var took []float64
			refused, other := 0, 0
			n, err := b.repeat(40*b.rounds, func() error {
				key := fmt.Sprintf("bench:idle:%d", (len(took)+other)%16)
				kept, err := p.near.keeps(key)
				if err != nil {
					return err
				}
				pause()
				ms, err := p.far.timed(key, ask.body)
				for err == nil && p.far.status == 423 && ms < 1000 { // it tries again
					refused++
					var more float64
					more, err = p.far.timed(key, ask.body)
					ms += more
				}
				if err == nil && p.far.status != 200 {
					err = fmt.Errorf("%d %s", p.far.status, p.far.body)
				}
				if err == nil {
					_, err = p.far.release(key, nil)
				}
				if !kept {
					other++
					return err
				}
				took = append(took, ms)
				return err
			})
			if err != nil {
				return nil, err
			}
			if len(took) < n*9/10 {
				return nil, fmt.Errorf("%d of %d: %w", other, n, errNotKept)
			}
			b.log.Printf("P12d %s: an idle kept key is wanted elsewhere, %s, %d times: median %.2f ms, p99 %.2f ms; %d refusals; %d times the key was not kept",
				s.name, ask.what, len(took), median(took), p99(took), refused, other)
			row := func(what string, figure, goal float64) result {
				r := result{
					id: "P12d", what: fmt.Sprintf("an idle kept key is wanted elsewhere, on %s, %s, %s", s.name, ask.what, what),
					figure: fmt.Sprintf("%.2f ms (of %d, %d refusals)", figure, len(took), refused), peer: none, ratio: none, goal: none, reached: true,
				}
				if goal > 0 {
					r.goal, r.reached = fmt.Sprintf("at most %.1f ms", goal), figure <= goal
				}
				return r
			}
			goal, p99Goal := goals[s.id], 0.0
			if goal > 0 {
				p99Goal = goalP99
			}
			rows = append(rows, row("median", median(took), goal), row("p99", p99(took), p99Goal))
		}
		return rows, nil
	})
}

// p12f measures how long a try takes on a key that a session of the sidecar that may keep it holds: the first time the store has to
// ask that sidecar, and then it knows. Beside: the same with sidecars that keep nothing.
func (b *bench) p12f() ([]result, error) {
	const goalMedian, goalMost = 5.0, 25.0
	type tries struct{ first, second []float64 }
	measured := make(map[string]*tries)
	measure := func(keep string) ([]result, error) {
		return b.eachPair(keep, func(s *keepStore, p keepPair) ([]result, error) {
			all := &tries{}
			measured[s.id+keep] = all
			other := 0
			n, err := b.repeat(20*b.rounds, func() error {
				key := fmt.Sprintf("bench:held:%s:%d", strings.TrimPrefix(keep, "KEEP="), len(all.first)+other)
				kept, err := p.near.keeps(key)
				if err != nil {
					return err
				}
				if _, err := p.near.acquire(key, nil); err != nil {
					return err
				}
				pause()
				var took [2]float64
				for i := range took {
					if took[i], err = p.far.timed(key, nil); err == nil && p.far.status != 423 {
						err = fmt.Errorf("%d %s", p.far.status, p.far.body)
					}
					if err != nil {
						return err
					}
				}
				if kept || keep == "KEEP=0" {
					all.first, all.second = append(all.first, took[0]), append(all.second, took[1])
				} else {
					other++
				}
				_, err = p.near.release(key, nil)
				return err
			})
			if err != nil {
				return nil, err
			}
			if len(all.first) < n*9/10 {
				return nil, fmt.Errorf("%d of %d: %w", other, n, errNotKept)
			}
			b.log.Printf("P12f %s, %s: a try on a held key, %d times: median %.2f ms, most %.2f ms; again: median %.2f ms, most %.2f ms; %d times it was not kept before",
				s.name, keep, len(all.first), median(all.first), most(all.first), median(all.second), most(all.second), other)
			if keep == "KEEP=0" {
				return nil, nil
			}
			today := measured[s.id+"KEEP=0"]
			peer := fmt.Sprintf("`KEEP=0`: median %.2f ms, at most %.2f ms", median(today.first), most(today.first))
			again := median(all.second) / median(today.second)
			return []result{
				{
					id: "P12f", what: "a try on a key that the keeper's session holds, on " + s.name + ", median", figure: fmt.Sprintf("%.2f ms (of %d)", median(all.first), len(all.first)),
					peer: peer, ratio: fmt.Sprintf("%.2f of it", median(all.first)/median(today.first)), goal: fmt.Sprintf("at most %.0f ms", goalMedian), reached: median(all.first) <= goalMedian,
				},
				{
					id: "P12f", what: "the longest of them, on " + s.name, figure: fmt.Sprintf("%.2f ms", most(all.first)),
					peer: peer, ratio: none, goal: fmt.Sprintf("at most %.0f ms", goalMost), reached: most(all.first) <= goalMost,
				},
				{
					id: "P12f", what: "the next try, on " + s.name + ", median", figure: fmt.Sprintf("%.2f ms, at most %.2f ms", median(all.second), most(all.second)),
					peer: fmt.Sprintf("`KEEP=0`: %.2f ms", median(today.second)), ratio: fmt.Sprintf("%.2f of it", again), goal: "as with `KEEP=0`: at most 1.25", reached: again <= 1.25,
				},
			}, nil
		})
	}
	if _, err := measure("KEEP=0"); err != nil {
		return nil, err
	}
	return measure(keepFor)
}

// most is the largest.
func most(values []float64) (most float64) {
	for _, v := range values {
		most = max(most, v)
	}
	return most
}
