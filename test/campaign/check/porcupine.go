package check

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// The same rule as in model.go, as an automaton for porcupine, which knows nothing of its
// short cuts: it draws the page, the tests compare what the two find, and it judges each
// history besides. It searches, and where a crowd is answered at once it may find no end;
// so it is given small pieces and some time, and what it does not decide is left to the model.

const (
	// searched is how many grants porcupine is given at once.
	searched = 30
	// shared is how many of them are judged again with the next: what is wrong between
	// neighbours lies within a piece.
	shared = 5
	// patience is how long it may take for a piece.
	patience = time.Second
)

// search: porcupine finds nothing in a key's history that no lock does.
func search(h *arranged) (broken []Violation) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	until := time.Now().Add(h.rules.Search)
	judge := func(k *keyHistory, from int) {
		if !time.Now().Before(until) {
			return
		}
		result := porcupine.CheckOperationsTimeout(lockModel(), h.steps(k, from, searched), min(patience, h.rules.Search))
		mu.Lock()
		defer mu.Unlock()
		switch result {
		case porcupine.Ok:
			h.counts.Searched++
		case porcupine.Unknown:
			h.counts.Undecided++
		default:
			v := Violation{Rule: "porcupine", Key: k.key, Text: "no lock answers like this"}
			if to := min(from+searched, len(k.terms)); to > 0 {
				v.Text += ", from the first of these grants to the second"
				v.Ops = []history.Op{k.terms[from].grant, k.terms[to-1].grant}
			}
			broken = append(broken, v)
		}
	}
	for _, k := range h.keys {
		for from := 0; from == 0 || from+shared < len(k.terms); from += searched - shared {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				judge(k, from)
			})
		}
	}
	wg.Wait()
	return broken
}

// lock is the state.
type lock struct{ holder, last int64 }

func take(state lock, s step) (bool, lock) {
	switch s.kind {
	case grants:
		return state.holder == 0 && state.last == s.before, lock{s.token, s.token}
	case releases:
		return state.holder == s.token, lock{0, state.last}
	case ends:
		if state.holder == s.token {
			return true, lock{0, state.last}
		}
		return state.last >= s.token, state
	case holds:
		return state.holder == s.token, state
	case holdsNot:
		return state.holder != s.token, state
	case isFree:
		return state.holder == 0, state
	case isHeld:
		return state.holder != 0, state
	}
	return false, state
}

// lockModel is the model of one key.
func lockModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lock{} },
		Step: func(state, input, _ any) (bool, any) { return take(state.(lock), input.(step)) },
		DescribeOperation: func(input, _ any) string {
			s := input.(step)
			switch {
			case s.kind == grants:
				return fmt.Sprint("grant ", s.token)
			case s.kind == ends:
				return fmt.Sprint("end of ", s.token)
			case s.token == 0:
				return fmt.Sprintf("%s: %s", s.op.Kind, s.op.Outcome)
			}
			return fmt.Sprintf("%s %d: %s", s.op.Kind, s.token, s.op.Outcome)
		},
		DescribeState: func(state any) string {
			if l := state.(lock); l.holder != 0 {
				return fmt.Sprint("held under ", l.holder)
			}
			return fmt.Sprint("free since ", state.(lock).last)
		},
		DescribeOperationMetadata: func(op any) string { return describe(op.(history.Op)) },
	}
}

// steps are the model's operations around size of a key's grants, beginning at from.
func (h *arranged) steps(k *keyHistory, from, size int) (steps []porcupine.Operation) {
	to := min(from+size, len(k.terms))
	mine := make(map[int64]bool, to-from)
	before := int64(0)
	for i := from; i < to; i++ {
		t := k.terms[i]
		mine[t.grant.Token] = true
		steps = append(steps, operation(step{kind: grants, token: t.grant.Token, before: before, op: t.grant}, t.grant.Call, t.grant.Return))
		before = t.grant.Token
		if t.released != nil {
			continue // that is a step by itself
		}
		began, over := max(t.end, t.grant.Call), int64(never)
		if i+1 < len(k.terms) {
			over = max(began, k.terms[i+1].grant.Return)
		}
		steps = append(steps, operation(step{kind: ends, token: t.grant.Token, op: t.grant}, began, over))
	}
	// An operation without a token is judged only where it can have met these grants.
	begins, stops := int64(0), int64(never)
	if from > 0 {
		begins = k.terms[from].grant.Return
	}
	if to < len(k.terms) {
		stops = k.terms[to-1].grant.Return
	}
	for _, op := range k.ops {
		s, ok := h.reads(k, op)
		switch {
		case !ok || s.token != 0 && !mine[s.token]:
			continue
		case s.token == 0 && (op.Call <= begins || op.Return >= stops):
			continue
		}
		steps = append(steps, operation(s, h.asked(op), op.Return))
	}
	return steps
}

func operation(s step, from, to int64) porcupine.Operation {
	return porcupine.Operation{Input: s, Call: from, Return: to, Metadata: s.op}
}
