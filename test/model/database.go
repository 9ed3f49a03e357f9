package model

// step is where an operation is. Each is a transaction of the database, or a part of one
// between two of its locks; those in which it has the lock row locked say so.
type step uint8

const (
	atBegin      step = iota // acquire_one: what it sees before it may have to wait
	atTake                   // its ON CONFLICT DO UPDATE, with the row locked
	atLook                   // read
	atAsk                    // ask: the lock row, the own lease, the holder's FOR KEY SHARE
	atAskDo                  // the rest of it; the lock row is locked
	atFree                   // release_one
	atHand                   // pass_on, in hand_off, release, withdraw: it chooses a waiter
	atGive                   // it looks again, and gives; the lock row is locked
	atCancel                 // cancel_one
	atCheck                  // check
	atCheckAgain             // check, after a reap
	atReap                   // reap_one
	atContended              // reap_waited
	atDrop                   // reap_rest
	atOpen                   // lease_open
	atRenew                  // lease_renew: it looks, and locks the lease
	atRenewDo                // its update is committed; the lease is locked
	atHistory                // new_history
	atAnswer                 // the answer is on its way
)

// run is one operation in one state, about to take a step.
type run struct {
	*State
	*Bounds
	*op
	who int
}

func (r run) me() attemptID { return attemptID(r.who + 1) }

// rowLocked reports whether a transaction has the lock row.
func (s *State) rowLocked() bool {
	for i := range s.sc {
		for l := range s.sc[i].ops {
			if o := &s.sc[i].ops[l]; o.kind != nothing && (o.step == atAskDo || o.step == atGive) {
				return true
			}
		}
	}
	return false
}

// leaseLocked reports whether a lease cannot be deleted now: it is being renewed, or an
// ask has it locked FOR KEY SHARE.
func (s *State) leaseLocked(b *Bounds, l leaseID) bool {
	for i := range s.sc {
		for n := range s.sc[i].ops {
			o := &s.sc[i].ops[n]
			if o.kind == renew && o.step == atRenewDo && o.lease == l {
				return true
			}
			if o.kind != nothing && o.step == atAskDo && o.seen >= seenExpired && s.db.holder == l && b.on(KeyShare) {
				return true
			}
		}
	}
	return false
}

// blocked reports whether a step waits for a row that another transaction has locked.
func (r run) blocked() bool {
	switch r.step {
	case atTake, atAsk, atFree:
		return r.rowLocked()
	case atHand:
		return r.rowLocked() && (r.kind != withdraw || r.on(WithdrawLocks))
	case atReap:
		return r.exists(r.dead) && r.leaseLocked(r.Bounds, r.dead)
	case atRenew:
		return r.exists(r.lease) && r.renewing(r.lease)
	default:
		return false
	}
}

func (r run) exists(l leaseID) bool { return r.db.exists(l) }

func (s *State) renewing(l leaseID) bool {
	for i := range s.sc {
		if o := &s.sc[i].ops[renews]; o.kind == renew && o.step == atRenewDo && o.lease == l {
			return true
		}
	}
	return false
}

// advance takes the step.
func (r run) advance() {
	switch r.step {
	case atBegin:
		r.acquireBegin()
	case atTake:
		r.acquireTake()
	case atLook:
		r.look()
	case atAsk:
		r.askLook()
	case atAskDo:
		r.askDo()
	case atFree:
		r.free()
	case atHand:
		r.choose()
	case atGive:
		r.give()
	case atCancel:
		r.cancelOne()
	case atCheck, atCheckAgain:
		r.checkOne()
	case atReap, atContended, atDrop:
		r.reapStep()
	case atOpen, atRenew, atRenewDo:
		r.leaseStep()
	case atHistory:
		r.newHistory()
	case atAnswer:
	}
}

// then goes on with another statement, unless nobody is there to send it.
func (r run) then(next step) {
	if r.cut {
		r.excuse(r.op)
		*r.op = op{}
		return
	}
	r.step = next
}

func (r run) say(a answer) {
	r.answer, r.seen, r.back, r.from, r.dead, r.next = a, 0, 0, 0, 0, 0
	r.then(atAnswer)
	if r.deaf {
		*r.op = op{}
	}
	if o := *r.op; o.kind == reaped || o.kind == sweep { // there is nothing about it that could come late
		r.side(r.Bounds, r.who).hear(reaping, true)
	}
}

// inTime is the function in_time.
func (r run) inTime() bool { return r.due > 0 || !r.on(NotAfter) }

// inHistory is the function in_history. When it fails, new_history comes first, and the
// statement again.
func (r run) inHistory() bool {
	if !r.db.promoted || !r.on(HistoryCheck) {
		return true
	}
	back := r.step
	r.then(atHistory)
	r.back = back
	return false
}

func (r run) newHistory() {
	if r.db.promoted {
		r.db.promoted = false
		for l := range r.db.leases {
			row := &r.db.leases[l]
			if row.there && r.on(NewTTL) && !r.renewing(leaseID(l)) {
				row.left = max(row.left, r.TTL)
			}
		}
		if r.on(TokenJump) {
			r.db.first = r.top + 1
		}
	}
	r.then(r.back)
}
