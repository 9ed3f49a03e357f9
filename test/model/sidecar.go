package model

// This is package lease: it begins operations, hears their answers, and looks at its clock.
// side is one sidecar in one state.
type side struct {
	*State
	*Bounds
	*sidecar
	who int
}

func (s *State) side(b *Bounds, who int) side { return side{s, b, &s.sc[who], who} }

// start begins an operation in a lane.
func (s side) start(lane int, o op) {
	o.due = s.Timeout
	s.ops[lane] = o
}

// room returns a lane for what gives something up.
func (s side) room() (lane int, ok bool) {
	for _, lane := range []int{gives, asks} {
		if s.ops[lane].kind == nothing {
			return lane, true
		}
	}
	return 0, false
}

// busy reports whether an operation of that kind is under way, and heard of.
func (s side) busy(k kind) bool {
	for l := range s.ops {
		if s.ops[l].kind == k && !s.ops[l].cut && !s.ops[l].deaf {
			return true
		}
	}
	return false
}

// begin makes a attempt (attempt.start). A key that is known to be held is waited for at once.
func (s side) begin(k kind) bool {
	l := s.current(s.who)
	last := &s.ops[gives] // a release that was repeated may still come
	if s.phase != idle || !s.alive(l) || s.ops[asks].kind != nothing || last.kind != nothing && (!last.cut || last.kind != release) {
		return false
	}
	if s.Attempts > 0 {
		if s.attempts == 0 {
			return false
		}
		s.attempts--
	}
	s.State.forgetGrant(attemptID(s.who + 1))
	s.phase, s.wanted, s.heldUnder = asking, true, l
	first := op{kind: acquire, step: atBegin, lease: l}
	if k == enqueue {
		s.phase, first = enqueuing, op{kind: enqueue, step: atAsk, lease: l}
	}
	s.start(asks, first)
	return true
}

// forgetGrant makes a attempt id a new one: who has the old one has one that nobody knows.
// Nothing of the old one is under way.
func (s *State) forgetGrant(g attemptID) {
	for _, d := range []*database{&s.db, &s.standby} {
		if d.grant == g {
			d.grant = former
		}
		for i := range d.queue {
			if d.queue[i].grant == g {
				d.queue[i].grant = former
			}
		}
	}
}

// open makes a lease, in a slot that nothing names any more. Nobody else sees it, so that
// it is there at once, unless that goes wrong.
func (s side) open(wrong bool) bool {
	if s.current(s.who) != 0 || s.phase != idle || s.ops[renews].kind != nothing || wrong && s.faults == 0 {
		return false
	}
	for slot := range s.leases {
		l := idOf(s.who, slot)
		switch {
		case s.leases[slot].state != unused || !s.forgetLease(l):
			continue
		case wrong:
			s.faults--
			s.leases[slot].state = lost
			s.start(renews, op{kind: open, step: atOpen, lease: l, cut: true})
		default:
			s.leases[slot] = belief{trusted, s.trustFor(0)}
			s.db.leases[l] = leaseRow{there: true, left: s.TTL}
		}
		return true
	}
	return false
}

// trustFor is for how long a lease is trusted that was renewed so many ticks ago. A slow
// clock uses the margin up.
func (s side) trustFor(age uint8) uint8 {
	if !s.on(FromSending) {
		age = 0
	}
	left := s.TTL - min(age, s.TTL)
	if !s.on(Margin) {
		left++
	}
	return left
}

// forgetLease makes a lease id a new one, if the old one is dead and nothing under way
// names it. It reports whether that is so.
func (s *State) forgetLease(l leaseID) bool {
	if s.db.exists(l) || s.standby.exists(l) {
		return false
	}
	for i := range s.sc {
		for n := range s.sc[i].ops {
			if o := &s.sc[i].ops[n]; o.kind != nothing && (o.lease == l || o.from == l || o.dead == l) {
				return false
			}
		}
	}
	for _, d := range []*database{&s.db, &s.standby} {
		if d.holder == l {
			d.holder = gone
		}
		for i := range d.queue {
			if d.queue[i].lease == l {
				d.queue[i].lease = gone
			}
		}
	}
	return true
}

