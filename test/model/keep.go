package model

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// This is the key machine again (see Machine), with two sidecars that keep the key between their calls (lease/internal/keep, and the keepable
// grants of store/key). An operation of the store is one step; its answer, a recall, and a release or an adoption that comes late
// are others. A sidecar's own step is one that no other call of it can come into.

// KeepRule is a rule of sidecars that keep keys. Each can be turned off, to see that the search finds what it is there for. The rules of
// the store stand in the machine itself, where test/mutants breaks them.
type KeepRule uint8

// The rules.
const (
	_               KeepRule = iota
	OnlyIfAlone              // a released key is kept only if no other call of the sidecar is there
	Unrecalled               // a recalled key is not kept
	Outruns                  // a recall that comes before the answer with the grant counts
	WithinTheGrant           // no session gets a token beyond those of the grant
	UnderItsLease            // what is kept ends with the lease
	NotWhileGivenUp          // nobody gets a key whose release is on its way
	NamesItself              // after an adoption was sent, a claim names the session that was adopted
	OncePerToken             // a claim under a token of its own says that it was served
	ShownIsHeld              // a key whose holder the store was told is not kept
	keepRules
)

var keepRuleNames = [keepRules]string{
	"", "OnlyIfAlone", "Unrecalled", "Outruns", "WithinTheGrant", "UnderItsLease", "NotWhileGivenUp", "NamesItself", "OncePerToken", "ShownIsHeld",
}

func (r KeepRule) String() string { return keepRuleNames[r] }

// KeepBounds are how much there is of everything, and how much may go wrong.
type KeepBounds struct {
	// Pods says behind which sidecar each call is: 'A' or 'B'. They may come in any order.
	Pods string
	// Faults is how many answers and recalls are lost, and releases and adoptions late.
	Faults, Crashes, Leaves uint8
	Off                     KeepRule
}

func (b *KeepBounds) on(r KeepRule) bool { return b.Off != r }

// stride is how many tokens a session of a kept key costs here, so that few calls come to the end of those of a grant.
const stride = store.TokensPerGrant / 2

// Keepers is all that there is. The calls of its Machine know only whether the news of their grants is on its way.
type Keepers struct {
	Machine
	calls [mostCalls]keepCall
	keys  [2]keptKey // of the sidecars
	// recall is on its way to a sidecar. missed: one was lost.
	recall, missed [2]bool
	top            int64 // the largest token so far
}

type keepPhase uint8

const (
	keepAbsent   keepPhase = iota
	keepAnswered           // the store has answered, and the answer is on its way
	keepUnknown            // there was no answer
	keepWaits
	keepCancels
	keepHolds
	keepGone
)

var keepPhaseNames = [...]string{"absent", "is answered", "does not know", "waits", "cancels", "HOLDS", "gone"}

type keepCall struct {
	phase    keepPhase
	granted  bool
	keepable bool
	token    int64
	recalled bool // a recall came since it asked
}

type keptPhase uint8

const (
	keptNot  keptPhase = iota
	keptHeld           // a call here holds it
	keptIdle
	keptGivenUp // its release is on its way, or is to be sent again
)

var keptPhaseNames = [...]string{"", "held", "KEPT", "given up"}

// keptKey is what a sidecar knows of the key.
type keptKey struct {
	phase   keptPhase
	visible int64 // the token that the store knows, and own that of the last session
	own     int64
	call    callID // of the last session
	// keepable: the grant is. recalled: not any more.
	keepable, recalled bool
	// told: the store was told of the last session, or an adoption that does so is on its way: tells.
	told, tells bool
	last        int64 // the token that the store knew when the key was released here
	late        lateClaim
}

// lateClaim is a release that may be carried out at any time; no token: there is none.
type lateClaim struct {
	token  int64
	served callID
}

func (n *Keepers) keepCall(c callID) *keepCall { return &n.calls[c-1] }

// keepers are the states of a search.
type keepers struct {
	*machines
	b KeepBounds
}

// does carries an operation of a sidecar out. A recall that it causes is on its way then.
func (m *keepers) does(n *Keepers, pod int, operate func(o *key.Op, r *key.Row, e *engine)) {
	m.do(&n.Machine, pod, func(o *key.Op, r *key.Row, e *engine) {
		operate(o, r, e)
		for _, w := range o.News {
			if w.Recall {
				n.recall[w.To.Name[0]-'A'] = true
			}
		}
	})
	if h := m.records[n.row].Holder; h.Lease > 0 && h.Token > n.top {
		n.top = h.Token
	}
}

// uses notes the token that a session gets.
func (n *Keepers) uses(token int64) {
	if token <= n.top {
		n.broken = TokensGrow
	}
	n.top = max(n.top, token)
}

