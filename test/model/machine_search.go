package model

import (
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// SearchMachine goes through all states of a row of the key machine, but at most so many, and returns as soon as an invariant
// does not hold. Bounds have no rules to turn off, and no failovers. Their Modes may also be 't', exclusively with bind:ttl, and 'h',
// exclusively with a MinHold.
func SearchMachine(b SharedBounds, most int) Result {
	m := &machines{b: b, numbers: map[string]int{}}
	first := Machine{opened: 2, faults: b.Faults, crashes: b.Crashes, leave: b.Leaves}
	first.row = m.number((&key.Row{Key: oneKey}).Record())
	return explore(first, most, space[Machine]{happens: m.happens, check: m.check, calm: m.calm, show: m.show})
}

type tryMachine func(what string, goesWell bool, do func(n *Machine) bool)

func (m *machines) happens(s *Machine, yield func(what string, goesWell bool, n Machine)) {
	try := func(what string, goesWell bool, do func(*Machine) bool) {
		if n := *s; do(&n) {
			yield(what, goesWell, n)
		}
	}
	for i := range m.b.Pods {
		m.callHappens(s, callID(i+1), try)
	}
	for i := range int(s.opened) {
		m.leaseHappens(i, try)
	}
	try("the row is visited", true, func(n *Machine) bool {
		visits := n.died != [mostLeases]bool{}
		if visits {
			m.do(n, 0, func(o *key.Op, r *key.Row, e *engine) {
				var died []*key.Lease
				for i, l := range e.leases {
					if n.died[i] {
						died = append(died, l)
					}
				}
				n.died = [mostLeases]bool{}
				o.Visit(r, died)
			})
		}
		return visits
	})
}

// leaseHappens is what can happen to a lease: those of sidecars, of bind:ttl locks, and of holds.
func (m *machines) leaseHappens(i int, try tryMachine) {
	if i < len(machineInstances) {
		try(name(i)+" crashes, or loses its lease", false, func(n *Machine) bool {
			if n.crashes == 0 || n.lost[i] {
				return false
			}
			n.crashes--
			n.lost[i], n.leases[i] = true, leaseExpired
			for j := range m.b.Pods {
				if c := callID(j + 1); m.b.pod(c) == i && n.call(c).phase != absent {
					*n.call(c) = machineCall{phase: isGone}
				}
			}
			return true
		})
	}
	try("a lock's time, or a hold, is over", true, func(n *Machine) bool {
		if i < len(machineInstances) || n.leases[i] != leaseLives {
			return false
		}
		n.leases[i] = leaseExpired
		for j := range m.b.Pods { // its sidecar knows
			c := callID(j + 1)
			if h := m.holder(n, c); h != nil {
				if at, _ := m.lease(n, h.Lease); at == i && n.call(c).phase != inQueue && n.call(c).phase != cancels && n.call(c).phase != withdraws {
					*n.call(c) = machineCall{phase: isGone}
				}
			}
		}
		return true
	})
	try("a lease is reaped", true, func(n *Machine) bool {
		if n.leases[i] != leaseExpired {
			return false
		}
		m.do(n, 0, func(o *key.Op, _ *key.Row, e *engine) { o.Reap(e.leases[i], false) })
		return true
	})
}

// callHappens is what can happen to a call.
func (m *machines) callHappens(s *Machine, c callID, try tryMachine) {
	step := func(what string, goesWell bool, in callPhase, do func(n *Machine, g *machineCall)) {
		try(callName(c)+" "+what, goesWell, func(n *Machine) bool {
			is := n.call(c).phase == in && !n.lost[m.b.pod(c)]
			if is {
				do(n, n.call(c))
			}
			return is
		})
	}
	fault := func(what string, in callPhase, do func(n *Machine, g *machineCall)) {
		if s.faults > 0 {
			step(what, false, in, func(n *Machine, g *machineCall) { n.faults--; do(n, g) })
		}
	}
	step("comes", false, absent, func(n *Machine, _ *machineCall) { m.ask(n, c) })
	fault("comes, and hears no answer", absent, func(n *Machine, g *machineCall) {
		m.ask(n, c)
		*g = machineCall{phase: withdraws}
	})
	step("asks again", false, withdraws, func(n *Machine, _ *machineCall) { m.ask(n, c) })
	step("is withdrawn", true, withdraws, func(n *Machine, g *machineCall) {
		m.of(n, c, func(o *key.Op, r *key.Row, _ *engine) { o.Withdraw(r, attemptOf(c)) })
		*g = machineCall{phase: isGone}
		for i, isHold := range n.hold { // a withdrawal ends the hold, too
			if h := m.records[s.row]; isHold && n.leases[i] == leaseLives && len(h.Shares) == 0 && h.Holder.Attempt == attemptOf(c).ID {
				n.leases[i] = leaseDead
			}
		}
	})
	if s.call(c).told {
		for _, phase := range []callPhase{inQueue, cancels} {
			step("hears of its grant", true, phase, func(n *Machine, _ *machineCall) { m.hear(n, c) })
			fault("does not hear of its grant", phase, func(_ *Machine, g *machineCall) { g.told = false })
		}
	}
	step("looks", true, inQueue, func(n *Machine, g *machineCall) {
		m.of(n, c, func(o *key.Op, r *key.Row, _ *engine) { g.answered(o.Check(r, attemptOf(c))) })
	})
	if s.leave > 0 {
		step("leaves the queue", false, inQueue, func(n *Machine, g *machineCall) { n.leave--; g.phase = cancels })
	}
	step("is taken out of the queue", true, cancels, func(n *Machine, g *machineCall) {
		m.of(n, c, func(o *key.Op, r *key.Row, _ *engine) { g.answered(o.Cancel(r, attemptOf(c))) })
	})
	m.holderHappens(c, step, fault)
}

// holderHappens is what can happen to a call that has the key.
func (m *machines) holderHappens(c callID,
	step func(what string, goesWell bool, in callPhase, do func(*Machine, *machineCall)), fault func(what string, in callPhase, do func(*Machine, *machineCall)),
) {
	step("gives the key back", true, holds, func(_ *Machine, g *machineCall) { g.phase = releases })
	step("releases", true, releases, func(n *Machine, g *machineCall) {
		m.release(n, c)
		*g = machineCall{phase: isGone}
	})
	fault("releases, and hears no answer", releases, func(n *Machine, _ *machineCall) { m.release(n, c) })
	if m.b.Modes[c-1] == 'd' {
		step("is to be shared", false, holds, func(n *Machine, g *machineCall) {
			if h := m.holder(n, c); h != nil && !h.Shared {
				g.phase = downgrades
			}
		})
	}
	step("is shared", true, downgrades, func(n *Machine, g *machineCall) {
		m.downgrade(n, c)
		g.phase = holds
	})
	fault("is shared, and hears no answer", downgrades, func(n *Machine, _ *machineCall) { m.downgrade(n, c) })
}

// of carries an operation of a call's sidecar out.
func (m *machines) of(n *Machine, c callID, operate func(o *key.Op, r *key.Row, e *engine)) {
	m.do(n, m.b.pod(c), operate)
}

func (m *machines) ask(n *Machine, c callID) {
	mode := m.b.Modes[c-1]
	ask := store.Ask{Attempt: attemptOf(c), Lease: leaseOf(m.b.pod(c)), Session: callSession(c), Shared: m.b.shares(c)}
	if ask.Shared {
		ask.Limit = int(m.b.limit(c))
	}
	switch mode {
	case 't':
		ask.TTL = 1
	case 'h':
		ask.MinHold = 1
	}
	m.of(n, c, func(o *key.Op, r *key.Row, e *engine) {
		var answer store.Answer
		o.Enqueue(r, &ask, e.leases[m.b.pod(c)], &answer)
		n.call(c).answered(answer)
	})
}

// answered is what an answer tells a call.
func (g *machineCall) answered(a store.Answer) {
	switch a.Outcome {
	case store.Granted:
		*g = machineCall{phase: holds, token: a.Token}
	case store.Queued:
		g.phase = inQueue
	default:
		*g = machineCall{phase: isGone}
	}
}

// hear tells a call of its grant, if it has it still: the time of a bind:ttl lock may be over.
func (m *machines) hear(n *Machine, c callID) {
	h := m.holder(n, c)
	if h == nil {
		*n.call(c) = machineCall{phase: isGone}
		return
	}
	if _, state := m.lease(n, h.Lease); state != leaseLives {
		*n.call(c) = machineCall{phase: isGone}
		return
	}
	*n.call(c) = machineCall{phase: holds, token: h.Token}
}

func (m *machines) claim(n *Machine, c callID) store.Claim {
	claim := store.Claim{Key: oneKey, Token: n.call(c).token}
	if m.b.Modes[c-1] != 't' {
		claim.Lease = leaseOf(m.b.pod(c))
	}
	return claim
}

func (m *machines) release(n *Machine, c callID) {
	claim := m.claim(n, c)
	m.of(n, c, func(o *key.Op, r *key.Row, _ *engine) { o.Release(r, &claim) })
}

func (m *machines) downgrade(n *Machine, c callID) {
	claim := m.claim(n, c)
	change := store.Change{Key: claim.Key, Token: claim.Token, Lease: claim.Lease}
	m.of(n, c, func(o *key.Op, r *key.Row, _ *engine) { o.Downgrade(r, &change) })
}
