package check

import (
	"fmt"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// fifo: of two calls that were seen in a key's line, the one that stood before the other
// got the lock before it, if both got it. What is seen is the queue in the database, so
// nothing is guessed from the times of calls.
//
// A waiter whose lease is lost stands in line again, at the end. So what a fault reaches
// is not judged; nor who was seen in a later place, which happens without a fault on a
// machine that has no time to renew a short lease. But that is the exception: one in
// twenty of those who were seen in line. Nor is judged where somebody breaks the lock: one
// of several that somebody waits for is got again then.
func fifo(h *arranged) (broken []Violation) {
	seen, again := 0, 0
	for _, k := range h.keys {
		l := h.lineOf(k)
		for _, line := range k.lines {
			broken = append(broken, l.judge(line)...)
		}
		seen, again = seen+len(l.first), again+len(l.again)
	}
	if again > 1+seen/20 {
		broken = append(broken, Violation{Rule: "fifo", Text: fmt.Sprintf("of %d who waited while all was calm, %d lost their place", seen, again)})
	}
	return broken
}

// line is what was seen of those who waited for a key.
type line struct {
	h       *arranged
	k       *keyHistory
	granted map[string]history.Op // by their names in line
	first   map[string]int64      // the places in which they were seen first
	again   map[string]bool       // those who were seen in another one, too
	said    map[[2]string]bool    // pairs that were found
}

func (h *arranged) lineOf(k *keyHistory) *line {
	l := &line{
		h: h, k: k, granted: make(map[string]history.Op, len(k.terms)),
		first: make(map[string]int64), again: make(map[string]bool), said: make(map[[2]string]bool),
	}
	for _, t := range k.terms {
		l.granted[t.grant.InLine()] = t.grant
	}
	for _, op := range k.lines {
		if !h.calm(op.Call, op.Return) {
			continue
		}
		for _, place := range op.Line {
			if first, ok := l.first[place.ID]; !ok {
				l.first[place.ID] = place.Number
			} else if first != place.Number {
				l.again[place.ID] = true
			}
		}
	}
	return l
}

// judge looks at what was seen at one moment.
func (l *line) judge(op history.Op) (broken []Violation) {
	find := func(text string, ops ...history.Op) {
		if pair := [2]string{ops[0].ID, ops[1].ID}; !l.said[pair] {
			l.said[pair] = true
			broken = append(broken, Violation{Rule: "fifo", Key: l.k.key, Text: text, Ops: ops})
		}
	}
	var before history.Op
	for i, place := range op.Line {
		if i > 0 && place.Number <= op.Line[i-1].Number {
			find(fmt.Sprint("the observer saw a line that is in no order: ", op.Line), op, op)
		}
		grant, ok := l.granted[place.ID]
		switch {
		case !ok || l.again[place.ID]: // it left, or timed out
			continue
		case grant.Return < op.Call:
			find("it was told that it has the lock, and stands in line", grant, op)
			continue
		}
		if to := max(grant.Return, before.Return); before.ID != "" && l.h.calm(op.Call, to) && !meets(l.k.forced, op.Call, to) {
			l.h.counts.Ordered++
			if grant.Token < before.Token {
				find("the first of these stood in line before the second, and got the lock after it", before, grant, op)
			}
		}
		before = grant
	}
	return broken
}
