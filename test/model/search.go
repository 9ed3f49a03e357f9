package model

import (
	"hash/maphash"
	"time"
)

// Result is what a search has found.
type Result struct {
	States, Steps int
	Depth         int
	Took          time.Duration
	// Broken is the first invariant that does not hold, Fine if all do in all states;
	// Trace is the shortest way there.
	Broken Invariant
	Trace  []string
	// Cut short: there are more states than were to be looked at.
	Short bool
}

// search goes through all states, the nearest first.
type search struct {
	*Bounds
	seed   maphash.Seed
	number map[uint64]uint32 // of a state, in the order in which they were found
	from   []origin          // of each
	// For the last invariant: from which states there is a way, without new faults and
	// wishes, to which; and which are calm.
	edges []edge
	calm  []bool
	// goal ends the search, as if an invariant did not hold there; nil: none.
	goal func(*State) Invariant
}

// origin is how a state was first found: the how-manieth successor of which other.
type origin struct {
	parent uint32
	nth    uint8
}

type edge struct{ from, to uint32 }

// Search looks at all states, but at most so many, and returns as soon as an invariant
// does not hold.
func Search(b Bounds, most int) Result {
	return newSearch(b, (*State).check).run(most)
}

func newSearch(b Bounds, goal func(*State, *Bounds) Invariant) *search {
	s := &search{Bounds: &b, seed: maphash.MakeSeed(), number: make(map[uint64]uint32)}
	s.goal = func(state *State) Invariant { return goal(state, s.Bounds) }
	return s
}

func (s *search) run(most int) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	first := initial(s.Bounds)
	s.note(&first, origin{})
	level, next := []State{first}, []State(nil)
	levelFrom := uint32(0)
	for len(level) > 0 {
		for n := range level {
			from := levelFrom + uint32(n)
			broken, at := s.expand(&level[n], from, &r, &next)
			if broken != Fine {
				r.States, r.Broken, r.Trace = len(s.from), broken, s.trace(at)
				return r
			}
		}
		levelFrom += uint32(len(level))
		level, next = next, level[:0]
		if len(s.from) > most {
			r.States, r.Short = len(s.from), true
			return r
		}
		r.Depth++
	}
	r.States = len(s.from)
	if at, stuck := s.stuck(); stuck {
		r.Broken, r.Trace = Stuck, s.trace(at)
	}
	return r
}

// expand looks at the successors of a state. It returns the first in which an invariant
// does not hold.
func (s *search) expand(state *State, from uint32, r *Result, next *[]State) (broken Invariant, at uint32) {
	nth := uint8(0)
	successors(state, s.Bounds, func(a action, n *State) {
		if broken != Fine {
			return
		}
		r.Steps++
		to, isNew := s.note(n, origin{from, nth})
		nth++
		if goesWell(a, state, n, s.Bounds) {
			s.edges = append(s.edges, edge{from, to})
		}
		if !isNew {
			return
		}
		if broken, at = s.goal(n), to; broken == Fine {
			*next = append(*next, *n)
		}
	})
	return broken, at
}

// goesWell reports whether an action is one that happens by itself where nothing goes
// wrong: no operation is cut off by it, and leases that are trusted are renewed in time.
func goesWell(a action, before, after *State, b *Bounds) bool {
	if !a.progress() || after.faults != before.faults {
		return false
	}
	if a.verb != ticks && a.verb != loses {
		return true // a lease that the store calls dead is lost, and the call goes on
	}
	for i := range b.Sidecars {
		for slot := range slots {
			was, is := before.sc[i].leases[slot], after.sc[i].leases[slot]
			if was.state == trusted && was.left > 0 && (is.state != trusted || is.left == 0) && before.sc[i].phase != idle {
				return false
			}
		}
	}
	return true
}

func (s *search) note(state *State, o origin) (number uint32, isNew bool) {
	key := state.key(s.Bounds, s.seed)
	if number, found := s.number[key]; found {
		return number, false
	}
	number = uint32(len(s.from))
	s.number[key] = number
	s.from = append(s.from, o)
	s.calm = append(s.calm, state.calm(s.Bounds))
	return number, true
}

// stuck returns the nearest state from which there is no way to a calm one.
func (s *search) stuck() (number uint32, found bool) {
	// Where the edges to a state begin, in sources.
	begin := make([]uint32, len(s.from)+1)
	for _, e := range s.edges {
		begin[e.to+1]++
	}
	for i := range s.from {
		begin[i+1] += begin[i]
	}
	sources, at := make([]uint32, len(s.edges)), append([]uint32(nil), begin...)
	for _, e := range s.edges {
		sources[at[e.to]] = e.from
		at[e.to]++
	}
	reached := append([]bool(nil), s.calm...)
	var open []uint32
	for i, calm := range s.calm {
		if calm {
			open = append(open, uint32(i))
		}
	}
	for len(open) > 0 {
		to := open[len(open)-1]
		open = open[:len(open)-1]
		for _, from := range sources[begin[to]:begin[to+1]] {
			if !reached[from] {
				reached[from] = true
				open = append(open, from)
			}
		}
	}
	for i, r := range reached {
		if !r {
			return uint32(i), true
		}
	}
	return 0, false
}

// path returns which successors lead to a state.
func (s *search) path(to uint32) []uint8 {
	var back []uint8
	for at := to; at != 0; at = s.from[at].parent {
		back = append(back, s.from[at].nth)
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// trace tells how a state was found.
func (s *search) trace(to uint32) []string {
	state := initial(s.Bounds)
	var lines []string
	for _, nth := range s.path(to) {
		n := uint8(0)
		var after State
		var line string
		successors(&state, s.Bounds, func(a action, next *State) {
			if n == nth {
				after, line = *next, describe(a, &state, next, s.Bounds)
			}
			n++
		})
		state = after
		lines = append(lines, line)
	}
	return lines
}