// renew renews the lease (heartbeat/renew.go). A renewal at once makes no difference to others; a
// slow one is one of the possible faults.
func (s side) renew(long bool) bool {
	l := s.current(s.who)
	if !s.alive(l) || s.ops[renews].kind != nothing || s.believed(l).left >= s.TTL {
		return false
	}
	atOnce := s.db.lives(l) && !s.renewing(l) && !s.db.promoted
	switch {
	case atOnce && !long:
		s.db.leases[l].left = s.TTL
		s.believed(l).left = s.trustFor(0)
		s.rotate(l)
		return true
	case atOnce && s.faults == 0, long && !atOnce:
		return false
	case long:
		s.faults--
	default:
	}
	s.start(renews, op{kind: renew, step: atRenew, lease: l})
	return true
}

// lose is Manager.lose: what is held under the lease is lost, its waits are over, it is to
// be reaped. Nobody hears of operations under way any more; the reap sees to them.
func (s side) lose(l leaseID) {
	*s.believed(l) = belief{state: lost}
	if s.phase != idle && s.heldUnder == l {
		s.over()
		s.deafen(asks)
		s.deafen(gives)
	}
	if o := &s.ops[renews]; o.kind != nothing && o.lease == l {
		s.deafen(renews)
	}
}

// deafen: the attempt, or the lease, for which something is under way is over.
func (s side) deafen(lane int) {
	o := &s.ops[lane]
	o.deaf = o.kind != nothing
	if o.step == atAnswer {
		*o = op{}
	}
}

// loses gives the current lease up: past its deadline; a bit earlier by a fast clock; or
// because nothing is held under it.
func (s side) loses() bool {
	l := s.current(s.who)
	if l == 0 || s.believed(l).state != trusted {
		return false
	}
	switch left := s.believed(l).left; {
	case left > 1:
		return false
	case left == 1 && s.phase != idle: // by a fast clock
		if s.faults == 0 {
			return false
		}
		s.faults--
	default:
	}
	s.lose(l)
	return true
}

func (s side) over() {
	s.phase, s.wanted, s.token, s.heldUnder, s.pause, s.withdrawn = idle, false, 0, 0, 0, 0
}

// reap sends the reap of a lost lease, or sweeps away one of which nobody knows.
func (s side) reap() bool {
	if s.ops[reaping].kind != nothing {
		return false
	}
	for slot, b := range s.leases {
		switch l := idOf(s.who, slot); {
		case b.state == lost:
			s.start(reaping, op{kind: reaped, step: atReap, lease: l, dead: l})
			return true
		case b.state == unused && s.db.exists(l) && !s.db.lives(l): // of a former life
			s.start(reaping, op{kind: sweep, step: atReap, lease: l, dead: l})
			return true
		}
	}
	return false
}

// check asks what became of a wait (queue.go): after news, or because it is time.
func (s side) check() bool {
	if s.phase != queued || s.ops[asks].kind != nothing {
		return false
	}
	s.start(asks, op{kind: check, step: atCheck})
	return true
}

// leave is the app's: it gives its lock back, or does not wait any longer.
func (s side) leave() bool {
	switch {
	case s.phase == held:
		s.phase, s.wanted = releasing, false
		return true
	case !s.wanted:
		return false
	case s.phase == queued, s.phase == enqueuing && !s.on(AfterOutcome):
		return s.cancels()
	default: // what it asked for is not known yet
		s.wanted = false
		return true
	}
}

// cancels takes the attempt out of the line.
func (s side) cancels() bool {
	lane, ok := s.room()
	if !ok {
		return false
	}
	s.phase, s.wanted = cancelling, false
	s.start(lane, op{kind: cancel, step: atCancel})
	return true
}

// goesOn does what a phase asks for: a cancel, a release, a withdrawal, again and again.
func (s side) goesOn() bool {
	lane, ok := s.room()
	if !ok {
		return false
	}
	switch {
	case s.phase == queued && !s.wanted:
		return s.cancels()
	case s.phase == releasing && !s.busy(release):
		s.start(lane, op{kind: release, step: atFree, lease: s.heldUnder, token: s.token})
	case s.phase == withdrawing && !s.busy(withdraw) && s.pause == 0:
		s.start(lane, op{kind: withdraw, step: atHand})
	default:
		return false
	}
	return true
}

// win is attempt.win: the lock is the app's, or is handed back if nobody wants it, or the
// lease is not trusted any more.
func (s side) win(token uint8) {
	s.token = token
	switch {
	case !s.on(GivesBack) && !s.wanted:
		s.over()
	case s.wanted && s.alive(s.heldUnder):
		s.phase = held
	default:
		s.phase, s.wanted = releasing, false
	}
}

