package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// This is no model of the protocol, but the protocol itself: the key machine (store/key), with a few calls of two sidecars in any
// order, and the deaths of leases between them. An operation is one step. The visit that follows the death of a lease is another
// one, because other operations may come in between.

const (
	// mostLeases are those of two sidecars, and one for the lock and one for the MinHold of each call.
	mostLeases = 2 + 2*mostCalls
	oneKey     = "k"
)

// Machine is all that there is: a row, leases, and calls.
type Machine struct {
	row    int // the number of its record
	last   int64
	opened uint8
	leases [mostLeases]machineLease
	// died are leases whose death the row was not told yet. hold: it is that of a MinHold.
	died, hold             [mostLeases]bool
	lost                   [2]bool // the sidecar has lost its lease
	calls                  [mostCalls]machineCall
	faults, crashes, leave uint8
	broken                 Invariant
}

type machineLease uint8

const (
	leaseLives machineLease = iota
	leaseExpired
	leaseDead
)

// machineCall is a call as its sidecar knows it.
type machineCall struct {
	phase callPhase
	told  bool // the news of its grant is on its way
	token int64
}

func (n *Machine) call(c callID) *machineCall { return &n.calls[c-1] }

// machines are the states of a search. A row is a number in them, because states are compared.
type machines struct {
	b       SharedBounds
	records []*key.Record
	numbers map[string]int
}

var (
	machineNow       = key.Moment{Wall: time.Unix(1, 0).UTC(), At: 1}
	machineInstances = [2]key.Instance{{Name: "A", Pod: "A"}, {Name: "B", Pod: "B"}}
)

func (m *machines) number(rec *key.Record) int {
	text := fmt.Sprint(*rec)
	n, known := m.numbers[text]
	if !known {
		n = len(m.records)
		m.records, m.numbers[text] = append(m.records, rec), n
	}
	return n
}

func machineID(kind, n int) (id [16]byte) {
	id[0], id[1] = byte(kind), byte(n)
	return id
}

func attemptOf(c callID) store.Attempt {
	return store.Attempt{Key: oneKey, ID: machineID(1, int(c))}
}

func leaseOf(n int) store.LeaseID { return machineID(2, n) }

// engine gives the machine leases and tokens.
type engine struct {
	n      *Machine
	leases []*key.Lease
}

func engineOf(n *Machine) *engine {
	e := &engine{n: n}
	for i := range int(n.opened) {
		var by *key.Instance
		if i < len(machineInstances) {
			by = &machineInstances[i]
		}
		l := key.NewLease(leaseOf(i), by, oneKey, 1)
		switch n.leases[i] {
		case leaseLives:
			l.LiveFor(1, machineNow)
		case leaseExpired:
			l.LiveFor(0, machineNow)
		case leaseDead:
		}
		e.leases = append(e.leases, l)
	}
	return e
}

func (e *engine) Token() int64 { e.n.last++; return e.n.last }

func (e *engine) Reserve(upTo int64) bool {
	e.n.last = max(e.n.last, upTo)
	return true
}

func (e *engine) Open(k string, ttl time.Duration, now key.Moment) *key.Lease {
	l := key.NewLease(leaseOf(len(e.leases)), nil, k, ttl).LiveFor(1, now)
	e.leases = append(e.leases, l)
	e.n.opened++
	return l
}

func (e *engine) Hold(k string, ttl time.Duration, now key.Moment) *key.Lease {
	e.n.hold[e.n.opened] = true
	return e.Open(k, ttl, now)
}

func (e *engine) Extend(l *key.Lease, _ time.Duration, _ key.Moment) *key.Lease { return l }

func (e *engine) Close(*key.Lease) {}

func (e *engine) NextSignal() store.SignalID { return 1 }

// row makes the row of a state.
func (m *machines) row(n *Machine, e *engine) *key.Row {
	rec := m.records[n.row]
	var named []*key.Lease
	for _, l := range rec.Leases {
		named = append(named, e.leases[l.ID[1]])
	}
	return rec.Row(oneKey, named)
}

// do carries an operation out, and notes what is new: the row, dead leases, and the news.
func (m *machines) do(n *Machine, by int, operate func(o *key.Op, r *key.Row, e *engine)) {
	e := engineOf(n)
	r := m.row(n, e)
	waited, last := m.queue(r), n.last
	o := &key.Op{Engine: e, By: &machineInstances[by], Now: machineNow}
	operate(o, r, e)
	for i, l := range e.leases {
		n.died[i] = n.died[i] || slices.Contains(o.Died, l)
		if l.Dead() {
			n.leases[i] = leaseDead
		}
	}
	for _, w := range o.News {
		if w.Answer.Outcome == store.Granted && w.Answer.Token > last {
			if w.Answer.Token+int64(len(w.Answer.Cohort)) > n.last {
				n.broken = TokensGrow
			}
			n.call(callID(w.ID[1])).told = true
		}
	}
	n.row = m.number(r.Record())
	m.inTurn(n, waited, m.queue(r), last)
}

// queue are the calls that wait under a living lease.
func (m *machines) queue(r *key.Row) []store.Waiting {
	return r.Waiting(store.QueuePlace{}, mostCalls, machineNow)
}

