package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// fifo: of two calls that were seen in a key's line, the one that stood before the other
// got the lock before it, if both got it. The observer sees the queue in the database, so
// nothing is guessed from the times of calls.
//
// A waiter whose lease is lost waits in the queue again, at the end, under another one. That
// happens in faults, and without one on a machine that has no time to renew a short
// lease. So whoever was seen in a later place is not judged by the order, and neither is a
// place whose lease nobody saw alive after the call was told. But a place is
// kept for as long as its lease: who was seen in another one under the same lease has
// lost it for no reason. An attempt that had the key meanwhile has used its place: if its
// grant was over before its call was told, which a slow machine does to a short bind:ttl
// lock, the call waits on at the end. Such a grant lasts for the shortest TTL at least, so a
// place that was seen until less than that before was not used by one.
//
// A call that was told that it has the lock must not wait in the queue. An earlier attempt of the
// call may: its lease was lost, or its outcome was not known, and it is being withdrawn. So the
// attempt that stands is compared with the attempt that has the key, and the other attempt must
// leave within the time in which an unknown outcome can still have an effect. A server that takes over may have forgotten
// the grant, and then has the call in its queue until the sidecar notices.
//
// A call that came when another one was seen in line gets the lock after that one, whether it was seen in line or
// not. But a sidecar that keeps a key gives it to its own until it hears of who waits elsewhere, for [Rules.Handoff] at most. And if a key is shared, the first of the queue is not seen to wait for long while it fits.
//
// A call whose time to wait is over leaves, so others may be served before it, and it may have the lock nevertheless.
//
// The order is not judged in the time of a fault, nor in the time when somebody breaks the lock: its
// holder asks again before anybody was told. The same is true for a call for several keys when
// somebody breaks any of them: it hands the others back and goes to the end of their lines.
func fifo(h *arranged) (broken []Violation) {
	for _, k := range slices.Concat(h.keys, h.shared) {
		l := h.lineOf(k)
		broken = append(broken, l.places()...)
		for _, line := range k.lines {
			broken = append(broken, l.judge(line)...)
		}
	}
	return broken
}

// line is what the observer saw of the queue of a key.
type line struct {
	h       *arranged
	k       *keyHistory
	granted map[string]history.Op // by their names in line
	asked   map[string]history.Op // so are all acquires
	// newest are, for each number of terms, the one of the first ones that was asked for last.
	newest []*term
	// fitting is where the first of the queue was first seen to fit, if it was also in the last line that was seen.
	fitting  history.Op
	attempts map[int64]string   // that were seen to have the key, by their tokens
	until    map[string]int64   // up to when names were seen in line
	several  map[string]bool    // names of calls for several keys
	again    map[string]bool    // those who were seen in another place, too
	said     map[[2]string]bool // pairs that were found
}

func (h *arranged) lineOf(k *keyHistory) *line {
	l := &line{
		h: h, k: k, granted: make(map[string]history.Op, len(k.terms)), several: make(map[string]bool),
		again: make(map[string]bool), said: make(map[[2]string]bool), attempts: make(map[int64]string), until: make(map[string]int64),
		asked: make(map[string]history.Op), newest: make([]*term, 1, len(k.terms)+1),
	}
	for i, op := range k.lines {
		if op.Attempt != "" {
			l.attempts[op.Token] = op.Attempt
		}
		for _, place := range op.Line {
			l.until[place.ID] = l.unchanged(i)
		}
	}
	for i, t := range k.terms {
		l.granted[t.grant.InLine()] = t.grant
		newest := t
		if last := l.newest[i]; last != nil && last.grant.Call > t.grant.Call {
			newest = last
		}
		l.newest = append(l.newest, newest)
	}
	for _, op := range k.ops {
		if op.Kind == history.Acquire {
			l.asked[op.InLine()] = op
		}
		if op.Group != "" {
			l.several[op.Group] = true
		}
	}
	return l
}

