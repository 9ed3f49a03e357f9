package check

import (
	"fmt"
	"io"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

const (
	// drawn is how many grants a page shows: more, nobody reads.
	drawn = 200
	// lead is how many of them come before the one that is shown for.
	lead = 10
	// drawing is how long porcupine looks for what it draws.
	drawing = 20 * time.Second
)

// HTML writes the histories of keys with violations as a page for a browser, with the model's steps and the faults.
// Of a long history, it shows the part with the first violation.
func HTML(w io.Writer, ops []history.Op, rules Rules, violations []Violation) error {
	h := arrange(ops, rules)
	var pieces [][]porcupine.Operation
	shown := make(map[string]bool)
	for _, v := range violations {
		for _, k := range h.keys {
			if k.key == v.Key && !shown[k.key] {
				pieces = append(pieces, h.steps(k, k.pieceOf(v), drawn))
				shown[k.key] = true
			}
		}
	}
	rows := make(map[string]int)
	for _, steps := range pieces {
		for i := range steps {
			steps[i].ClientId = rowOf(rows, steps[i].Input.(step))
		}
	}
	m := lockModel()
	m.Partition = func([]porcupine.Operation) [][]porcupine.Operation { return pieces }
	_, info := porcupine.CheckOperationsVerbose(m, nil, drawing)
	var faults []porcupine.Annotation
	for _, op := range ops {
		switch op.Kind {
		case history.Fault, history.Ended, history.Unpromised, history.Replaced, history.Quiet, history.Forgets, history.Slow:
			faults = append(faults, porcupine.Annotation{
				Tag: string(op.Kind), Start: op.Call, End: op.Return, Description: op.Note, Details: describe(op),
			})
		}
	}
	info.AddAnnotations(faults)
	return porcupine.Visualize(m, info, w)
}

// rowOf is the row of the page that shows a step. The steps of a row do not overlap, so steps that no client made
// have rows of their own.
func rowOf(rows map[string]int, s step) int {
	name := fmt.Sprint(s.op.Process, " ", s.op.Client, " ", s.kind == ends)
	if _, ok := rows[name]; !ok {
		rows[name] = len(rows)
	}
	return rows[name]
}

// pieceOf is where the piece begins that shows a violation: a little before the first grant
// that has to do with it.
func (k *keyHistory) pieceOf(v Violation) (from int) {
	for _, op := range v.Ops {
		for i, t := range k.terms {
			if op.Token == t.grant.Token || op.Token == 0 && op.Call <= t.grant.Return {
				return max(0, i-lead)
			}
		}
	}
	return max(0, len(k.terms)-lead)
}
