package model

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
			n.enqueue(b, c)
		}
		return true
	})
	step("hears what follows the holder", true, func(n *Crowd, g *waitingCall) bool {
		was := g.extendsOf != 0
		n.extend(b, c)
		return was
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
			n.adopt(b, c)
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
		if g := &n.calls[i]; g.phase == isGone && !g.late && !g.tells && g.extendsOf == 0 {
			*g = waitingCall{phase: isGone}
		}
	}
	return n
}

// SearchCohorts looks at all states of a crowd, but at most so many, and returns as soon as an invariant does not
// hold.
func SearchCohorts(b CohortBounds, most int) Result {
	first := Crowd{faults: b.Faults, crashes: b.Crashes, left: b.Leaves, stops: b.Stops}
	return explore(first, most, space[Crowd]{
		happens: func(s *Crowd, yield func(string, bool, Crowd)) { s.happens(&b, yield) },
		check:   func(s *Crowd) Invariant { return s.check(&b) },
		calm:    func(s *Crowd) bool { return s.calm(&b) },
		show:    func(s *Crowd) string { return s.String() },
	})
}
