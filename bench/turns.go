package main

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

type turnLoad struct {
	name, operation       string
	memory                bool
	sidecars, connections int
}

// turnLoads are the pairs of P1, P2 and P3, and the hot key of P10.
var turnLoads = []turnLoad{
	{"P1: `memory://`, 64 connections", "pair", true, 1, 64},
	{"P2: 64 connections", "pair", false, 1, 64},
	{"P2: 1024 connections", "pair", false, 1, 1024},
	{"P3: one connection", "pair", false, 1, 1},
	{"P10: one hot key, 32 connections, sidecars: 1", "hot", false, 1, 32},
	{"P10: one hot key, 32 connections, sidecars: 2", "hot", false, 2, 32},
	{"P10: one hot key, 32 connections, sidecars: 8", "hot", false, 8, 32},
}

// turnStarts is how often the sidecars of a load are started anew, because a process that is luckily placed in memory and on the cores stays it.
const turnStarts = 4

// turns compares the sidecar with the one of -against, and with itself: what the second comparison shows is the noise of the first. Each has a database
// of its own on one server. The order changes each round.
func (b *bench) turns() ([]result, error) {
	if b.against == "" {
		if b.only == "" {
			return nil, nil
		}
		return nil, errors.New("name the revision to compare with: -against REVISION")
	}
	const goal, slices, more = 0.97, 2, 4 // many short rounds, because rounds differ by more than 3%
	older, err := b.buildOlder()
	if err != nil {
		return nil, err
	}
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", "300"))
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	sides := [3]turnSide{{name: "now", binary: b.binary, url: url}, {name: "before", binary: older}, {name: "again", binary: b.binary}}
	for i := range sides[1:] {
		if sides[i+1].url, err = cluster.MakeDatabase(b.ctx); err != nil {
			return nil, err
		}
	}
	short := *b
	short.length /= slices
	short.rounds = max(1, b.rounds*more/turnStarts)
	var rows []result
	for _, load := range turnLoads {
		now, before, again := &sides[0], &sides[1], &sides[2]
		for _, s := range []*turnSide{now, before, again} {
			s.runs = nil
		}
		for range turnStarts {
			if err := short.turn(load, now, before, again); err != nil {
				return nil, err
			}
		}
		ratio, noise := median(ratios(now.rates(), before.rates())), median(ratios(now.rates(), again.rates()))
		figures := fmt.Sprintf("%.3f of before, %.3f of itself", ratio, noise)
		b.log.Printf("turns, %s: %s; before: %s; again: %s; %s", load.name, now.figure(), before.figure(), again.figure(), figures)
		rows = append(rows, result{
			id: "turns", what: load.name, figure: now.figure(), peer: before.figure() + " before (" + b.against + ")",
			ratio: figures, score: ratio, goal: fmt.Sprintf("at least %.2f", goal), reached: ratio >= goal,
		})
	}
	return rows, nil
}

// turn measures one load on all sides.
func (b *bench) turn(load turnLoad, sides ...*turnSide) error {
	defer func() {
		for _, s := range sides {
			for _, p := range s.sidecars {
				p.stop()
			}
			s.sidecars = nil
		}
	}()
	for _, s := range sides {
		store := s.url
		if load.memory {
			store = "memory://"
		}
		for i := range load.sidecars {
			p, err := b.sidecarOf(s.binary, fmt.Sprint("turns", s.name, i), nil, "STORE_URL="+store)
			if err != nil {
				return err
			}
			s.sidecars = append(s.sidecars, p)
		}
	}
	for round := range b.rounds {
		for i := range sides {
			if err := sides[(i+round)%len(sides)].measure(b, load.operation, load.connections); err != nil {
				return err
			}
		}
	}
	return nil
}

// turnSide is one of the sidecars that turns compares.
type turnSide struct {
	name, binary, url string
	sidecars          []*process
	runs
}

// measure runs a load once, after a while to come into its stride.
func (s *turnSide) measure(b *bench, operation string, connections int) error {
	l, err := b.loader(operation, connections, s.sidecars...)
	if err != nil {
		return err
	}
	defer l.stop()
	if _, err := l.run(b.length/4, s.sidecars...); err != nil {
		return err
	}
	r, err := l.run(b.length, s.sidecars...)
	s.runs = append(s.runs, r)
	return err
}

func (s *turnSide) figure() string {
	return fmt.Sprintf("%.0f/s, %s", median(s.rates()), s.cost())
}
