package check

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// A key's lock is free, or held under a token. A history must agree with this:
//
//   - Each grant takes it free, and has the next larger token of those that clients were
//     told. (Others were drawn for whom nobody was told of: see below.)
//   - A release that was confirmed frees it.
//   - A term without one ends by itself, at any time from the first moment at which it
//     may (term.end) until somebody else has the key. That is an operation of its own
//     here: the lease's expiry, the release whose answer did not come, the closed
//     connection, the broken lock.
//   - "You hold it" and "you hold it not" are true, and so are "held" and "free".
//
// An acquire whose outcome is unknown, or that waited in vain, or that wanted other keys,
// too, may have had the key for a while and not told anybody. It frees it in the end, so it
// makes no answer of the others wrong but one: "free" cannot turn into "held" for no
// reason. So it is no step of the model; instead "held" is not judged while one may be
// about, and the refusals that were judged are counted. So the model stays deterministic. It is the same
// after a crash of the database server, which may forget a release that was just confirmed.
//
// Tokens tell the order of the grants, and between two of them the first one's term ended.
// So the lock's changes are known in their order, and each lies between two moments: a
// call and an answer, mostly. "You hold it" bounds the two changes around it. Any other
// answer is wrong where it lies, from call to answer, strictly between two neighbours that
// are too far apart: "free" between a grant and its end, "held" between an end and the
// next grant. So each answer asks something of two neighbours only, and it is enough to go
// from change to change, with all the moments at which it can have been: no search. It takes
// as long as the history is, and the more the more of it happened at once.

// step is what an operation says about the lock.
type step struct {
	kind  stepKind
	token int64
	// before is the token of the last grant before this one that a client knows.
	before int64
	op     history.Op
}

type stepKind int

const (
	grants stepKind = iota
	releases
	ends
	holds
	holdsNot
	isFree
	isHeld
)

// change is one of the lock: a grant, or the end of its term.
type change struct {
	op       history.Op
	from, to int64 // it was not before the one, nor after the other
	// after and before are the operations that say so.
	after, before history.Op
	// not are those that were told, after this grant, that they do not hold it.
	not []answer
}

// answer says what the lock's state was at some moment between two times.
type answer struct {
	span
	op *history.Op
}

// chain are the changes of a key's lock. It begins with an end, because the lock is free at first. Then grants and
// ends alternate. The last one is a grant that never comes.
type chain struct {
	changes    []change
	free, held []answer // who was told so, in the order of span.from
	times      []int64  // the moments that are tried: of any order there is one that needs no others
	twice      []history.Op
}

// model: each key's history can be put in an order in which a lock answers just so.
func model(h *arranged) (broken []Violation) {
	for _, k := range h.keys {
		c := h.chain(k)
		h.counts.Refusals += len(c.held)
		if ops := c.wrong(); ops != nil {
			broken = append(broken, Violation{Rule: "model", Key: k.key, Text: "no lock answers like this", Ops: ops})
		}
	}
	return broken
}

// chain puts a key's history in order.
func (h *arranged) chain(k *keyHistory) *chain {
	c := &chain{changes: []change{bounded(history.Op{}, math.MinInt64, math.MinInt64)}}
	grants := make(map[int64]int, len(k.terms)) // where they stand, by token
	for _, t := range k.terms {
		if at, ok := grants[t.grant.Token]; ok {
			c.twice = []history.Op{c.changes[at].op, t.grant}
			return c
		}
		grants[t.grant.Token] = len(c.changes)
		c.changes = append(c.changes, bounded(t.grant, t.grant.Call, t.grant.Return), t.over())
	}
	c.changes = append(c.changes, bounded(history.Op{}, never, never))
	for i := range k.ops {
		op := &k.ops[i]
		s, ok := h.reads(k, *op)
		at, known := grants[s.token]
		if !ok || !known && (s.token != 0 || s.kind != isFree && s.kind != isHeld) {
			continue
		}
		a := answer{span{h.asked(*op), op.Return}, op}
		switch s.kind {
		case releases:
			if first := k.terms[(at-1)/2].released; first != op {
				c.twice = []history.Op{*op, *first}
			}
		case holds:
			c.changes[at].atMost(a.to, *op)
			c.changes[at+1].atLeast(a.from, *op)
		case holdsNot:
			c.changes[at].not = append(c.changes[at].not, a)
		case isFree:
			c.free = append(c.free, a)
		case isHeld:
			c.held = append(c.held, a)
		}
	}
	c.arrange()
	return c
}

// over is the term's end.
func (t *term) over() change {
	if t.released != nil {
		return bounded(*t.released, t.released.Call, t.released.Return)
	}
	return bounded(t.grant, max(t.end, t.grant.Call), never) // the next grant bounds it
}

func bounded(op history.Op, from, to int64) change {
	return change{op: op, from: from, to: to, after: op, before: op}
}

func (c *change) atLeast(from int64, op history.Op) {
	if from > c.from {
		c.from, c.after = from, op
	}
}

func (c *change) atMost(to int64, op history.Op) {
	if to < c.to {
		c.to, c.before = to, op
	}
}

