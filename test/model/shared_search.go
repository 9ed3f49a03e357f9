package model

// happens calls yield for each thing that can happen next. goesWell: it happens by itself where nothing goes wrong.
func (s *Shared) happens(b *SharedBounds, yield func(what string, goesWell bool, n Shared)) {
	try := func(what string, goesWell bool, do func(*Shared) bool) {
		n := *s
		if do(&n) {
			yield(what, goesWell, n.settled())
		}
	}
	for i := range b.Pods {
		s.callHappens(b, callID(i+1), try)
	}
	for pod, name := range []string{"A", "B"} {
		s.podHappens(b, pod, name, try)
	}
	try("a standby is promoted that misses the last share", false, func(n *Shared) bool {
		last := callID(0)
		for _, h := range n.holders {
			if h != 0 && (last == 0 || n.call(h).token > n.call(last).token) {
				last = h
			}
		}
		if n.failovers == 0 || last == 0 || n.call(last).phase != holds {
			return false
		}
		n.failovers--
		n.end(last)
		n.forgotten, n.quiet = last, true
		return true
	})
	try("the quiet time is over", true, func(n *Shared) bool { // its sidecar has verified the share before, or lost its lease
		if !n.quiet || n.forgotten != 0 && b.on(EachVerified) {
			return false
		}
		n.quiet = false
		n.pass(b) // those who wait look then
		return true
	})
}

type tryShared func(what string, goesWell bool, do func(n *Shared) bool)

func (s *Shared) podHappens(b *SharedBounds, pod int, name string, try tryShared) {
	try(name+" crashes, or loses its lease", false, func(n *Shared) bool {
		if n.crashes == 0 || n.lost[pod] {
			return false
		}
		n.crashes--
		n.fall(b, pod)
		return true
	})
	try("the lease of "+name+" is isReaped", true, func(n *Shared) bool {
		if !n.lost[pod] || n.lease[pod] == isReaped {
			return false
		}
		n.reap(b, pod)
		return true
	})
	try("the lease of "+name+" looks expired", false, func(n *Shared) bool {
		if n.faults == 0 || n.lost[pod] || n.lease[pod] != living {
			return false
		}
		n.faults--
		n.lease[pod] = isRenewed
		return true
	})
	try("the lease of "+name+" is renewed", true, func(n *Shared) bool {
		if n.lease[pod] != isRenewed {
			return false
		}
		n.lease[pod], n.looks[pod] = living, !n.lost[pod] // with a check of its waiters
		return true
	})
	try(name+" lets in who fits", true, func(n *Shared) bool {
		was := n.looks[pod]
		if n.looks[pod] = false; was {
			n.pass(b)
		}
		return was
	})
}

// callHappens is what can happen to a call.
func (s *Shared) callHappens(b *SharedBounds, c callID, try tryShared) {
	step := func(what string, goesWell bool, in callPhase, do func(n *Shared, g *sharer)) {
		try(callName(c)+" "+what, goesWell, func(n *Shared) bool {
			is := n.call(c).phase == in && !n.lost[b.pod(c)]
			if is {
				do(n, n.call(c))
			}
			return is
		})
	}
	fault := func(what string, in callPhase, do func(n *Shared, g *sharer)) {
		if s.faults > 0 {
			step(what, false, in, func(n *Shared, g *sharer) { n.faults--; do(n, g) })
		}
	}
	step("comes", false, absent, func(n *Shared, _ *sharer) { n.ask(b, c) })
	fault("comes, and hears no answer", absent, func(n *Shared, g *sharer) {
		n.ask(b, c)
		g.phase, g.told = withdraws, false
	})
	step("is withdrawn", true, withdraws, func(n *Shared, g *sharer) {
		n.queue = n.queue.without(func(w callID) bool { return w == c })
		if b.on(AlsoWithdrawn) {
			n.end(c)
		}
		n.pass(b)
		*g = sharer{phase: isGone}
	})
	if s.call(c).told {
		for _, phase := range []callPhase{inQueue, cancels} {
			step("hears of its grant", true, phase, func(n *Shared, _ *sharer) { n.hear(b, c) })
			fault("does not hear of its grant", phase, func(_ *Shared, g *sharer) { g.told = false })
		}
	} else if s.holders.has(c) {
		step("looks, and finds its grant", true, inQueue, func(n *Shared, _ *sharer) { n.hear(b, c) })
	}
	if b.on(WaiterLooks) && s.missed && s.queue.has(c) {
		step("lets in who fits", true, inQueue, func(n *Shared, _ *sharer) { n.missed = false; n.pass(b) })
	}
	if s.leave > 0 {
		step("leaves the queue", false, inQueue, func(n *Shared, g *sharer) { n.leave--; g.phase = cancels })
	}
	step("is taken out of the queue", true, cancels, func(n *Shared, g *sharer) {
		if n.holders.has(c) {
			n.hear(b, c)
			return
		}
		n.queue = n.queue.without(func(w callID) bool { return w == c })
		n.looks[b.pod(c)] = n.looks[b.pod(c)] || b.on(LeaverLooks)
		*g = sharer{phase: isGone}
	})
	s.holderHappens(b, c, step, fault)
}

// holderHappens is what can happen to a call that has the key.
func (s *Shared) holderHappens(b *SharedBounds, c callID,
	step func(what string, goesWell bool, in callPhase, do func(*Shared, *sharer)), fault func(what string, in callPhase, do func(*Shared, *sharer)),
) {
	step("gives its permit back", true, holds, func(_ *Shared, g *sharer) { g.phase = releases })
	step("releases", true, releases, func(n *Shared, g *sharer) {
		n.release(b, c)
		*g = sharer{phase: isGone}
	})
	fault("releases, and hears no answer", releases, func(n *Shared, _ *sharer) { n.release(b, c) })
	if b.Modes[c-1] == 'd' && s.all && s.holders.has(c) {
		step("is to be shared", false, holds, func(_ *Shared, g *sharer) { g.phase = downgrades })
	}
	step("is shared", true, downgrades, func(n *Shared, g *sharer) {
		n.downgrade(b, c)
		g.phase = holds
	})
	fault("is shared, and hears no answer", downgrades, func(n *Shared, _ *sharer) { n.downgrade(b, c) })
	if s.forgotten == c {
		for _, phase := range []callPhase{holds, downgrades, releases} {
			step("is verified", true, phase, func(n *Shared, _ *sharer) { n.verify(b, c) })
		}
	}
}

// settled leaves out what makes no difference any more.
func (s *Shared) settled() Shared {
	n := *s
	if n.forgotten != 0 && n.call(n.forgotten).phase == isGone {
		n.forgotten = 0
	}
	if n.queue == (calls{}) {
		n.missed = false
	}
	return n
}

// SearchShared looks at all states of a shared key, but at most so many, and returns as soon as an invariant does not hold.
func SearchShared(b SharedBounds, most int) Result {
	first := Shared{faults: b.Faults, crashes: b.Crashes, leave: b.Leaves, failovers: b.Failovers}
	return explore(first, most, space[Shared]{
		happens: func(s *Shared, yield func(string, bool, Shared)) { s.happens(&b, yield) },
		check:   func(s *Shared) Invariant { return s.check(&b) },
		calm:    func(s *Shared) bool { return s.calm(&b) },
		show:    func(s *Shared) string { return s.String() },
	})
}
