package model

// acquireBegin and acquireTake are acquire_one. The source of the INSERT is read
// before it may have to wait for the row, its DO UPDATE decides by the row as it is then.
func (r run) acquireBegin() {
	switch {
	case r.db.holder == 0 && r.db.lives(r.lease) && r.inTime() && (!r.db.promoted || !r.on(HistoryCheck)):
		r.step = atTake
		if !r.on(TokenByRow) {
			r.token = r.db.next()
		}
	default:
		r.then(atLook)
	}
}

func (r run) acquireTake() {
	if (r.db.holder != 0 && r.on(NoOldView)) || !r.inTime() {
		r.then(atLook)
		return
	}
	if r.on(TokenByRow) {
		r.token = r.db.next()
	}
	r.grantNow(r.me(), r.lease, r.token, false)
	r.say(granted)
}

// grantNow writes a grant into the lock row.
func (r run) grantNow(g attemptID, l leaseID, token uint8, handOff bool) {
	if token <= r.top {
		r.broken = TokensGrow
	}
	if first := r.db.firstLiving(); !handOff && first.grant != 0 && first.grant != g {
		r.broken = InTurn
	}
	r.top = max(r.top, token)
	r.excused = false
	r.db.holder, r.db.grant, r.db.token = l, g, token
}

// look is what an acquire does that took nothing: batch.readHolders.
func (r run) look() {
	d := &r.db
	switch {
	case !d.lives(r.lease):
		r.say(leaseLost)
	case d.lives(d.holder) && d.grant == r.me():
		r.token = d.token
		r.say(granted)
	case d.lives(d.holder):
		r.say(isHeld)
	case d.holder != 0 && (d.exists(d.holder) || d.contended):
		r.from, r.dead = 0, d.holder
		r.then(atReap)
	default:
		r.then(atAsk)
	}
}

// askLook is the function ask, up to its look at the holder's lease.
func (r run) askLook() {
	if !r.inHistory() {
		return
	}
	switch {
	case !r.inTime():
		r.say(failed)
		return
	case !r.db.lives(r.lease):
		r.say(leaseLost)
		return
	case r.db.holder == 0:
		r.seen = seenFree
	case !r.exists(r.db.holder):
		r.seen = seenMissing
	case !r.db.lives(r.db.holder):
		r.seen = seenExpired
	default:
		r.seen = seenAlive
	}
	r.step = atAskDo
}

// askDo is the rest of ask: give, enqueue, or the answer.
func (r run) askDo() {
	d := &r.db
	waited := d.contended && d.queue[0].grant != 0
	switch {
	case r.seen == seenFree, r.seen == seenMissing && (!waited || !r.on(WaitersFirst)):
		r.token = d.next()
		r.grantNow(r.me(), r.lease, r.token, false)
		d.contended = d.queue[0].grant != 0
		r.say(granted)
	case r.seen != seenAlive:
		r.from, r.dead = 0, d.holder
		r.then(atReap)
	case d.grant == r.me():
		r.token = d.token
		r.say(granted)
	case r.kind == acquire:
		r.say(isHeld)
	default:
		d.contended = true
		d.drop(func(w waiter) bool { return w.grant == r.me() && w.lease != r.lease })
		d.enqueue(waiter{r.me(), r.lease})
		r.say(inLine)
	}
}

// free is release_one, which decides by the row that it has waited for.
func (r run) free() {
	d := &r.db
	if (d.token == r.token || !r.on(ByToken)) && d.holder == r.lease && d.lives(r.lease) && (!d.contended || !r.on(LooksAtContended)) {
		d.holder, d.grant = 0, 0
		r.say(done)
		return
	}
	r.then(atHand)
}

// choose is the first part of a hand-off: whose turn is it? In a release and a withdrawal it
// comes after what these look at in the lock row.
func (r run) choose() {
	d := &r.db
	if !r.inHistory() {
		return
	}
	switch r.kind {
	case withdraw:
		if !r.inTime() {
			r.say(failed)
			return
		}
		d.drop(func(w waiter) bool { return w.grant == r.me() })
		if d.grant != r.me() || d.holder == 0 {
			r.handedOff()
			return
		}
		r.from = d.holder
	case release:
		other := d.holder != r.lease || (d.token != r.token && r.on(ByToken))
		if other || !d.exists(d.holder) && !d.contended {
			r.handedOff()
			return
		}
		r.from = d.holder
	default:
		if d.holder != r.from {
			r.handedOff()
			return
		}
	}
	r.chooseNext()
}

