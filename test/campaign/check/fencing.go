package check

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// fencing: what a client writes while it believes that it holds the lock is accepted;
// and the fence itself accepts no token that is smaller than one before.
func fencing(h *arranged) (broken []Violation) {
	for _, k := range slices.Concat(h.keys, h.shared) {
		slots := make(map[int]bool)
		for _, op := range k.ops {
			slots[op.Slot] = slots[op.Slot] || op.Kind == history.Write
		}
		for slot, written := range slots {
			if written {
				broken = append(broken, k.fencing(slot)...)
			}
		}
	}
	return broken
}

// fencing judges a key's writes, or those of one slot.
func (k *keyHistory) fencing(slot int) (broken []Violation) {
	terms := make(map[int64]*term, len(k.terms))
	for _, t := range k.terms {
		terms[t.grant.Token] = t
	}
	var accepted []history.Op // in the order of their answers
	for _, op := range k.ops {
		t := terms[op.Token]
		switch {
		case op.Kind != history.Write || op.Slot != slot:
		case t == nil:
			broken = append(broken, Violation{Rule: "fencing", Key: k.key, Text: "written under a token that nobody was given", Ops: []history.Op{op}})
		case op.Outcome == history.Done:
			accepted = append(accepted, op)
		case op.Outcome == history.Stale && op.Call >= t.grant.Return && op.Return < t.belief:
			broken = append(broken, Violation{
				Rule: "fencing", Key: k.key, Text: "a holder was refused, because somebody with a later token was there before",
				Ops: []history.Op{t.grant, op},
			})
		}
	}
	slices.SortFunc(accepted, func(a, b history.Op) int { return cmp.Compare(a.Return, b.Return) })
	var largest history.Op
	next := 0
	for _, op := range k.ops { // in the order of their calls
		if op.Kind != history.Write || op.Slot != slot || op.Outcome != history.Done {
			continue
		}
		for ; next < len(accepted) && accepted[next].Return < op.Call; next++ {
			if accepted[next].Token > largest.Token {
				largest = accepted[next]
			}
		}
		if op.Token < largest.Token {
			broken = append(broken, Violation{Rule: "fencing", Key: k.key, Text: "the fence let a stale token pass", Ops: []history.Op{largest, op}})
		}
	}
	return broken
}
