package model

import (
	"fmt"
	"slices"
	"strings"
)

// This is a model of its own, too, of keys that calls share (store/postgres/code/shares.sql): who holds a permit, who
// waits, and who lets others in when somebody goes. A transaction of the store is one step here. A lease is trusted or not, but a
// statement can see it as expired while its renewal is under way.

// SharedRule is a rule of shared keys. Each can be turned off, to see that the search finds what it is there for.
type SharedRule uint8

// The rules, and where they stand.
const (
	_             SharedRule = iota
	Limited                  // pass_shares, ask: no more shares than the limit
	Alone                    // pass_on, ask: an exclusive call fits if nobody has the key
	Behind                   // ask: a newcomer joins the holders only if nobody waits
	Together                 // pass_shares: those behind the first that fit are let in with it
	FreeSlot                 // free_slot: a slot that no share has
	OneLimit                 // other_limits: holders and waiters name the same one
	ByItsToken               // as_lock: a release names the share
	PassesOn                 // release_share: the release of a share lets the next ones in
	LeaverLooks              // cancel, CancelWaits: who leaves the queue lets in those behind it
	ReaperLooks              // reap.go: who reaps a lease hands on the keys of its shares
	WaiterLooks              // look, in check: a waiter lets in those who fit, if others have missed it
	ExpiredCounts            // pass_shares: an expired share keeps its permit until its lease is reaped
	AlsoWithdrawn            // withdraw: it ends the share of its attempt, too
	LetsReadersIn            // downgrade: the waiters that fit are let in
	MayBeShared              // holdings/index.go: shares that others get do not end a lock that is being downgraded
	Quiet                    // pass_shares, ask: nothing is granted in the quiet time after a failover
	EachVerified             // reconcile.go: after a failover each share is verified by its own token
	sharedRules
)

var sharedRuleNames = [sharedRules]string{
	"", "Limited", "Alone", "Behind", "Together", "FreeSlot", "OneLimit", "ByItsToken", "PassesOn", "LeaverLooks", "ReaperLooks", "WaiterLooks",
	"ExpiredCounts", "AlsoWithdrawn", "LetsReadersIn", "MayBeShared", "Quiet", "EachVerified",
}

func (r SharedRule) String() string { return sharedRuleNames[r] }

// SharedBounds are how much there is of everything, and how much may go wrong.
type SharedBounds struct {
	// Pods says behind which sidecar each call is, 'A' or 'B', and Modes what it wants: 's' to share, 'o' under another
	// limit, 'x' exclusively, 'd' exclusively, and to share it later.
	Pods, Modes string
	// Limit is of holders. 0: any number.
	Limit uint8
	// Faults is how many answers and notifications are lost, and renewals late; Failovers how often a standby is promoted that
	// misses the last share.
	Faults, Crashes, Leaves, Failovers uint8
	Off                                SharedRule
}

func (b *SharedBounds) on(r SharedRule) bool { return b.Off != r }

func (b *SharedBounds) pod(c callID) int { return int(b.Pods[c-1] - 'A') }

func (b *SharedBounds) shares(c callID) bool { return b.Modes[c-1] == 's' || b.Modes[c-1] == 'o' }

// limit is what a call names.
func (b *SharedBounds) limit(c callID) uint8 {
	if b.Modes[c-1] == 'o' {
		return b.Limit + 1
	}
	return b.Limit
}

// Shared is all that there is: a key, its holders, its queue, and the calls that want it.
type Shared struct {
	// The lock row, the shares, and the waiters. all: the first of the holders has the key exclusively.
	all     bool
	holders calls
	queue   calls
	token   uint8
	quiet   bool
	lease   [2]leaseState

	// The knowledge of the sidecars.
	lost  [2]bool // it is gone, or has lost its lease
	looks [2]bool // it is about to let in who fits
	calls [mostCalls]sharer

	// missed: who was about to look is gone. forgotten: the store knows nothing of that share any more.
	missed                            bool
	forgotten                         callID
	faults, crashes, leave, failovers uint8
	broken                            Invariant
}

type leaseState uint8

const (
	living    leaseState = iota
	isRenewed            // it looks expired, and its renewal is under way
	isReaped
)

// sharer is a call: its share, which the store knows, and what its sidecar knows.
type sharer struct {
	token, slot uint8
	phase       callPhase
	told        bool // the answer, or the news, of its grant is on its way
}

// The phases of calls that are not those of a cohort's.
const (
	withdraws  callPhase = isGone + 1 + iota // nobody knows what became of it
	downgrades                               // it was asked to share what it has
)

func (s *Shared) call(c callID) *sharer { return &s.calls[c-1] }