// asks sends the ask of a call, with the last token that its sidecar knows.
func (m *keepers) asks(n *Keepers, c callID) {
	pod, g := m.pod(c), n.keepCall(c)
	ask := store.Ask{Attempt: attemptOf(c), Lease: leaseOf(pod), Session: callSession(c), Last: n.keys[pod].last}
	var a store.Answer
	before := n.top
	m.does(n, pod, func(o *key.Op, r *key.Row, e *engine) { o.Enqueue(r, &ask, e.leases[pod], &a) })
	*g = keepCall{phase: keepAnswered, granted: a.Outcome == store.Granted, keepable: a.Keepable, token: a.Token}
	if a.Outcome != store.Granted && a.Outcome != store.Queued {
		g.phase = keepGone
	}
	if g.granted && g.token <= before && n.keys[pod].call != c && !m.again(n, c) {
		n.broken = TokensGrow
	}
}

// again reports whether the row's grant is that of an earlier ask of the call.
func (m *keepers) again(n *Keepers, c callID) bool {
	h := m.holder(&n.Machine, c)
	return h != nil && h.Token == n.top
}

func (m *keepers) pod(c callID) int { return int(m.b.Pods[c-1] - 'A') }

// gets lets a call have the key.
func (m *keepers) gets(n *Keepers, c callID, token int64, keepable bool) {
	n.keepCall(c).phase = keepHolds
	k := &n.keys[m.pod(c)]
	*k = keptKey{phase: keptHeld, visible: token, own: token, call: c, keepable: keepable, late: k.late}
}

// comes is a call that comes to its sidecar.
func (m *keepers) comes(n *Keepers, c callID) bool {
	k := &n.keys[m.pod(c)]
	room := k.own+stride < k.visible+store.TokensPerGrant || !m.b.on(WithinTheGrant)
	idle := k.phase == keptIdle || k.phase == keptGivenUp && k.keepable && !k.told && !k.tells && !m.b.on(NotWhileGivenUp)
	switch {
	case idle && room && !k.recalled:
		n.uses(k.own + stride)
		k.phase, k.own, k.call, k.told = keptHeld, k.own+stride, c, false
		n.keepCall(c).phase = keepHolds
	case k.phase == keptIdle: // it is given up first
		k.phase = keptGivenUp
	case k.phase == keptGivenUp: // the call waits for that
		return false
	default:
		m.asks(n, c)
	}
	return true
}

// ends is a call that gives the key back: its sidecar keeps it, or is about to release it.
func (m *keepers) ends(n *Keepers, c callID) {
	k := &n.keys[m.pod(c)]
	n.keepCall(c).phase = keepGone
	keeps := k.keepable && (!k.recalled || !m.b.on(Unrecalled)) && (!k.told && !k.tells || !m.b.on(ShownIsHeld))
	for i := range m.b.Pods {
		other := callID(i + 1)
		present := m.pod(other) == m.pod(c) && n.keepCall(other).phase != keepAbsent && n.keepCall(other).phase != keepGone
		keeps = keeps && (!present || !m.b.on(OnlyIfAlone))
	}
	k.phase = keptGivenUp
	if keeps {
		k.phase = keptIdle
	}
}

// claim is that by which a sidecar releases the key. served: the store knows an earlier session, or may know it.
func (m *keepers) claim(k *keptKey, own bool) lateClaim {
	switch {
	case k.own == k.visible:
		return lateClaim{token: k.own}
	case own || (k.told || k.tells) && m.b.on(NamesItself):
		if !m.b.on(OncePerToken) {
			return lateClaim{token: k.own}
		}
		return lateClaim{k.own, k.call}
	default:
		return lateClaim{token: k.visible}
	}
}

func (m *keepers) releases(n *Keepers, pod int, l lateClaim) {
	claim := store.Claim{Key: oneKey, Token: l.token, Lease: leaseOf(pod)}
	if l.served != 0 {
		claim.Served = []store.AttemptID{attemptOf(l.served).ID}
	}
	m.does(n, pod, func(o *key.Op, r *key.Row, _ *engine) { o.Release(r, &claim) })
}

// released is what a sidecar knows after the answer to its release.
func (k *keptKey) released() {
	last := k.visible
	if k.told {
		last = k.own
	}
	*k = keptKey{last: last, late: k.late}
}

// adopts tells the store who holds the key.
func (m *keepers) adopts(n *Keepers, pod int) {
	k := &n.keys[pod]
	change := store.Change{Key: oneKey, Token: k.own, Lease: leaseOf(pod)}
	m.does(n, pod, func(o *key.Op, r *key.Row, _ *engine) {
		if k.own == k.visible {
			o.Amend(r, &change)
		} else {
			o.Adopt(r, &store.Adoption{Change: change, Served: []store.AttemptID{attemptOf(k.call).ID}, Session: callSession(k.call), AcquiredAt: machineNow.Wall})
		}
	})
}

