package model

import (
	"fmt"
	"strings"
)

// This is a model of its own, of what State leaves out: several calls of one sidecar that wait for a key, and the
// cohort that a hand-off names (lease/internal/attempt/cohort.go, and cohort in store/postgres/code/hand_off.sql).
// A statement of the store is one step here, and a lease is trusted or not: State has the rest.

// CohortRule is a rule of cohorts. Each can be turned off, to see that the search finds what it is there for.
type CohortRule uint8

// The rules, and where they stand.
const (
	_              CohortRule = iota
	DirectlyBehind            // cohort: it ends at the first waiter that is not of the holder's lease
	ServedLeave               // drop_served: a release takes those who were served out of the queue
	TokenOfItsOwn             // HandOn: each of a cohort has the token after the one before
	Reserved                  // give: the next grant's token is behind those of a cohort
	OfOneGrant                // granted_token: a claim of who was served is one of the grant that the store knows
	PassesOver                // HandOn: a call that does not wait any more is passed over
	NotBackwards              // adopt: a late one does not make an earlier call the holder again
	StopEnds                  // handOn: who was asked to stop hands nothing on
	cohortRules
)

var cohortRuleNames = [cohortRules]string{
	"", "DirectlyBehind", "ServedLeave", "TokenOfItsOwn", "Reserved", "OfOneGrant", "PassesOver", "NotBackwards", "StopEnds",
}

func (r CohortRule) String() string { return cohortRuleNames[r] }

// CohortBounds are how much there is of everything, and how much may go wrong.
type CohortBounds struct {
	// Pods says behind which sidecar each call is: 'A' or 'B'. They may come in any order.
	Pods string
	// Faults is how many statements, answers and notifications are lost or late, Leaves how many calls leave the
	// queue, Stops how many requests to stop there are.
	Faults, Crashes, Leaves, Stops uint8
	Off                            CohortRule
}

func (b *CohortBounds) on(r CohortRule) bool { return b.Off != r }

const (
	mostCalls = 5
	// tokens is how many a grant has: as many as there are calls.
	tokens = mostCalls
)

// callID is 0 for none, or 1 + the number of a call.
type callID uint8

// calls are some of them, in order; the rest is 0.
type calls [mostCalls]callID

func (cs calls) with(c callID) calls {
	for i := range cs {
		if cs[i] == 0 {
			cs[i] = c
			return cs
		}
	}
	panic("more calls than the model has room for")
}

func (cs calls) without(drop func(callID) bool) (kept calls) {
	for _, c := range cs {
		if c != 0 && !drop(c) {
			kept = kept.with(c)
		}
	}
	return kept
}

func (cs calls) has(c callID) bool {
	for i := range cs {
		if cs[i] == c {
			return true
		}
	}
	return false
}

// Crowd is all that there is: a key, its queue, and the calls that want it.
type Crowd struct {
	// The lock row: who has it as far as the store knows; 0: nobody. And the waiters.
	holder   callID
	token    uint8
	stopping bool
	queue    calls
	dead     [2]bool // the sidecars' leases

	// The knowledge of the sidecars.
	lost  [2]bool // it is gone, or has lost its lease
	calls [mostCalls]waitingCall

	// A request to stop that was not acknowledged, the grant that it names, and how many have heard it.
	asked        bool
	askedOf      uint8
	askedOfPod   uint8
	heard        uint8
	faults, left uint8
	crashes      uint8
	stops        uint8

	top    uint8 // the largest token so far
	broken Invariant
}

// waitingCall is a call, and what its sidecar knows of its grant.
type waitingCall struct {
	phase           callPhase
	told            bool // the news of its grant is on its way
	token           uint8
	stopping        bool
	served, waiting calls // the cohort
	// The answer that queued the call is on its way. It names the cohort of the grant with this token, in which the
	// call is the last; 0: none.
	extends   calls
	extendsOf uint8
	// A release or an adoption that was sent, and may be carried out at any time.
	late, tells bool
}

type callPhase uint8

const (
	absent callPhase = iota
	inQueue
	cancels
	holds
	releases
	isGone
)

func (b *CohortBounds) pod(c callID) int { return int(b.Pods[c-1] - 'A') }

func (s *Crowd) call(c callID) *waitingCall { return &s.calls[c-1] }