// exists is what the store sees of a call's lease.
func (s *Shared) exists(b *SharedBounds, c callID) bool { return s.lease[b.pod(c)] != isReaped }

// alive: it has not expired, either.
func (s *Shared) alive(b *SharedBounds, c callID) bool { return s.lease[b.pod(c)] == living }

// fits tells whether a call fits beside the holders.
func (s *Shared) fits(b *SharedBounds, c callID) bool {
	n := s.holders.count()
	if !b.on(ExpiredCounts) {
		n = s.holders.without(func(h callID) bool { return !s.alive(b, h) }).count()
	}
	switch {
	case s.all:
		return false
	case !b.shares(c):
		return n == 0 || !b.on(Alone)
	}
	return b.Limit == 0 || n < int(b.Limit) || !b.on(Limited)
}

// waits tells whether somebody stands in line, before a call if that does, too.
func (s *Shared) waits(b *SharedBounds, c callID) bool {
	for _, w := range s.queue {
		if w == 0 || w == c {
			return false
		}
		if s.alive(b, w) && s.call(w).phase == inQueue {
			return true
		}
	}
	return false
}

// give is the functions give and give_share.
func (s *Shared) give(b *SharedBounds, c callID) {
	if s.waits(b, c) {
		s.broken = InTurn
	}
	g := s.call(c)
	s.token++
	g.token, g.slot, g.told = s.token, 0, !s.lost[b.pod(c)]
	for b.shares(c) && slices.ContainsFunc(s.holders[:], func(h callID) bool { return h != 0 && s.call(h).slot == g.slot }) {
		g.slot++
	}
	if !b.on(FreeSlot) {
		g.slot = uint8(s.holders.count())
	}
	s.all = !b.shares(c)
	s.queue = s.queue.without(func(w callID) bool { return w == c })
	s.holders = s.holders.with(c)
}

// pass is the function pass_shares.
func (s *Shared) pass(b *SharedBounds) {
	gone := func(c callID) bool { return !s.exists(b, c) }
	s.holders, s.queue = s.holders.without(gone), s.queue.without(gone)
	s.all = s.all && s.holders != calls{}
	for _, w := range s.queue {
		switch {
		case w == 0 || s.quiet && b.on(Quiet):
			return
		case !s.alive(b, w):
			continue
		case !s.fits(b, w):
			return
		}
		if s.give(b, w); !b.on(Together) {
			return
		}
	}
}

// ask is the function ask.
func (s *Shared) ask(b *SharedBounds, c callID) {
	g := s.call(c)
	for _, others := range []calls{s.holders, s.queue} {
		for _, other := range others {
			differs := other != 0 && b.shares(c) && b.shares(other) && s.exists(b, other) && b.limit(other) != b.limit(c)
			if differs && b.on(OneLimit) {
				g.phase = isGone // refused
				return
			}
		}
	}
	g.phase = inQueue
	s.queue = s.queue.with(c)
	others := s.queue.some(func(w callID) bool { return w != c && s.exists(b, w) })
	if s.fits(b, c) && (!others || !b.on(Behind)) && (!s.quiet || !b.on(Quiet)) {
		s.give(b, c)
	}
}

// end takes a share, or the lock, from a call.
func (s *Shared) end(c callID) {
	if s.holders.has(c) {
		s.all, s.holders = false, s.holders.without(func(h callID) bool { return h == c })
	}
}

// release is the function release, or release_share.
func (s *Shared) release(b *SharedBounds, c callID) {
	if !b.on(ByItsToken) {
		for _, h := range s.holders {
			if h != 0 && b.pod(h) == b.pod(c) {
				c = h
				break
			}
		}
	}
	if s.end(c); b.on(PassesOn) {
		s.pass(b)
	}
}

// downgrade is the function downgrade.
func (s *Shared) downgrade(b *SharedBounds, c callID) {
	if !s.all || !s.holders.has(c) {
		return
	}
	s.all, s.call(c).slot = false, 0
	if b.on(LetsReadersIn) {
		s.pass(b)
	}
}

// hear is a call's news, or its answer, as its sidecar gets it. Other calls of that sidecar are told that they lost the
// key if they cannot have it any more.
func (s *Shared) hear(b *SharedBounds, c callID) {
	g := s.call(c)
	g.told = false
	switch g.phase {
	case inQueue:
		g.phase = holds
	case cancels:
		g.phase = releases
		return
	default:
		return
	}
	for i := range b.Pods {
		other := callID(i + 1)
		o := s.call(other)
		if other == c || b.pod(other) != b.pod(c) || o.phase != holds && o.phase != downgrades || o.token > g.token {
			continue
		}
		exclusive := b.Modes[i] == 'x' || b.Modes[i] == 'd' && (o.phase == holds && s.all || o.phase == downgrades && !b.on(MayBeShared))
		if exclusive || !b.shares(c) {
			if s.holders.has(other) && s.exists(b, other) {
				s.broken = Orphan
			}
			o.phase = isGone
		}
	}
}