// hears is the recall, as its sidecar gets it.
func (m *keepers) hears(n *Keepers, pod int) {
	k := &n.keys[pod]
	n.recall[pod] = false
	if k.phase == keptIdle {
		k.phase = keptGivenUp
	}
	k.recalled = k.recalled || k.phase != keptNot
	for i := range m.b.Pods {
		if c := callID(i + 1); m.pod(c) == pod && n.keepCall(c).phase == keepAnswered && m.b.on(Outruns) {
			n.keepCall(c).recalled = true
		}
	}
}

// falls is the end of a sidecar, or of its trust in its lease.
func (m *keepers) falls(n *Keepers, pod int) {
	n.lost[pod], n.leases[pod] = true, leaseExpired
	for i := range m.b.Pods {
		if c := callID(i + 1); m.pod(c) == pod && n.keepCall(c).phase != keepAbsent {
			*n.keepCall(c) = keepCall{phase: keepGone}
		}
	}
	k := &n.keys[pod]
	if m.b.on(UnderItsLease) || k.phase != keptIdle {
		*k = keptKey{late: k.late}
	}
	n.recall[pod] = false
}

// check is what must be true in each state.
func (m *keepers) check(n *Keepers) Invariant {
	if n.broken != Fine {
		return n.broken
	}
	holders := 0
	for i := range m.b.Pods {
		if n.calls[i].phase == keepHolds {
			holders++
		}
	}
	if holders > 1 {
		return Exclusion
	}
	rec := m.records[n.row]
	for pod := range n.keys {
		k := &n.keys[pod]
		at, state := m.lease(&n.Machine, rec.Holder.Lease)
		its := at == pod && state == leaseLives
		switch {
		case k.phase != keptHeld && k.phase != keptIdle:
			if its && !n.lost[pod] && k.phase == keptNot && !m.expects(n, pod) {
				return Orphan // it has the key, and nobody knows
			}
		case !its || !store.OfGrant(rec.Holder.Token, k.own):
			return Committed
		case k.phase == keptIdle && !rec.Holder.Keepable:
			return Orphan // others see a holder that has gone
		case m.forgets(n, pod):
			return Forgotten
		}
	}
	return m.nobodyFits(&n.Machine)
}

// expects reports whether a call of a sidecar will find out that it has the key.
func (m *keepers) expects(n *Keepers, pod int) bool {
	for i := range m.b.Pods {
		c := callID(i + 1)
		if m.pod(c) != pod {
			continue
		}
		switch g := n.keepCall(c); g.phase {
		case keepAnswered, keepUnknown, keepWaits, keepCancels:
			return true
		default:
		}
	}
	return n.keys[pod].late.token != 0
}

// forgets reports whether somebody waits for a key that a sidecar keeps, or may keep, and the sidecar has not heard of it, and will not.
func (m *keepers) forgets(n *Keepers, pod int) bool {
	k := &n.keys[pod]
	if k.phase == keptHeld && (!k.keepable || k.recalled || k.told || k.tells) || n.recall[pod] || n.missed[pod] {
		return false
	}
	for _, w := range m.queue(m.row(&n.Machine, engineOf(&n.Machine))) {
		c := callID(w.Session[0] - '0')
		if m.pod(c) != pod || k.phase == keptIdle {
			return true
		}
	}
	return false
}

// calm is where everything ends: no call is open, nobody waits, and the key is free.
func (m *keepers) calm(n *Keepers) bool {
	for i := range m.b.Pods {
		if phase := n.calls[i].phase; phase != keepAbsent && phase != keepGone {
			return false
		}
	}
	r := m.row(&n.Machine, engineOf(&n.Machine))
	return n.died == [mostLeases]bool{} && len(m.queue(r)) == 0 && !r.Lock(machineNow).Held
}

func (m *keepers) show(n *Keepers) string {
	var text strings.Builder
	rec := m.records[n.row]
	fmt.Fprintf(&text, "leases %v | held by call %d under %d, lease %d, keepable %v", n.leases[:n.opened], rec.Holder.Attempt[1], rec.Holder.Token, rec.Holder.Lease, rec.Holder.Keepable)
	for _, w := range rec.Waiters {
		fmt.Fprintf(&text, " | call %d waits", w.Attempt[1])
	}
	for pod := range n.keys {
		if k := &n.keys[pod]; k.phase != keptNot {
			fmt.Fprintf(&text, " | %s: %s, %d to %d", name(pod), keptPhaseNames[k.phase], k.visible, k.own)
		}
	}
	for i := range m.b.Pods {
		fmt.Fprintf(&text, " | call %d %s %d", i+1, keepPhaseNames[n.calls[i].phase], n.calls[i].token)
	}
	return text.String()
}
