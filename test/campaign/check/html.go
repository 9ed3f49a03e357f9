package check

import (
	"fmt"
	"io"

	"github.com/anishathalye/porcupine"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// HTML writes the histories of the keys of violations as a page for a browser: what the
// model makes of them, and when faults were about. Of a long history it shows the piece
// in which the first violation lies.
func HTML(w io.Writer, ops []history.Op, rules Rules, violations []Violation) error {
	h := arrange(ops, rules)
	var pieces [][]porcupine.Operation
	shown := make(map[string]bool)
	for _, v := range violations {
		for _, k := range h.keys {
			if k.key == v.Key && !shown[k.key] {
				steps, _ := h.steps(k, k.pieceOf(v))
				pieces = append(pieces, steps)
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
	_, info := porcupine.CheckOperationsVerbose(m, nil, rules.Patience)
	var faults []porcupine.Annotation
	for _, op := range ops {
		if op.Kind == history.Fault || op.Kind == history.Ended || op.Kind == history.Unpromised {
			faults = append(faults, porcupine.Annotation{
				Tag: string(op.Kind), Start: op.Call, End: op.Return, Description: op.Note, Details: describe(op),
			})
		}
	}
	info.AddAnnotations(faults)
	return porcupine.Visualize(m, info, w)
}

// rowOf is the row of the page in which a step stands. In a row one comes after the
// other, so what clients did not do themselves has others.
func rowOf(rows map[string]int, s step) int {
	name := fmt.Sprint(s.op.Process, " ", s.op.Client, " ", s.kind == ends)
	if _, ok := rows[name]; !ok {
		rows[name] = len(rows)
	}
	return rows[name]
}

// pieceOf is where the piece begins that shows a violation.
func (k *keyHistory) pieceOf(v Violation) (from int) {
	for i, t := range k.terms {
		if len(v.Ops) > 0 && t.grant.Token == v.Ops[0].Token {
			return max(0, i-overlap)
		}
	}
	return 0
}
