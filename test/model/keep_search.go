package model

import (
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// SearchKeepers goes through all states of two sidecars that keep a key, but at most so many, and returns as soon as an invariant does not
// hold. In the first state, the sidecar A has just released the key.
func SearchKeepers(b KeepBounds, most int) Result {
	m := &keepers{&machines{b: SharedBounds{Pods: b.Pods}, numbers: map[string]int{}}, b}
	first := Keepers{Machine: Machine{opened: 2, faults: b.Faults, crashes: b.Crashes, leave: b.Leaves}}
	first.row = m.number((&key.Row{Key: oneKey}).Record())
	ask := store.Ask{Attempt: store.Attempt{Key: oneKey, ID: machineID(3, 1)}, Lease: leaseOf(0)}
	var a store.Answer
	m.does(&first, 0, func(o *key.Op, r *key.Row, e *engine) { o.Acquire(r, &ask, e.leases[0], &a) })
	first.Machine.calls = [mostCalls]machineCall{}
	m.releases(&first, 0, lateClaim{token: a.Token})
	first.keys[0].last = a.Token
	return explore(first, most, space[Keepers]{happens: m.happens, check: m.check, calm: m.calm, show: m.show})
}

type tryKeepers func(what string, goesWell bool, do func(n *Keepers) bool)

func (m *keepers) happens(s *Keepers, yield func(what string, goesWell bool, n Keepers)) {
	try := func(what string, goesWell bool, do func(*Keepers) bool) {
		if n := *s; do(&n) {
			yield(what, goesWell, n)
		}
	}
	for i := range m.b.Pods {
		m.callHappens(s, callID(i+1), try)
	}
	for pod := range s.keys {
		m.keyHappens(s, pod, try)
		m.leaseHappens(pod, try)
	}
	try("the row is visited", true, func(n *Keepers) bool {
		visits := n.died != [mostLeases]bool{}
		m.does(n, 0, func(o *key.Op, r *key.Row, e *engine) {
			var died []*key.Lease
			for i, l := range e.leases {
				if n.died[i] {
					died = append(died, l)
				}
			}
			n.died = [mostLeases]bool{}
			o.Visit(r, died)
		})
		return visits
	})
}

func (m *keepers) leaseHappens(pod int, try tryKeepers) {
	try(name(pod)+" crashes, or loses its lease", false, func(n *Keepers) bool {
		if n.crashes == 0 || n.lost[pod] {
			return false
		}
		n.crashes--
		m.falls(n, pod)
		return true
	})
	try("the lease of "+name(pod)+" is reaped", true, func(n *Keepers) bool {
		if n.leases[pod] != leaseExpired {
			return false
		}
		m.does(n, pod, func(o *key.Op, _ *key.Row, e *engine) { o.Reap(e.leases[pod], false) })
		return true
	})
}

// callHappens is what can happen to a call.
func (m *keepers) callHappens(s *Keepers, c callID, try tryKeepers) {
	pod := m.pod(c)
	step := func(what string, goesWell bool, in keepPhase, do func(n *Keepers, g *keepCall) bool) {
		if s.keepCall(c).phase == in {
			try(callName(c)+" "+what, goesWell, func(n *Keepers) bool { return do(n, n.keepCall(c)) })
		}
	}
	fault := func(what string, in keepPhase, do func(n *Keepers, g *keepCall)) {
		if s.faults > 0 {
			step(what, false, in, func(n *Keepers, g *keepCall) bool { n.faults--; do(n, g); return true })
		}
	}
	step("comes", false, keepAbsent, func(n *Keepers, _ *keepCall) bool { return (!n.lost[pod] || !m.b.on(UnderItsLease)) && m.comes(n, c) })
	step("hears the answer", true, keepAnswered, func(n *Keepers, g *keepCall) bool {
		if g.granted {
			m.gets(n, c, g.token, g.keepable && !g.recalled)
		} else {
			g.phase = keepWaits
		}
		return true
	})
	fault("hears no answer", keepAnswered, func(_ *Keepers, g *keepCall) { *g = keepCall{phase: keepUnknown} })
	step("asks again", false, keepUnknown, func(n *Keepers, _ *keepCall) bool { m.asks(n, c); return true })
	step("is withdrawn", true, keepUnknown, func(n *Keepers, g *keepCall) bool {
		m.does(n, pod, func(o *key.Op, r *key.Row, _ *engine) { o.Withdraw(r, attemptOf(c)) })
		g.phase = keepGone
		return true
	})
	step("looks", true, keepWaits, func(n *Keepers, _ *keepCall) bool {
		var a store.Answer
		m.does(n, pod, func(o *key.Op, r *key.Row, _ *engine) { a = o.Check(r, attemptOf(c)) })
		n.told(c)
		if a.Outcome == store.Granted {
			m.gets(n, c, a.Token, a.Keepable)
		}
		return true
	})
	if s.leave > 0 {
		step("leaves the queue", false, keepWaits, func(n *Keepers, g *keepCall) bool { n.leave--; g.phase = keepCancels; return true })
	}
	step("is taken out of the queue", true, keepCancels, func(n *Keepers, g *keepCall) bool {
		var a store.Answer
		m.does(n, pod, func(o *key.Op, r *key.Row, _ *engine) { a = o.Cancel(r, attemptOf(c)) })
		n.told(c)
		if g.phase = keepGone; a.Outcome == store.Granted {
			m.gets(n, c, a.Token, false)
			m.ends(n, c)
		}
		return true
	})
	step("gives the key back", true, keepHolds, func(n *Keepers, _ *keepCall) bool { m.ends(n, c); return true })
}

// told forgets the news of a call's grant: it looks itself.
func (n *Keepers) told(c callID) { n.Machine.calls[c-1] = machineCall{} }

// keyHappens is what can happen to a sidecar's key.
func (m *keepers) keyHappens(s *Keepers, pod int, try tryKeepers) {
	k := &s.keys[pod]
	step := func(what string, goesWell, possible bool, do func(n *Keepers, k *keptKey)) {
		if possible {
			try(name(pod)+" "+what, goesWell, func(n *Keepers) bool { do(n, &n.keys[pod]); return true })
		}
	}
	step("gives the key up", true, k.phase == keptIdle, func(_ *Keepers, k *keptKey) { k.phase = keptGivenUp })
	for _, own := range []bool{false, true} {
		step("releases the key", true, k.phase == keptGivenUp, func(n *Keepers, k *keptKey) {
			m.releases(n, pod, m.claim(k, own))
			k.released()
		})
		step("releases the key, and hears no answer", false, k.phase == keptGivenUp && s.faults > 0, func(n *Keepers, k *keptKey) {
			n.faults--
			m.releases(n, pod, m.claim(k, own))
		})
		step("sends a release that comes late", false, k.phase == keptGivenUp && s.faults > 0 && k.late.token == 0, func(n *Keepers, k *keptKey) {
			n.faults--
			k.late = m.claim(k, own)
		})
	}
	step("is released late", true, k.late.token != 0, func(n *Keepers, k *keptKey) {
		late := k.late
		k.late = lateClaim{}
		m.releases(n, pod, late)
	})
	step("hears the recall", true, s.recall[pod], func(n *Keepers, _ *keptKey) { m.hears(n, pod) })
	step("does not hear the recall", false, s.recall[pod] && s.faults > 0, func(n *Keepers, _ *keptKey) {
		n.faults--
		n.recall[pod], n.missed[pod] = false, true
	})
	step("tells who holds the key", false, k.phase == keptHeld && k.keepable && !k.told && !k.tells, func(_ *Keepers, k *keptKey) { k.tells = true })
	step("has told who holds the key", true, k.tells, func(n *Keepers, k *keptKey) {
		m.adopts(n, pod)
		k.tells, k.told = false, true
	})
	step("has told who holds the key, and hears no answer", false, k.tells && s.faults > 0, func(n *Keepers, _ *keptKey) {
		n.faults--
		m.adopts(n, pod)
	})
}
