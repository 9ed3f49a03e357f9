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

// turns compares the sidecar with the one of -against, on two databases of one server.
// The first of the two changes each round.
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
	url2, err := cluster.MakeDatabase(b.ctx)
	if err != nil {
		return nil, err
	}
	sides := [2]turnSide{{name: "now", binary: b.binary, url: url}, {name: "before", binary: older, url: url2}}
	short := *b
	short.length /= slices
	short.rounds *= more
	var rows []result
	for _, load := range turnLoads {
		now, before := &sides[0], &sides[1]
		if err := short.turn(load, now, before); err != nil {
			return nil, err
		}
		ratio := median(ratios(now.rates(), before.rates()))
		b.log.Printf("turns, %s: %s; before: %s; %.3f of before", load.name, now.figure(), before.figure(), ratio)
		rows = append(rows, result{
			id: "turns", what: load.name, figure: now.figure(), peer: before.figure() + " before (" + b.against + ")",
			ratio: fmt.Sprintf("%.3f of before", ratio), score: ratio, goal: fmt.Sprintf("at least %.2f", goal), reached: ratio >= goal,
		})
	}
	return rows, nil
}

// turn measures one load on both.
func (b *bench) turn(load turnLoad, sides ...*turnSide) error {
	defer func() {
		for _, s := range sides {
			for _, p := range s.sidecars {
				p.stop()
			}
		}
	}()
	for _, s := range sides {
		store := s.url
		if load.memory {
			store = "memory://"
		}
		s.runs, s.sidecars = nil, nil
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

// turnSide is one of the two sidecars that turns compares.
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
