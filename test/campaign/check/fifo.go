package check

import (
	"fmt"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// fifo: of two calls that were seen in a key's line, the one that stood before the other
// got the lock before it, if both got it. What is seen is the queue in the database, so
// nothing is guessed from the times of calls. A waiter whose lease is lost stands in line
// again, at the end; so what a fault
// reaches is not judged; nor where somebody breaks the lock, which one of several that
// somebody waits for gets again in the line's last place.
func fifo(h *arranged) (broken []Violation) {
	for _, k := range h.keys {
		granted := make(map[string]history.Op, len(k.terms))
		for _, t := range k.terms {
			granted[t.grant.ID] = t.grant
			if t.grant.Group != "" {
				granted[t.grant.Group] = t.grant
			}
		}
		for _, line := range k.lines {
			broken = append(broken, h.fifo(k, line, granted)...)
		}
	}
	return broken
}

func (h *arranged) fifo(k *keyHistory, line history.Op, granted map[string]history.Op) (broken []Violation) {
	var before history.Op
	for i, place := range line.Line {
		if i > 0 && place.Number <= line.Line[i-1].Number {
			broken = append(broken, Violation{
				Rule: "fifo", Key: k.key, Text: fmt.Sprint("the observer saw a line that is in no order: ", line.Line), Ops: []history.Op{line},
			})
		}
		op, ok := granted[place.ID]
		if !ok {
			continue // it left, or timed out
		}
		if op.Return < line.Call {
			broken = append(broken, Violation{
				Rule: "fifo", Key: k.key, Text: "it was told that it has the lock, and stands in line", Ops: []history.Op{op, line},
			})
			continue
		}
		if before.ID != "" {
			switch to := max(op.Return, before.Return); {
			case !h.calm(line.Call, to) || meets(k.forced, line.Call, to):
			case op.Token < before.Token:
				h.counts.Ordered++
				broken = append(broken, Violation{
					Rule: "fifo", Key: k.key, Text: "the first of these stood in line before the second, and got the lock after it",
					Ops: []history.Op{before, op, line},
				})
			default:
				h.counts.Ordered++
			}
		}
		before = op
	}
	return broken
}