// places finds calls that had more than one queue position, and those that had no reason for it.
func (l *line) places() (broken []Violation) {
	type sight struct {
		history.Place
		in    int   // the number of the line
		until int64 // up to when that was seen
	}
	last := make(map[string]sight)
	for n, op := range l.k.lines {
		if !l.h.calm(op.Call, op.Return) {
			continue
		}
		for _, place := range op.Line {
			before, seen := last[place.ID]
			last[place.ID] = sight{place, n, l.unchanged(n)}
			if !seen || before.Number == place.Number {
				continue
			}
			l.again[place.ID] = true
			l.h.counts.Moved++
			first := l.k.lines[before.in]
			served := l.served(place.ID, before.until, op.Return) && !overtook(first, op, place.ID)
			if before.Lease != place.Lease || served || l.several[place.ID] ||
				!l.h.calm(first.Call, op.Return) || meets(l.k.forced, first.Call, op.Return) {
				continue
			}
			broken = append(broken, Violation{
				Rule: "fifo", Key: l.k.key, Ops: []history.Op{first, op},
				Text: fmt.Sprintf("%s stood at %d, and stands at %d under the same lease", place.ID, before.Number, place.Number),
			})
		}
	}
	return broken
}

// unchanged is up to when a line was seen as it was noted.
func (l *line) unchanged(n int) int64 {
	if n+1 < len(l.k.lines) {
		return max(l.k.lines[n].Call, l.k.lines[n+1].Before)
	}
	return l.k.lines[n].Call
}

// served reports whether a call may have had the key in a time in which nobody saw it in line, by a grant that was over before it
// was told.
func (l *line) served(name string, from, to int64) bool {
	return l.asked[name].Session == "" && time.Duration(to-from) >= l.h.rules.Shortest
}

// overtook reports whether somebody who stood before a waiter stands there still. Then nobody has served the waiter.
func overtook(before, now history.Op, name string) bool {
	for _, place := range before.Line {
		if place.ID == name {
			return false
		}
		if slices.ContainsFunc(now.Line, func(p history.Place) bool { return p.ID == place.ID && p.Number == place.Number }) {
			return true
		}
	}
	return false
}

// kept reports whether it is certain that a call kept its place until it was told of its grant.
func (l *line) kept(place history.Place, grant history.Op) bool {
	return (place.Lease == "" || l.h.alive[place.Lease] >= grant.Return) && !l.served(place.ID, l.until[place.ID], grant.Return)
}

// servedHere reports whether a waiter got the lock from its sidecar, after the grant that the line was
// seen behind: its place stays until the store hears of that.
func servedHere(grant, line history.Op) bool {
	return line.Token > 0 && grant.Token > line.Token && store.OfGrant(line.Token, grant.Token)
}

// judge looks at what was seen at one moment.
func (l *line) judge(op history.Op) (broken []Violation) {
	find := func(text string, ops ...history.Op) {
		if pair := [2]string{ops[0].ID, ops[1].ID}; !l.said[pair] {
			l.said[pair] = true
			broken = append(broken, Violation{Rule: "fifo", Key: l.k.key, Text: text, Ops: ops})
		}
	}
	switch {
	case !l.fits(op):
		l.fitting = history.Op{}
	case l.fitting.ID == "" || l.fitting.Line[0].Number != op.Line[0].Number:
		l.fitting = op
	case time.Duration(op.Call-l.fitting.Return) > l.h.rules.Handoff+turns*l.h.slowest(l.fitting.Call, op.Return):
		find("the first in line fits, and waits", l.asked[op.Line[0].ID], op)
	}
	var before history.Op
	for i, place := range op.Line {
		if i > 0 && place.Number <= op.Line[i-1].Number {
			find(fmt.Sprint("the observer saw a line that is in no order: ", op.Line), op, op)
		}
		grant, ok := l.granted[place.ID]
		switch {
		case ok && grant.Return < op.Call:
			if !l.earlier(place, grant, op) && !servedHere(grant, op) && !meets(l.h.replaced, grant.Call, op.Return) {
				find("it was told that it has the lock, and stands in line", grant, op)
			}
			continue
		case !ok || l.again[place.ID] || !l.kept(place, grant): // it left, or timed out, or may have lost its place
			continue
		}
		if to := max(grant.Return, before.Return); before.ID != "" && l.h.calm(op.Call, to) && !l.forced(before, grant, op.Call, to) {
			l.h.counts.Ordered++
			if grant.Token < before.Token && !leaves(before, grant) {
				find("the first of these stood in line before the second, and got the lock after it", before, grant, op)
			}
		}
		if late, ok := l.overtakes(grant, op); ok && !leaves(grant, late) {
			find("the first of these stood in line when the second was asked for, and got the lock after it", grant, late, op)
		}
		before = grant
	}
	return broken
}