// arrange bounds each change by those before and behind it.
func (c *chain) arrange() {
	for i := 1; i < len(c.changes); i++ {
		c.changes[i].atLeast(c.changes[i-1].from, c.changes[i-1].after)
	}
	for i := len(c.changes) - 2; i >= 0; i-- {
		c.changes[i].atMost(c.changes[i+1].to, c.changes[i+1].before)
	}
	for i := range c.changes {
		c.times = append(c.times, c.changes[i].from)
		for _, a := range c.changes[i].not {
			c.times = append(c.times, a.from)
		}
	}
	for _, answers := range [][]answer{c.free, c.held} {
		slices.SortFunc(answers, func(a, b answer) int { return cmp.Compare(a.from, b.from) })
		for _, a := range answers {
			c.times = append(c.times, a.from)
		}
	}
	// An order stays right when each change moves back to the last of these moments: they
	// are all that a change may have to come after.
	slices.Sort(c.times)
	c.times = slices.Compact(c.times)
}

// wrong are operations that no lock could have answered in this way.
func (c *chain) wrong() []history.Op {
	if c.twice != nil {
		return c.twice
	}
	able := []int64{math.MinInt64}
	for i := 1; i < len(c.changes); i++ {
		if able = c.next(i, able); len(able) == 0 {
			return c.reason(i)
		}
	}
	return nil
}

// next are the moments at which a change can have been, if the one before was at one of those.
func (c *chain) next(i int, before []int64) (able []int64) {
	lies := c.lies(i)
	slices.SortFunc(lies, func(a, b answer) int { return cmp.Compare(a.to, b.to) })
	least := int64(math.MinInt64)
	passed := 0
	for j := sort.Search(len(c.times), func(j int) bool { return c.times[j] >= c.changes[i].from }); j < len(c.times); j++ {
		at := c.times[j]
		if at > c.changes[i].to {
			break
		}
		// A call that was answered before that must have begun before the lock changed.
		for ; len(lies) > 0 && lies[0].to < at; lies = lies[1:] {
			least = max(least, lies[0].from)
		}
		for passed < len(before) && before[passed] <= at {
			passed++
		}
		if passed > 0 && before[passed-1] >= least {
			able = append(able, at)
		}
	}
	return able
}

// lies are the answers that can lie between a change and the one before, and would be
// wrong there.
func (c *chain) lies(i int) (lies []answer) {
	from, to := c.changes[i-1].from, c.changes[i].to
	told := c.held
	if i%2 == 0 { // it was held then
		told = c.free
		for _, a := range c.changes[i-1].not {
			if a.from > from && a.to < to {
				lies = append(lies, a)
			}
		}
	}
	for j := sort.Search(len(told), func(j int) bool { return told[j].from > from }); j < len(told) && told[j].from < to; j++ {
		if told[j].to < to {
			lies = append(lies, told[j])
		}
	}
	return lies
}

// reason are the operations that leave a change no moment.
func (c *chain) reason(i int) (ops []history.Op) {
	const most = 3 // of many answers
	is, last := c.changes[i], c.changes[i-1]
	if is.from > is.to {
		return []history.Op{is.after, is.before}
	}
	for _, change := range []change{last, is} {
		if change.op.ID != "" {
			ops = append(ops, change.op)
		}
	}
	lies := c.lies(i)
	for _, a := range lies[:min(len(lies), most)] {
		ops = append(ops, *a.op)
	}
	return ops
}

// asked is from when an answer tells: what is remembered may be older than the call.
func (h *arranged) asked(op history.Op) int64 {
	if op.Cached {
		return op.Call - int64(h.rules.Cache)
	}
	return op.Call
}

// reads is the step of an operation that grants nothing, if it has one.
func (h *arranged) reads(k *keyHistory, op history.Op) (step, bool) {
	s := step{token: op.Token, op: op}
	if op.Return == 0 {
		return s, false
	}
	if h.releases(op) {
		s.kind = releases
		return s, true
	}
	if meets(h.unpromised, op.Call, op.Return) {
		return s, false // sidecars tell what they believe
	}
	switch {
	case op.Kind == history.Confirm && op.Outcome == history.Held:
		s.kind = holds
	case op.Outcome == history.NotHeld && (op.Kind == history.Release || op.Kind == history.Confirm), op.Kind == history.Lost:
		s.kind = holdsNot
		return s, !k.ranOut(op)
	case op.Kind == history.Get && op.Outcome == history.Free:
		s.kind = isFree
	case h.refuses(op):
		s.kind = isHeld
		from := op.Call - int64(h.rules.Cache)
		return s, op.Group == "" && !k.haunted(from, op) && !meets(h.quiet, from, op.Return)
	default:
		return s, false
	}
	return s, true
}

// refuses reports whether an answer says that another one had the key. One that names nobody says so, too, because a call asks at least once, however short its
// wait is, and the holder may have gone by the end of the wait. But where a fault is about, sidecars may not have asked.
func (h *arranged) refuses(op history.Op) bool {
	return op.Outcome == history.Held || op.Outcome == history.Timeout && (!op.Unnamed || h.calm(op.Call, op.Return))
}

// ranOut reports whether an answer came when the lease was over by the sidecar's clock. It says nothing about the lock then,
// because the lease may live on in the store for a while: it was renewed later than it was asked for, and etcd counts whole
// seconds.
func (k *keyHistory) ranOut(op history.Op) bool {
	i, known := slices.BinarySearchFunc(k.terms, op.Token, func(t *term, token int64) int { return cmp.Compare(t.grant.Token, token) })
	return known && op.Return >= k.terms[i].ranOut
}

// haunted reports whether somebody may have had the key for whom nobody was told of it, or its last release
// may be forgotten, or another sidecar may have kept it, from that time until the operation was over.
func (k *keyHistory) haunted(from int64, op history.Op) bool {
	return meetsAny(k.ghosts, from, op.Return, op.ID) || meets(k.groups, from, op.Return) || k.keptFrom(op.Sidecar, from, op.Return)
}