// fall is the end of a sidecar, or of its trust in its lease: its calls have nothing any more.
func (s *Shared) fall(b *SharedBounds, pod int) {
	s.lost[pod] = true
	s.missed, s.looks[pod] = s.missed || s.looks[pod], false
	for i := range b.Pods {
		if g := &s.calls[i]; b.pod(callID(i+1)) == pod && g.phase != absent {
			g.phase, g.told = isGone, false
		}
	}
}

// reap deletes the lease of a sidecar. The other sidecar, if it is there, hands on the keys of that lease after that.
func (s *Shared) reap(b *SharedBounds, pod int) {
	s.lease[pod] = isReaped
	its := func(c callID) bool { return b.pod(c) == pod }
	if other := 1 - pod; b.on(ReaperLooks) && (s.holders.some(its) || s.queue.some(its)) {
		s.looks[other] = !s.lost[other]
		s.missed = s.missed || s.lost[other]
	}
}

// verify lets a sidecar look which of its shares the store knows after a failover.
func (s *Shared) verify(b *SharedBounds, c callID) bool {
	if s.forgotten != c || !b.on(EachVerified) && s.holders.some(func(h callID) bool { return b.pod(h) == b.pod(c) }) {
		return false
	}
	s.forgotten = 0
	if g := s.call(c); g.phase != absent {
		*g = sharer{phase: isGone}
	}
	return true
}

// check returns which invariant does not hold.
func (s *Shared) check(b *SharedBounds) Invariant {
	if s.broken != Fine {
		return s.broken
	}
	n, limits, slots := 0, [2]bool{}, [mostCalls]bool{}
	for i := range b.Pods {
		c, g := callID(i+1), &s.calls[i]
		if g.phase != holds && g.phase != downgrades {
			continue
		}
		n++
		switch shares := b.shares(c) || !s.all; {
		case c != s.forgotten && !s.holders.has(c):
			return Committed
		case c == s.forgotten && !s.quiet: // for longer than it may believe that
			return Committed
		case s.all && n > 1, !shares && n > 1:
			return Exclusion
		case shares && b.Limit > 0 && slots[g.slot]:
			return Places
		default:
			slots[g.slot] = true
			limits[b.limit(c)-b.Limit] = limits[b.limit(c)-b.Limit] || b.shares(c)
		}
	}
	most := int(b.Limit)
	if limits[1] {
		most++
	}
	if limits[0] && limits[1] || b.Limit > 0 && n > most {
		return Places
	}
	first, whole := s.queue[0], *b
	whole.Off = 0
	attended := s.quiet || s.looks[0] || s.looks[1] || s.missed && b.on(WaiterLooks)
	if first != 0 && !attended && s.alive(b, first) && s.call(first).phase == inQueue && s.fits(&whole, first) {
		return InTurn
	}
	return Fine
}

// calm is where everything ends: nobody wants the key, and nobody who lives has it, or stands in line.
func (s *Shared) calm(b *SharedBounds) bool {
	for i := range s.calls {
		if phase := s.calls[i].phase; phase != absent && phase != isGone {
			return false
		}
	}
	stays := func(c callID) bool { return s.exists(b, c) }
	return !s.holders.some(stays) && !s.queue.some(stays) && !s.quiet
}

func (cs calls) count() (n int) {
	for _, c := range cs {
		if c != 0 {
			n++
		}
	}
	return n
}

func (cs calls) some(is func(callID) bool) bool {
	return slices.ContainsFunc(cs[:], func(c callID) bool { return c != 0 && is(c) })
}

func (s *Shared) String() string {
	var w strings.Builder
	fmt.Fprintf(&w, "token %d", s.token)
	if s.all {
		w.WriteString(", exclusive")
	}
	for name, some := range map[string]calls{"held by": s.holders, "queue": s.queue} {
		if some != (calls{}) {
			fmt.Fprintf(&w, ", %s %v", name, some[:some.count()])
		}
	}
	for i := range s.calls {
		if g := &s.calls[i]; g.phase != absent {
			fmt.Fprintf(&w, " | %s %s %d slot %d", callName(callID(i+1)), sharerPhase(g.phase), g.token, g.slot)
		}
	}
	return w.String()
}

func sharerPhase(p callPhase) string {
	switch p {
	case withdraws:
		return "withdraws"
	case downgrades:
		return "DOWNGRADES"
	default:
		return callPhaseNames[p]
	}
}