// leaves reports whether a call's time to wait was over when another one was told of its grant. It does not wait any more then. But the
// store may give it the lock before it hears of that.
func leaves(waits, granted history.Op) bool {
	return waits.Wait > 0 && granted.Return > waits.Call+waits.Wait*int64(time.Millisecond)
}

// fits reports whether the first call of the queue of a shared key fits beside the holders. It may do so for a
// moment: when a call before it has left, a sidecar grants the calls behind it.
func (l *line) fits(op history.Op) bool {
	if !l.k.shared || len(op.Line) == 0 || op.Line[0].Dead || !l.h.calm(op.Call, op.Return) {
		return false
	}
	first, known := l.asked[op.Line[0].ID]
	return op.Holders == 0 || known && first.Shared && op.Shared && (op.Limit == 0 || op.Holders < op.Limit)
}

// overtakes is a grant that came before that of another call, which the observer had seen in the queue before this
// one asked.
func (l *line) overtakes(grant, op history.Op) (late history.Op, ok bool) {
	i, _ := slices.BinarySearchFunc(l.k.terms, grant.Token, func(t *term, token int64) int { return cmp.Compare(t.grant.Token, token) })
	t := l.newest[i]
	if t == nil || t.grant.Call <= op.Return {
		return late, false
	}
	if l.unaware(t, op) { // so may others be that came after the grant that was seen
		before := i
		for before > 0 && l.k.terms[before-1].grant.Token > op.Token && (l.k.terms[before-1].grant.Call <= op.Return || l.unaware(l.k.terms[before-1], op)) {
			before--
		}
		if t = l.newest[before]; t == nil || t.grant.Call <= op.Return || l.unaware(t, op) {
			return late, false
		}
	}
	to := max(grant.Return, t.grant.Return)
	return t.grant, l.h.calm(op.Call, to) && !l.forced(grant, t.grant, op.Call, to)
}

// unaware reports whether a call may have taken a kept key because its sidecar had not heard yet that somebody waits elsewhere.
func (l *line) unaware(t *term, op history.Op) bool {
	return t.take && op.Token > 0 && store.OfGrant(op.Token, t.grant.Token) &&
		time.Duration(t.grant.Call-op.Return) <= l.h.rules.Handoff+turns*l.h.slowest(op.Call, t.grant.Return)
}

// earlier reports whether a place of a call that was told of its grant may be that of an earlier
// attempt of the call. If nobody saw which attempt has the key, there must be a reason for two.
func (l *line) earlier(place history.Place, grant, op history.Op) bool {
	attempt, seen := l.attempts[grant.Token]
	other := place.Attempt != attempt
	if !seen || place.Attempt == "" {
		other = l.again[place.ID] || !l.h.calm(grant.Call, op.Return)
	}
	return other && op.Call <= l.h.effect(grant).to
}

// forced reports whether somebody may have broken the key in that time, or another key of one of the two calls.
func (l *line) forced(a, b history.Op, from, to int64) bool {
	return meets(l.k.forced, from, to) || meets(l.h.groupForced[a.Group], from, to) || meets(l.h.groupForced[b.Group], from, to)
}