// chooseNext is the loop of hand_off.
func (r run) chooseNext() {
	d := &r.db
	if w := d.firstLiving(); w.grant != 0 {
		r.next = w.grant
		r.step = atGive
		return
	}
	d.drop(func(w waiter) bool { return !d.exists(w.lease) })
	if w := d.queue[0]; w.grant != 0 && r.on(ExpiredIsNotDead) {
		r.dead = w.lease
		r.then(atReap)
		return
	}
	d.holder, d.grant, d.contended = 0, 0, false
	r.excused = false
	r.handedOff()
}

// give is the rest of hand_off. A waiter that was renewed, reaped or cancelled since it
// was chosen is looked at again.
func (r run) give() {
	d := &r.db
	for _, w := range d.queue {
		if w.grant == r.next && d.lives(w.lease) {
			r.handTo(w)
			return
		}
	}
	if !r.on(SeesTheWaiterGo) && r.next != former {
		r.handTo(waiter{r.next, r.current(int(r.next - 1))})
		return
	}
	r.next = 0
	r.chooseNext()
}

func (r run) handTo(w waiter) {
	r.db.drop(func(x waiter) bool { return x.grant == w.grant })
	r.grantNow(w.grant, w.lease, r.db.next(), true)
	r.db.contended = r.db.queue[0].grant != 0
	r.next = 0
	r.handedOff()
}

// handedOff goes on when a hand-off has an outcome other than expired.
func (r run) handedOff() {
	if r.kind == release || r.kind == withdraw {
		r.from = 0
		r.say(done)
		return
	}
	r.dead, r.from = r.from, 0
	r.then(atDrop)
}

// reapStep is operation.reap. from is not 0 when it is a waiter's lease that is reaped
// in the middle of a hand-off.
func (r run) reapStep() {
	d := &r.db
	switch r.step {
	case atReap:
		force := r.kind == reaped && r.dead == r.lease && r.from == 0
		if d.exists(r.dead) && !force && !d.lives(r.dead) && !r.inHistory() {
			return
		}
		if d.exists(r.dead) && (force || !d.lives(r.dead) || !r.on(ReapLooksAgain)) {
			d.leases[r.dead] = leaseRow{}
		}
		switch {
		case d.exists(r.dead):
			r.reaped() // it lives
		case r.from != 0:
			r.then(atDrop)
		default:
			r.then(atContended)
		}
	case atContended:
		if d.holder == r.dead && d.queue[0].grant != 0 {
			r.from = r.dead
			r.then(atHand)
			return
		}
		r.then(atDrop)
	default:
		d.drop(func(w waiter) bool { return w.lease == r.dead })
		r.reaped()
	}
}

// reaped goes on after a reap.
func (r run) reaped() {
	r.dead = 0
	switch {
	case r.from != 0:
		r.then(atHand)
	case r.kind == acquire, r.kind == enqueue:
		r.then(atAsk)
	case r.kind == check:
		r.then(atCheckAgain)
	default:
		r.say(done)
	}
}

// cancelOne is cancel_one: it locks no lock row.
func (r run) cancelOne() {
	if r.inTime() {
		r.db.drop(func(w waiter) bool { return w.grant == r.me() })
	}
	if !r.on(CancelReads) {
		r.say(notThere)
		return
	}
	r.then(atCheck)
}

// checkOne is check, in one snapshot, and what follows from it.
func (r run) checkOne() {
	d := &r.db
	if r.on(HistoryInCheck) && !r.inHistory() {
		return
	}
	inQueue := false
	for _, w := range d.queue {
		inQueue = inQueue || w.grant == r.me() && d.exists(w.lease)
	}
	switch {
	case inQueue && r.kind == cancel:
		r.say(failed) // too late, or somebody had it locked
	case inQueue && !d.lives(d.holder) && d.holder != 0 && r.step == atCheck:
		r.from, r.dead = 0, d.holder
		r.then(atReap)
	case inQueue:
		r.say(inLine)
	case d.grant == r.me() && d.lives(d.holder):
		r.token = d.token
		r.say(granted)
	default:
		r.say(notThere)
	}
}

// leaseStep opens and renews leases.
func (r run) leaseStep() {
	row := &r.db.leases[r.lease]
	switch r.step {
	case atOpen:
		if !r.inTime() {
			r.say(failed)
			return
		}
		*row = leaseRow{there: true, left: r.TTL}
		r.say(done)
	case atRenew:
		switch {
		case row.there && !r.inHistory():
		case row.there && row.left > 0:
			r.step, r.due = atRenewDo, r.TTL
		default:
			r.say(leaseLost)
		}
	default:
		row.left = r.due
		r.say(done)
	}
}
