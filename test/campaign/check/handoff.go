package check

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// handoff: without a fault, who waits for a key has it within [Rules.Handoff] of
// the answer to the release, or of the drop, before. It is not judged where a call for
// several keys may have had the key meanwhile: that keeps it until it has the others.
//
// A hand-off is half a dozen processes' turns, one after the other. Where an observer was
// seen to need long for one look at the database, it may take as much longer as ten looks
// did.
func handoff(h *arranged) (broken []Violation) {
	for _, k := range h.keys {
		for i := 1; i < len(k.terms); i++ {
			gone, next := k.terms[i-1], k.terms[i].grant
			if gone.left == 0 || next.Wait == 0 || next.Call > gone.end || next.Group != "" || next.Return < gone.left {
				continue // it did not wait for this, or had it even before that was answered
			}
			if !h.calm(gone.grant.Call, next.Return) || meets(k.groups, gone.left, next.Return) || meets(k.forced, gone.left, next.Return) {
				continue
			}
			h.counts.HandOffs++
			if took := time.Duration(next.Return - gone.left); took > h.rules.Handoff+turns*h.slowest(gone.left, next.Return) {
				ops := []history.Op{gone.grant, next}
				if gone.released != nil {
					ops = []history.Op{*gone.released, next}
				}
				broken = append(broken, Violation{
					Rule: "hand-off", Key: k.key, Ops: ops,
					Text: fmt.Sprintf("took %s, more than %s", took, h.rules.Handoff),
				})
			}
		}
	}
	return broken
}

// turns are the looks at the database that a hand-off is compared with.
const turns = 10

// slowest is how long an observer's longest look took then, if it was long.
func (h *arranged) slowest(from, to int64) (longest time.Duration) {
	for _, s := range h.slow {
		if s.meets(from, to) {
			longest = max(longest, time.Duration(s.to-s.from))
		}
	}
	return longest
}