// inTurn: nobody who still waits was overtaken by a grant of this step, or lost its place. Grants are in the order of the queue, and
// those of waiters are told.
func (m *machines) inTurn(n *Machine, before, after []store.Waiting, last int64) {
	place := func(line []store.Waiting, c callID) int {
		return slices.IndexFunc(line, func(w store.Waiting) bool { return w.Session == callSession(c) })
	}
	for i := range m.b.Pods {
		c := callID(i + 1)
		was, is := place(before, c), place(after, c)
		if was >= 0 && is >= 0 && after[is].Order != before[was].Order {
			n.broken = InTurn
		}
		h := m.holder(n, c)
		if h == nil || h.Token <= last {
			continue
		}
		if was >= 0 && !n.call(c).told {
			n.broken = Forgotten
		}
		for _, w := range before[:max(was, 0)] {
			earlier := m.holder(n, callID(w.Session[0]-'0'))
			if place(after, callID(w.Session[0]-'0')) >= 0 || earlier != nil && earlier.Token > h.Token {
				n.broken = InTurn
			}
		}
		if was < 0 && len(after) > 0 && after[0].Order <= lastOf(before) {
			n.broken = InTurn // it came later than they did
		}
	}
}

func lastOf(line []store.Waiting) int64 {
	if len(line) == 0 {
		return 0
	}
	return line[len(line)-1].Order
}

func callSession(c callID) string { return string(rune('0' + c)) }

// holders are the present ones, some of which may be dead.
func (m *machines) holders(n *Machine) []key.RecordHolder {
	rec := m.records[n.row]
	if len(rec.Shares) == 0 && rec.Holder.Lease != 0 {
		return []key.RecordHolder{rec.Holder}
	}
	return rec.Shares
}

// holder is the grant of a call, or nil.
func (m *machines) holder(n *Machine, c callID) *key.RecordHolder {
	for _, h := range m.holders(n) {
		if h.Attempt == attemptOf(c).ID {
			return &h
		}
	}
	return nil
}

// lease is the state of a lease that the record names by its number.
func (m *machines) lease(n *Machine, number int) (index int, state machineLease) {
	if number <= 0 {
		return -1, leaseDead
	}
	index = int(m.records[n.row].Leases[number-1].ID[1])
	return index, n.leases[index]
}

// check is what must be true in each state.
func (m *machines) check(n *Machine) Invariant {
	if n.broken != Fine {
		return n.broken
	}
	exclusive, shared := 0, 0
	for i := range m.b.Pods {
		c := callID(i + 1)
		if g := n.call(c); g.phase != holds && g.phase != downgrades {
			continue
		}
		h := m.holder(n, c)
		if h == nil || h.Token != n.call(c).token {
			return Committed
		}
		if _, state := m.lease(n, h.Lease); state != leaseLives {
			return Deadline
		}
		if h.Shared {
			shared++
		} else {
			exclusive++
		}
	}
	if exclusive > 1 || exclusive == 1 && shared > 0 {
		return Exclusion
	}
	if !m.placesRight(n) {
		return Places
	}
	for i, isHold := range n.hold {
		if isHold && n.leases[i] == leaseLives && !slices.ContainsFunc(m.holders(n), func(h key.RecordHolder) bool {
			at, _ := m.lease(n, h.Hold)
			return at == i
		}) {
			return Kept
		}
	}
	return m.nobodyFits(n)
}

func (m *machines) placesRight(n *Machine) bool {
	rec, slots := m.records[n.row], map[int]bool{}
	for _, h := range rec.Shares {
		if rec.Limit > 0 && (slots[h.Slot] || h.Slot >= rec.Limit) {
			return false
		}
		slots[h.Slot] = true
	}
	for _, w := range rec.Waiters {
		if _, state := m.lease(n, w.Lease); w.Shared && w.Limit != rec.Limit && state == leaseLives {
			return false
		}
	}
	return rec.Limit == 0 || len(rec.Shares) <= rec.Limit
}

// nobodyFits: while nobody is about to visit the row, and no lease has expired, the key is held if somebody waits, and the first
// that waits does not fit beside its holders.
func (m *machines) nobodyFits(n *Machine) Invariant {
	if n.died != [mostLeases]bool{} || slices.Contains(n.leases[:], leaseExpired) {
		return Fine
	}
	r := m.row(n, engineOf(n))
	waiting, lock := m.queue(r), r.Lock(machineNow)
	if len(waiting) == 0 {
		return Fine
	}
	room := lock.Shared && waiting[0].Shared && (lock.Limit == 0 || lock.HoldersCount < lock.Limit)
	if !lock.Held || room {
		return InTurn
	}
	return Fine
}

// calm is where everything ends: no call is open, nobody waits, and the key is free.
func (m *machines) calm(n *Machine) bool {
	for i := range m.b.Pods {
		if phase := n.calls[i].phase; phase != absent && phase != isGone {
			return false
		}
	}
	r := m.row(n, engineOf(n))
	return n.died == [mostLeases]bool{} && len(m.queue(r)) == 0 && !r.Lock(machineNow).Held
}

func (m *machines) show(n *Machine) string {
	var text strings.Builder
	fmt.Fprintf(&text, "tokens to %d, leases %v, died %v", n.last, n.leases[:n.opened], n.died[:n.opened])
	for _, h := range m.holders(n) {
		fmt.Fprintf(&text, " | held by call %d under %d, lease %d", h.Attempt[1], h.Token, h.Lease)
	}
	for _, w := range m.records[n.row].Waiters {
		fmt.Fprintf(&text, " | call %d waits", w.Attempt[1])
	}
	for i := range m.b.Pods {
		fmt.Fprintf(&text, " | %s %s %d", callName(callID(i+1)), sharerPhase(n.calls[i].phase), n.calls[i].token)
	}
	return text.String()
}
