package model

// verb is what can happen.
type verb uint8

const (
	opens verb = iota
	opensNot
	attempts
	waits // a attempt that goes into line at once
	leaves
	checks
	renewal
	slow // a renewal that takes long
	reap
	goes // a cancel, release or withdraw is sent
	loses
	steps   // a statement takes a step
	hears   // an answer arrives
	hearsNo // a refusal arrives, and the call does not wait
	early   // an answer arrives before the commit: see AfterCommit
	drops   // what was cut off is never carried out
	cuts
	ticks
	sleeps // a tick in which a sidecar's machine is suspended: see Suspension
	crashes
	restarts
	lags
	promotes
	promotesAhead // the new server's clock is ahead
)

// action is one thing that happens: to which sidecar, in which lane.
type action struct {
	verb      verb
	who, lane uint8
}

// progress reports whether an action is none of those that go wrong, and no new wish.
func (a action) progress() bool {
	switch a.verb {
	case leaves, checks, renewal, reap, goes, steps, hearsNo, drops, ticks, loses, hears:
		return true
	default:
		return false
	}
}

// successors calls yield for each thing that can happen next, and what is then.
func successors(s *State, b *Bounds, yield func(action, *State)) {
	n := new(State) // each successor in its turn: yield keeps none
	try := func(a action, do func(n *State) bool) {
		*n = *s
		if do(n) {
			n.settle(b)
			yield(a, n)
		}
	}
	if eager(s, b, try) {
		return
	}
	for i := range b.Sidecars {
		sidecarActions(s, b, i, try)
		for l := range lanes {
			laneActions(s, b, i, l, try)
		}
	}
	worldActions(s, b, try)
}

type tryFunc func(action, func(n *State) bool)

// eager tries what makes no difference to anybody else, and happens sooner or later: to
// do it first leaves out the states in which others were before it. A sidecar sends what
// it has to send; and where nothing can go wrong any more, an answer arrives.
func eager(s *State, b *Bounds, try tryFunc) (found bool) {
	calm := s.faults == 0 && s.crashes == 0 && s.failovers == 0 && b.Off == 0
	for i := range b.Sidecars {
		who := uint8(i)
		first := func(v verb, do func(side) bool) {
			try(action{v, who, 0}, func(n *State) bool {
				found = !found && s.sc[i].up && do(n.side(b, i))
				return found
			})
		}
		if first(reap, side.reap); found {
			return true
		}
		if first(goes, side.goesOn); found {
			return true
		}
		for l := range lanes {
			if o := &s.sc[i].ops[l]; calm && o.kind != nothing && o.step == atAnswer && o.kind != renew {
				laneActions(s, b, i, l, try)
				return true
			}
		}
	}
	return false
}

func sidecarActions(s *State, b *Bounds, i int, try tryFunc) {
	who := uint8(i)
	if !s.sc[i].up {
		try(action{restarts, who, 0}, func(n *State) bool { return n.restart(i) })
		return
	}
	at := func(n *State) side { return n.side(b, i) }
	try(action{opens, who, 0}, func(n *State) bool { return at(n).open(false) })
	try(action{opensNot, who, 0}, func(n *State) bool { return at(n).open(true) })
	try(action{attempts, who, 0}, func(n *State) bool { return at(n).begin(acquire) })
	try(action{waits, who, 0}, func(n *State) bool { return n.otherHolds(i) && at(n).begin(enqueue) })
	try(action{leaves, who, 0}, func(n *State) bool { return at(n).leave() })
	try(action{checks, who, 0}, func(n *State) bool { return at(n).check() })
	try(action{renewal, who, 0}, func(n *State) bool { return at(n).renew(false) })
	try(action{slow, who, 0}, func(n *State) bool { return at(n).renew(true) })
	try(action{loses, who, 0}, func(n *State) bool { return at(n).loses() })
	if s.crashes > 0 {
		try(action{crashes, who, 0}, func(n *State) bool { return n.crash(b, i) })
	}
}

// otherHolds keeps enqueues for where there may be somebody to wait for.
func (s *State) otherHolds(i int) bool { return s.db.holder != 0 && s.db.grant != attemptID(i+1) }

func laneActions(s *State, b *Bounds, i, l int, try tryFunc) {
	o := &s.sc[i].ops[l]
	if o.kind == nothing {
		return
	}
	who, lane := uint8(i), uint8(l)
	at := func(n *State) run { return run{n, b, &n.sc[i].ops[l], i} }
	switch {
	case o.step == atAnswer:
		try(action{hears, who, lane}, func(n *State) bool { n.side(b, i).hear(l, true); return true })
		if o.kind == acquire && o.answer == isHeld && s.sc[i].wanted {
			try(action{hearsNo, who, lane}, func(n *State) bool { n.side(b, i).hear(l, false); return true })
		}
	case !at(s).blocked():
		try(action{steps, who, lane}, func(n *State) bool { at(n).advance(); return true })
	}
	switch {
	case o.cut:
		try(action{drops, who, lane}, func(n *State) bool { n.excuse(o); n.sc[i].ops[l] = op{}; return true })
	case s.faults > 0:
		try(action{cuts, who, lane}, func(n *State) bool { n.faults--; n.side(b, i).cut(l); return true })
	}
	if o.step == atTake && !o.cut && !b.on(AfterCommit) {
		try(action{early, who, lane}, func(n *State) bool {
			n.sc[i].ops[l].cut = true
			n.side(b, i).win(n.db.next())
			return true
		})
	}
}