// fail is what becomes of an operation that is cut off: attempt.fail, renewed.failing.
func (s side) fail(k kind) {
	switch k {
	case acquire, enqueue:
		if s.phase == asking || s.phase == enqueuing {
			s.unknown()
		}
	case cancel:
		if s.phase == cancelling {
			s.unknown()
		}
	case release:
		if s.phase == releasing && (!s.alive(s.heldUnder) || !s.on(AgainUntilHeard)) {
			s.over()
		}
	case withdraw:
		if s.phase == withdrawing && !s.alive(s.heldUnder) {
			s.over()
		}
	default: // it is sent again
	}
}

// unknown is the outcome of the attempt: it is withdrawn.
func (s side) unknown() {
	s.phase, s.wanted = withdrawing, false
	if !s.on(Withdraw) {
		s.over()
	}
}

// silence: nobody hears of an operation any more. An operation that is only an answer, or
// can do nothing any more, is gone.
func (s side) silence(lane int) {
	o := &s.ops[lane]
	switch {
	case o.kind == nothing, o.step == atAnswer:
		*o = op{}
	default:
		o.cut = true
		s.excuse(o)
		s.forget(o)
	}
}

// excuse notes that nobody goes on with a reap that has begun.
func (s *State) excuse(o *op) {
	for _, l := range []leaseID{o.dead, o.from} {
		if l != 0 && !s.db.exists(l) {
			s.excused = true
		}
	}
}

// forget takes away what can do nothing any more: it only looks, or comes too late.
func (s side) forget(o *op) {
	if !o.cut {
		return
	}
	late := o.due == 0 && s.on(NotAfter)
	switch o.step {
	case atLook, atContended, atCheck, atCheckAgain, atAnswer:
		*o = op{}
	case atBegin, atTake, atAsk, atOpen, atCancel:
		if late {
			*o = op{}
		}
	case atHand:
		if late && o.kind == withdraw {
			*o = op{}
		}
	default:
	}
}

// cut cuts an operation off.
func (s side) cut(lane int) {
	o := s.ops[lane]
	s.silence(lane)
	if !o.deaf {
		s.fail(o.kind)
	}
}

// hear hears an answer. A call that is denied may wait, or not.
func (s side) hear(lane int, waits bool) {
	o := s.ops[lane]
	s.ops[lane] = op{}
	switch o.kind {
	case acquire, enqueue:
		s.hearAsk(&o, waits)
	case check:
		s.hearCheck(&o)
	case cancel:
		s.hearCancel(&o)
	case release:
		if s.phase == releasing {
			s.over()
		}
	case withdraw:
		s.hearWithdrawal(&o)
	case reaped:
		*s.believed(o.lease) = belief{}
	case sweep:
	default:
		s.hearLease(&o)
	}
}

func (s side) hearAsk(o *op, waits bool) {
	if s.phase != asking && s.phase != enqueuing {
		return // cancelled, where that does not wait for this
	}
	switch o.answer {
	case granted:
		s.win(o.token)
	case isHeld:
		if !waits || !s.wanted {
			s.over()
			return
		}
		s.phase = enqueuing
		s.start(asks, op{kind: enqueue, step: atAsk, lease: s.heldUnder})
	case inLine:
		s.phase = queued
	case leaseLost:
		s.lose(s.heldUnder)
	default:
		s.over()
	}
}

func (s side) hearCheck(o *op) {
	switch {
	case s.phase != queued && s.phase != cancelling:
	case o.answer == granted:
		s.win(o.token)
	case o.answer == notThere && s.phase == queued:
		s.over()
	default:
	}
}

func (s side) hearCancel(o *op) {
	switch {
	case s.phase != cancelling:
	case o.answer == granted:
		s.win(o.token)
	case o.answer == notThere:
		s.over()
	default:
		s.fail(cancel)
	}
}

// hearWithdrawal is Manager.withdraw: once more when the attempt is two timeouts old.
func (s side) hearWithdrawal(o *op) {
	if s.phase != withdrawing || o.answer == failed {
		return
	}
	s.withdrawn++
	if s.withdrawn == 2 || !s.alive(s.heldUnder) || !s.on(LastWord) {
		s.over()
		return
	}
	s.pause = 2 * s.Timeout
}

func (s side) hearLease(o *op) {
	b := s.believed(o.lease)
	left := s.trustFor(o.age)
	revived := b.state == trusted && b.left == 0 && s.on(NeverRevived)
	if o.answer != done || left == 0 || revived {
		s.lose(o.lease)
		return
	}
	b.left = left
	if o.kind == renew {
		s.rotate(o.lease)
	}
}
