package model

import (
	"fmt"
	"time"
)

// happens calls yield for each thing that can happen next to a crowd. goesWell: it happens by itself where nothing
// goes wrong.
func (s *Crowd) happens(b *CohortBounds, yield func(what string, goesWell bool, n Crowd)) {
	try := func(what string, goesWell bool, do func(*Crowd) bool) {
		n := *s
		if do(&n) {
			yield(what, goesWell, n.settled())
		}
	}
	for i := range b.Pods {
		s.waitHappens(b, callID(i+1), try)
		s.holdHappens(b, callID(i+1), try)
	}
	for pod, name := range []string{"A", "B"} {
		try(name+" crashes", false, func(n *Crowd) bool {
			if n.crashes == 0 || n.lost[pod] {
				return false
			}
			n.crashes--
			n.fall(b, pod)
			return true
		})
		try("the lease of "+name+" is reaped", true, func(n *Crowd) bool {
			if !n.lost[pod] || n.dead[pod] {
				return false
			}
			n.reap(b, pod)
			return true
		})
	}
	try("somebody asks the holder to stop", false, func(n *Crowd) bool {
		if n.stops == 0 || n.holder == 0 || n.stopping {
			return false
		}
		n.stops--
		n.stopping, n.asked, n.heard, n.askedOf, n.askedOfPod = true, true, 0, n.token, uint8(b.pod(n.holder))
		return true
	})
	try("the request to stop is heard", true, func(n *Crowd) bool { n.hear(b); return n.asked })
	try("the request to stop is acknowledged", true, func(n *Crowd) bool {
		was := n.asked
		n.asked, n.askedOf, n.askedOfPod, n.heard = false, 0, 0, 0
		return was
	})
}

type tryCrowd func(what string, goesWell bool, do func(n *Crowd) bool)

// stepOf tries what a call does, fault what may go wrong with it.
func (c callID) stepOf(try tryCrowd) (step func(what string, goesWell bool, do func(*Crowd, *waitingCall) bool), fault func(what string, do func(*Crowd, *waitingCall) bool)) {
	step = func(what string, goesWell bool, do func(*Crowd, *waitingCall) bool) {
		try(callName(c)+" "+what, goesWell, func(n *Crowd) bool { return do(n, n.call(c)) })
	}
	fault = func(what string, do func(*Crowd, *waitingCall) bool) {
		step(what, false, func(n *Crowd, g *waitingCall) bool {
			if n.faults == 0 {
				return false
			}
			n.faults--
			return do(n, g)
		})
	}
	return step, fault
}

// waitHappens is what can happen to a call until it has the key.
func (s *Crowd) waitHappens(b *CohortBounds, c callID, try tryCrowd) {
	step, fault := c.stepOf(try)
	step("comes", false, func(n *Crowd, g *waitingCall) bool {
		switch {
		case g.phase != absent || n.lost[b.pod(c)]:
			return false
		case n.holder == 0:
			n.give(b, c)
			g.phase, g.told = holds, false
		default:
			g.phase, n.queue = inQueue, n.queue.with(c)
		}
		return true
	})
	step("hears of its grant", true, func(n *Crowd, g *waitingCall) bool { return g.told && n.win(c) })
	fault("does not hear of its grant", func(_ *Crowd, g *waitingCall) bool {
		was := g.told
		g.told, g.waiting = false, calls{}
		return was
	})
	step("looks, and finds its grant", true, func(n *Crowd, g *waitingCall) bool {
		found := n.holder == c && n.lives(b, c) && g.phase == inQueue && g.token == n.token
		if found {
			g.waiting = calls{}
		}
		return found && n.win(c)
	})
	step("leaves the queue", false, func(n *Crowd, g *waitingCall) bool {
		if g.phase != inQueue || n.left == 0 {
			return false
		}
		n.left--
		g.phase = cancels
		return true
	})
	step("is taken out of the queue", true, func(n *Crowd, g *waitingCall) bool {
		if g.phase != cancels {
			return false
		}
		n.queue = n.queue.without(func(w callID) bool { return w == c })
		if n.holder == c && g.token == n.token {
			return n.win(c)
		}
		g.phase = isGone
		return true
	})
}

// holdHappens is what can happen to a call that has the key, or had it.
func (s *Crowd) holdHappens(b *CohortBounds, c callID, try tryCrowd) {
	step, fault := c.stepOf(try)
	step("hands the key on", true, func(n *Crowd, g *waitingCall) bool { return g.phase == holds && n.handOn(b, c) })
	step("gives the key back", true, func(_ *Crowd, g *waitingCall) bool { // the cohort's time is over, or nobody of it is left
		was := g.phase == holds
		g.phase = releases
		return was
	})
	step("releases", true, func(n *Crowd, g *waitingCall) bool {
		was := g.phase == releases
		if was {
			n.release(b, c)
			n.call(c).phase = isGone
		}
		return was
	})
	fault("releases, and hears no answer", func(n *Crowd, g *waitingCall) bool {
		n.release(b, c)
		return g.phase == releases
	})
	fault("sends a release that comes late", func(_ *Crowd, g *waitingCall) bool {
		if g.phase != releases || g.late {
			return false
		}
		g.late = true
		return true
	})
	step("is released late", true, func(n *Crowd, g *waitingCall) bool {
		was := g.late
		if g.late = false; was {
			n.release(b, c)
		}
		return was
	})
	step("tells the store that it has the key", false, func(_ *Crowd, g *waitingCall) bool {
		if g.phase != holds || g.served == (calls{}) || g.tells {
			return false
		}
		g.tells = true
		return true
	})
	step("is the holder for the store, too", true, func(n *Crowd, g *waitingCall) bool {
		was := g.tells
		if g.tells = false; was {
			n.amend(b, c)
		}
		return was
	})
}

// win is Attempt.win.
func (s *Crowd) win(c callID) bool {
	g := s.call(c)
	g.told = false
	switch g.phase {
	case inQueue:
		g.phase = holds
	case cancels:
		g.phase, g.waiting = releases, calls{}
	default:
	}
	return true
}

// settled leaves out what makes no difference any more.
func (s *Crowd) settled() Crowd {
	n := *s
	for i := range n.calls {
		if g := &n.calls[i]; g.phase == isGone && !g.late && !g.tells {
			*g = waitingCall{phase: isGone}
		}
	}
	return n
}

// SearchCohorts looks at all states of a crowd, but at most so many, and returns as soon as an invariant does not
// hold.
func SearchCohorts(b CohortBounds, most int) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	type origin struct {
		parent int
		what   string
	}
	first := Crowd{faults: b.Faults, crashes: b.Crashes, left: b.Leaves, stops: b.Stops}
	states, number, from := []Crowd{first}, map[Crowd]int{first: 0}, []origin{{}}
	trace := func(at int) (lines []string) {
		for ; at != 0; at = from[at].parent {
			lines = append([]string{fmt.Sprintf("%-42s %s", from[at].what, &states[at])}, lines...)
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
		s.happens(&b, func(what string, goesWell bool, n Crowd) {
			r.Steps++
			to, found := number[n]
			if !found {
				to = len(states)
				number[n] = to
				states, from, sources = append(states, n), append(from, origin{at, what}), append(sources, nil)
				if broken := n.check(&b); broken != Fine && r.Broken == Fine {
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
		if states[i].calm(&b) {
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