func worldActions(s *State, b *Bounds, try tryFunc) {
	try(action{ticks, 0, 0}, func(n *State) bool { return n.tick(b, most) })
	if !b.on(Suspension) {
		for i := range b.Sidecars {
			try(action{sleeps, uint8(i), 0}, func(n *State) bool { return n.tick(b, i) })
		}
	}
	if s.failovers == 0 {
		return
	}
	if b.Asynchronous && !s.behind {
		try(action{lags, 0, 0}, func(n *State) bool { n.behind, n.standby = true, n.db; return true })
	}
	if b.Asynchronous && !s.behind {
		return // that is a synchronous failover
	}
	try(action{promotes, 0, 0}, func(n *State) bool { n.promote(b, false); return true })
	try(action{promotesAhead, 0, 0}, func(n *State) bool { n.promote(b, true); return true })
}

// tick is a tick of all clocks, but that of a machine that sleeps. An operation whose
// time is up is given up: that is one of the cuts that there may be.
func (s *State) tick(b *Bounds, asleep int) bool {
	for i := range b.Sidecars {
		side := s.side(b, i)
		for l := range s.sc[i].ops {
			o := &s.sc[i].ops[l]
			if o.kind == nothing {
				continue
			}
			up := o.due == 1 && o.kind != renew
			down(&o.due)
			if o.kind == renew || o.kind == open {
				o.age = min(o.age+1, b.TTL)
			}
			switch {
			case o.cut:
				side.forget(o)
			case up && s.faults == 0:
				return false
			case up:
				s.faults--
				side.cut(l)
			}
		}
		down(&s.sc[i].pause)
		if i != asleep && !side.age() {
			return false
		}
	}
	s.db.tick()
	s.standby.tick()
	switch {
	case s.believers(b) < 2:
		s.both = 0
	case s.both <= b.TTL:
		s.both++
	}
	return true
}

// age is a tick of a sidecar's clock. The end of a lease that something is held under is
// one of the possible faults: it was not renewed in time.
func (s side) age() bool {
	for slot := range s.leases {
		l := &s.leases[slot]
		id := idOf(s.who, slot)
		switch {
		case l.state != trusted || l.left != 1:
		case s.phase == idle && s.unridden(id): // it is closed
			*l, s.db.leases[id] = belief{}, leaseRow{}
		case s.phase != idle && s.heldUnder == id:
			if s.faults == 0 {
				return false
			}
			s.faults--
		}
		down(&l.left)
	}
	return true
}

// unridden reports whether nothing is held under a lease, and nothing that is under way may.
func (s side) unridden(l leaseID) bool {
	for _, w := range s.db.queue {
		if w.lease == l {
			return false
		}
	}
	for lane := range s.ops {
		if s.ops[lane].kind != nothing && s.ops[lane].lease == l {
			return false
		}
	}
	return s.db.holder != l
}

// crash ends a sidecar, and its app's belief with it. Its statements on their way may still
// be carried out.
func (s *State) crash(b *Bounds, i int) bool {
	s.crashes--
	for l := range lanes {
		s.side(b, i).silence(l)
	}
	s.sc[i] = sidecar{ops: s.sc[i].ops}
	return true
}

// restart is the next sidecar on the same socket: it reaps its predecessor's leases
// (heartbeat/predecessors.go).
func (s *State) restart(i int) bool {
	s.sc[i].up = true
	for slot := range slots {
		if s.db.exists(idOf(i, slot)) {
			s.sc[i].leases[slot].state = lost
		}
	}
	return true
}

// promote makes the standby the server. The old one is off; what it was doing is not
// done, what had not reached it may reach the new one; answers on the way arrive.
func (s *State) promote(b *Bounds, ahead bool) {
	s.failovers--
	for i := range b.Sidecars {
		for l := range s.sc[i].ops {
			o := s.sc[i].ops[l]
			if o.kind == nothing || o.step == atAnswer {
				continue
			}
			midway := o.step == atTake || o.step == atAskDo || o.step == atGive || o.step == atRenewDo
			if !o.cut {
				s.side(b, i).cut(l)
			}
			if midway {
				s.sc[i].ops[l] = op{}
			}
		}
	}
	if s.behind {
		s.db = s.standby
	}
	s.standby, s.behind = database{}, false
	if ahead {
		for l := range s.db.leases {
			s.db.leases[l].left = 0
		}
	}
	for l := range s.db.leases {
		s.db.leases[l].old = s.db.leases[l].there
	}
	s.db.promoted = true
}

// initial is where all begins.
func initial(b *Bounds) State {
	var s State
	for i := range b.Sidecars {
		s.sc[i].up = true
	}
	s.faults, s.crashes, s.failovers = b.Faults, b.Crashes, b.Failovers
	s.attempts = b.Attempts
	if b.Forgot != 0 {
		s.forget(b)
	}
	return s
}

// forget begins in the middle, with a standby that is behind.
func (s *State) forget(b *Bounds) {
	mine := idOf(0, 0)
	s.sc[0].leases[0] = belief{trusted, s.side(b, 0).trustFor(0)}
	s.db.leases[mine] = leaseRow{there: true, left: b.TTL}
	free, taken := s.db, s.db
	taken.holder, taken.grant, taken.token = mine, 1, 1
	free.token = 1
	s.top, s.behind = 1, true
	if b.Forgot == aRelease {
		s.db, s.standby = free, taken
		return
	}
	free.token = 0
	s.db, s.standby = taken, free
	s.sc[0].phase, s.sc[0].wanted, s.sc[0].token, s.sc[0].heldUnder = held, true, 1, mine
}