// lives is what the store sees of a call's lease.
func (s *Crowd) lives(b *CohortBounds, c callID) bool { return !s.dead[b.pod(c)] }

// allot notes that a call is given a token, by the store or by its sidecar.
func (s *Crowd) allot(b *CohortBounds, c callID, token uint8) {
	if token <= s.top {
		s.broken = TokensGrow
	}
	s.top = max(s.top, token)
	if s.lost[b.pod(c)] {
		return
	}
	if phase := s.call(c).phase; phase != inQueue && phase != absent && phase != cancels {
		s.broken = Orphan
	}
	for _, before := range s.queue {
		if before == c {
			return
		}
		if before != 0 && s.call(before).phase == inQueue && s.lives(b, before) {
			s.broken = InTurn
		}
	}
}

// give is the function give, and cohort.
func (s *Crowd) give(b *CohortBounds, c callID) {
	next := s.token + tokens
	if !b.on(Reserved) {
		next = s.token + 1
	}
	s.allot(b, c, next)
	s.queue = s.queue.without(func(w callID) bool { return w == c })
	s.holder, s.token, s.stopping = c, next, false
	cohort := s.cohort(b)
	g := s.call(c)
	if g.phase == absent {
		cohort = calls{} // it took a free key
	}
	g.token, g.waiting, g.told = next, cohort, true
}

// cohort is the function cohort.
func (s *Crowd) cohort(b *CohortBounds) (cohort calls) {
	for _, w := range s.queue {
		same := w != 0 && b.pod(w) == b.pod(s.holder)
		if !same && b.on(DirectlyBehind) {
			break
		}
		if same {
			cohort = cohort.with(w)
		}
	}
	return cohort
}

// last is the last of the calls, or 0.
func (cs calls) last() (c callID) {
	for i := range cs {
		if cs[i] != 0 {
			c = cs[i]
		}
	}
	return c
}

// enqueue is ask for a held key: its answer names the cohort in which the call is the last.
func (s *Crowd) enqueue(b *CohortBounds, c callID) {
	g := s.call(c)
	g.phase, s.queue = inQueue, s.queue.with(c)
	if b.pod(c) != b.pod(s.holder) || s.stopping {
		return
	}
	if cohort := s.cohort(b); cohort.last() == c {
		g.extends, g.extendsOf = cohort, s.token
	}
}

// extend is Cohort.Extend, for the answer that queued a call.
func (s *Crowd) extend(b *CohortBounds, c callID) {
	g := s.call(c)
	for i := range b.Pods {
		h := &s.calls[i]
		if b.pod(callID(i+1)) != b.pod(c) || h.phase != holds {
			continue
		}
		if granted := h.token - h.served.number(); granted == g.extendsOf {
			h.waiting = g.extends.without(h.served.has)
		}
	}
	g.extends, g.extendsOf = calls{}, 0
}

// number is how many calls there are.
func (cs calls) number() (n uint8) {
	for i := range cs {
		if cs[i] != 0 {
			n++
		}
	}
	return n
}

// passOn is the function pass_on.
func (s *Crowd) passOn(b *CohortBounds) {
	for _, w := range s.queue {
		if w != 0 && s.lives(b, w) {
			s.give(b, w)
			return
		}
	}
	s.holder = 0
}

// claims is the function claim_status: whether the store finds that a call holds the key.
func (s *Crowd) claims(b *CohortBounds, c callID) bool {
	g := s.call(c)
	first := g.token
	if g.served != (calls{}) && g.token > s.token && g.token < s.token+tokens && b.on(OfOneGrant) {
		first = s.token
	}
	return s.holder != 0 && b.pod(s.holder) == b.pod(c) && s.lives(b, c) && first == s.token
}

// release is the function release.
func (s *Crowd) release(b *CohortBounds, c callID) {
	claims := s.claims(b, c)
	s.dropServed(b, c)
	if claims {
		s.passOn(b)
	}
}

// adopt is the function adopt.
func (s *Crowd) adopt(b *CohortBounds, c callID) {
	claims := s.claims(b, c)
	if !b.on(NotBackwards) && s.holder != 0 && b.pod(s.holder) == b.pod(c) && s.lives(b, c) {
		claims = true
	}
	s.dropServed(b, c)
	if g := s.call(c); claims && (g.token > s.token || !b.on(NotBackwards)) {
		s.holder, s.token = c, g.token
	}
}

