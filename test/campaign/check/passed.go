package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// passed: while a call waits, at most [Rules.Passed] calls that were made after it get the key before it. The
// rule of fifo begins with the queue position, so it does not see a call that never gets one because
// its sidecar loses each swap. This rule needs nothing but the times of calls.
//
// A few may pass: a sidecar gathers calls before it queues them, and one that is farther away queues them
// later. While it does, each of the others has its turn, perhaps twice.
//
// It is judged only while the machine was never slow, there was no fault, and nobody broke the key. Some calls
// may wait for longer, and are not judged: those for several keys, which hand a key back while another is
// held; those that were asked for again, which wait at the end; and a bind:ttl call that may have been
// granted, and have lost that, before it was told. Grants of calls for several keys are not counted.
func passed(h *arranged) (broken []Violation) {
	for _, k := range slices.Concat(h.keys, h.shared) {
		for _, op := range k.ops {
			if !h.waitsInTurn(k, op) {
				continue
			}
			by := k.passedBy(op)
			h.counts.Turns++
			h.counts.Passed = max(h.counts.Passed, len(by))
			if len(by) > h.rules.Passed {
				broken = append(broken, Violation{
					Rule: "passed", Key: k.key, Ops: []history.Op{op, by[0], by[len(by)-1]},
					Text: fmt.Sprintf("%d calls that were made after the first of these had the key before it, more than %d: the two others, and those between", len(by), h.rules.Passed),
				})
			}
		}
	}
	return broken
}

// waitsInTurn reports whether a call waited, and must have had its turn.
func (h *arranged) waitsInTurn(k *keyHistory, op history.Op) bool {
	return op.Kind == history.Acquire && op.Wait != 0 && op.Group == "" && op.Repeats == 0 &&
		(op.Outcome == history.Granted || op.Outcome == history.Timeout) &&
		(op.Session != "" || time.Duration(op.Return-op.Call) < h.rules.Shortest) &&
		h.calm(op.Call, op.Return) && !meets(h.slow, op.Call, op.Return) && !meets(k.forced, op.Call, op.Return)
}

// passedBy are the grants, the last first, of calls that were made after one that waited, and were served before it.
func (k *keyHistory) passedBy(op history.Op) (by []history.Op) {
	for _, t := range slices.Backward(k.terms) {
		g := t.grant
		if g.Return < op.Call {
			break // so were all with smaller tokens
		}
		before := g.Return < op.Return // it was told before the other was told that it has waited in vain
		if op.Outcome == history.Granted {
			before = g.Token < op.Token
		}
		if before && g.Call > op.Call && g.Group == "" {
			by = append(by, g)
		}
	}
	return by
}
