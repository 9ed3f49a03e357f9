package model

// Invariant is what must be true in every state, whatever happens.
type Invariant uint8

// The invariants, with the promises of docs/guarantees.md in brackets.
const (
	Fine       Invariant = iota
	Exclusion            // [1] two apps are told that they hold the key
	TokensGrow           // [3] a token is not larger than all before
	Deadline             // [2] an app is told that it holds the key, and its lease has ended
	Committed            // [4] an app is told that it holds the key, and the store knows nothing of it
	InTurn               // [5] the key is free, or somebody gets it, while another waits
	Forgotten            // [5] somebody waits for a dead holder's key, and nobody is handing it off
	Orphan               // [7, 9] a living lease has the key, or a place in line, and nobody knows
	Asked                // [17] a request to stop reaches a second holder
	Places               // [19] a shared key has more holders than its limit, two in a slot, or two limits
	Kept                 // [11] a MinHold that is not over does not keep its key
	Stuck                // there is no way from here to where nobody waits and the key can be had
	invariants
)

var invariantNames = [invariants]string{
	"none", "1, exclusion", "2, tokens grow", "3, nobody believes a lease that has ended", "4, told only after the commit",
	"5, never free or overtaken while somebody waits", "5, nobody who waits is forgotten", "6 and 7, no orphans",
	"a request to stop reaches one holder", "never more holders than the limit, nor two in a slot", "a hold keeps its key", "nothing gets stuck",
}

func (i Invariant) String() string { return invariantNames[i] }

// check returns which invariant does not hold in a state.
func (s *State) check(b *Bounds) Invariant {
	if s.broken != Fine {
		return s.broken
	}
	if s.believers(b) > 1 {
		return Exclusion
	}
	for i := range b.Sidecars {
		if !s.believes(i) {
			continue
		}
		c := &s.sc[i]
		switch {
		case s.db.holder != c.heldUnder || s.db.token != c.token:
			return Committed
		case !s.db.lives(c.heldUnder) && (!s.db.promoted || !s.db.exists(c.heldUnder)):
			return Deadline // a clock that was just made the judge has no say before new_history
		}
	}
	first := s.db.firstLiving()
	switch {
	case first.grant != 0 && s.db.holder == 0:
		return InTurn
	case first.grant != 0 && !s.db.exists(s.db.holder) && !s.excused && !s.attended(b):
		return Forgotten
	case s.orphanedLock(), s.orphanedWaiter():
		return Orphan
	}
	return Fine
}

func (s *State) believers(b *Bounds) (n int) {
	for i := range b.Sidecars {
		if s.believes(i) {
			n++
		}
	}
	return n
}

// attended reports whether somebody who has reaped the holder goes on with that.
func (s *State) attended(b *Bounds) bool {
	for i := range b.Sidecars {
		for l := range s.sc[i].ops {
			o := &s.sc[i].ops[l]
			reaps := o.kind != nothing && o.step != atAnswer && (o.dead == s.db.holder || o.from == s.db.holder)
			if reaps && (!o.cut || o.step == atGive) {
				return true
			}
		}
	}
	return false
}

// keeps reports whether a lease goes on and on: it lives, and its sidecar trusts it.
func (s *State) keeps(l leaseID) bool {
	return s.db.lives(l) && s.sc[l.owner()].up && s.alive(l)
}

// orphanedLock: the key is held under a lease that is renewed, for nobody.
func (s *State) orphanedLock() bool {
	l := s.db.holder
	if !s.keeps(l) {
		return false
	}
	c := &s.sc[l.owner()]
	switch c.phase {
	case idle:
		return true
	case held, releasing:
		return c.heldUnder != l || c.token != s.db.token
	default: // its attempt will hear of it
		return s.db.grant != attemptID(l.owner()+1)
	}
}

// orphanedWaiter: somebody has a place in line who does not wait for it.
func (s *State) orphanedWaiter() bool {
	for _, w := range s.db.queue {
		if w.grant == 0 || !s.keeps(w.lease) {
			continue
		}
		phase := s.sc[w.lease.owner()].phase
		if w.grant == former || phase == idle || phase == held || phase == releasing {
			return true
		}
	}
	return false
}

// calm is where everything ends that goes on without new wishes and faults: no attempt is
// open, nobody waits, and the key is free, or will be when somebody asks.
func (s *State) calm(b *Bounds) bool {
	for i := range b.Sidecars {
		if s.sc[i].up && s.sc[i].phase != idle {
			return false
		}
	}
	return s.db.firstLiving().grant == 0 && !s.keeps(s.db.holder)
}
