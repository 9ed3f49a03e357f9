package model

import (
	"fmt"
	"time"
)

// space is a model of which all states can be looked at.
type space[S comparable] struct {
	// happens calls yield for each thing that can happen next. goesWell: it happens by itself where nothing goes wrong.
	happens func(s *S, yield func(what string, goesWell bool, n S))
	check   func(s *S) Invariant
	// calm is where everything ends. It must be possible to come there from everywhere.
	calm func(s *S) bool
	show func(s *S) string
}

// explore looks at all states, but at most so many, and returns as soon as an invariant does not hold.
func explore[S comparable](first S, most int, m space[S]) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	type origin struct {
		parent int
		what   string
	}
	states, number, from := []S{first}, map[S]int{first: 0}, []origin{{}}
	trace := func(at int) (lines []string) {
		for ; at != 0; at = from[at].parent {
			lines = append([]string{fmt.Sprintf("%-42s %s", from[at].what, m.show(&states[at]))}, lines...)
		}
		return lines
	}
	var sources [][]int // of each state, from which it is reached where all goes well
	sources = append(sources, nil)
	for at := 0; at < len(states); at++ {
		if len(states) > most {
			r.States, r.Short = len(states), true
			return r
		}
		s := states[at]
		m.happens(&s, func(what string, goesWell bool, n S) {
			r.Steps++
			to, found := number[n]
			if !found {
				to = len(states)
				number[n] = to
				states, from, sources = append(states, n), append(from, origin{at, what}), append(sources, nil)
				if broken := m.check(&n); broken != Fine && r.Broken == Fine {
					r.Broken, r.Trace = broken, trace(to)
				}
			}
			if goesWell {
				sources[to] = append(sources[to], at)
			}
		})
		if r.Broken != Fine {
			r.States = len(states)
			return r
		}
	}
	r.States = len(states)
	reached, open := make([]bool, len(states)), []int(nil)
	for i := range states {
		if m.calm(&states[i]) {
			reached[i], open = true, append(open, i)
		}
	}
	for len(open) > 0 {
		to := open[len(open)-1]
		open = open[:len(open)-1]
		for _, at := range sources[to] {
			if !reached[at] {
				reached[at], open = true, append(open, at)
			}
		}
	}
	for i := range states {
		if !reached[i] {
			r.Broken, r.Trace = Stuck, trace(i)
			return r
		}
	}
	return r
}