func (s *Crowd) dropServed(b *CohortBounds, c callID) {
	if b.on(ServedLeave) {
		s.queue = s.queue.without(s.call(c).served.has)
	}
}

// handOn is Release.handOn and Acquirer.HandOn: a call that holds the key gives it to the next of its cohort.
func (s *Crowd) handOn(b *CohortBounds, c callID) bool {
	g := s.call(c)
	if g.stopping && b.on(StopEnds) {
		return false
	}
	for i, w := range g.waiting {
		if w == 0 || s.call(w).phase != inQueue && b.on(PassesOver) {
			continue
		}
		token := g.token
		if b.on(TokenOfItsOwn) {
			token++
		}
		s.allot(b, w, token)
		var rest calls
		copy(rest[:], g.waiting[i+1:])
		*s.call(w) = waitingCall{
			phase: holds, token: token, served: g.served.with(w), waiting: rest,
			extends: s.call(w).extends, extendsOf: s.call(w).extendsOf,
		}
		g.phase = isGone
		return true
	}
	return false
}

// hear is the request to stop, as the holder's sidecar gets it.
func (s *Crowd) hear(b *CohortBounds) {
	for i := range b.Pods {
		g := &s.calls[i]
		meant := g.token == s.askedOf || g.served != (calls{}) && g.token > s.askedOf && g.token < s.askedOf+tokens
		if g.phase == holds && b.pod(callID(i+1)) == int(s.askedOfPod) && meant && !g.stopping {
			g.stopping = true
			if s.heard++; s.heard > 1 {
				s.broken = Asked
			}
		}
	}
}

// fall is the end of a sidecar, or of its trust in its lease: its calls have nothing any more.
func (s *Crowd) fall(b *CohortBounds, pod int) {
	s.lost[pod] = true
	for i := range b.Pods {
		if g := &s.calls[i]; b.pod(callID(i+1)) == pod && g.phase != absent {
			g.phase, g.told, g.extends, g.extendsOf = isGone, false, calls{}, 0
		}
	}
}

// reap is that of a lease that nobody renews.
func (s *Crowd) reap(b *CohortBounds, pod int) {
	s.dead[pod] = true
	s.queue = s.queue.without(func(w callID) bool { return b.pod(w) == pod })
	if s.holder != 0 && b.pod(s.holder) == pod {
		s.passOn(b)
	}
}

// check returns which invariant does not hold.
func (s *Crowd) check(b *CohortBounds) Invariant {
	if s.broken != Fine {
		return s.broken
	}
	holders := 0
	for i := range b.Pods {
		if g := &s.calls[i]; g.phase == holds {
			holders++
			if s.holder == 0 || b.pod(s.holder) != b.pod(callID(i+1)) || g.token < s.token || g.token >= s.token+tokens {
				return Committed
			}
		}
	}
	if holders > 1 {
		return Exclusion
	}
	for _, w := range s.queue {
		if s.holder == 0 && w != 0 && s.lives(b, w) && s.call(w).phase == inQueue {
			return InTurn
		}
	}
	return Fine
}

// calm is where everything ends: nobody wants the key, nobody has it, and nobody inQueue in line.
func (s *Crowd) calm(*CohortBounds) bool {
	for i := range s.calls {
		if phase := s.calls[i].phase; phase != absent && phase != isGone {
			return false
		}
	}
	return s.holder == 0 && s.queue == calls{}
}

func (s *Crowd) String() string {
	var w strings.Builder
	fmt.Fprintf(&w, "key: %s token %d, queue", callName(s.holder), s.token)
	for _, c := range s.queue {
		if c != 0 {
			fmt.Fprintf(&w, " %d", c)
		}
	}
	for i := range s.calls {
		if g := &s.calls[i]; g.phase != absent {
			fmt.Fprintf(&w, " | %s %s %d", callName(callID(i+1)), callPhaseNames[g.phase], g.token)
		}
	}
	return w.String()
}

var callPhaseNames = [...]string{"absent", "in line", "cancels", "HOLDS", "releases", "gone"}

func callName(c callID) string {
	if c == 0 {
		return "nobody"
	}
	return fmt.Sprint("call ", c)
}
