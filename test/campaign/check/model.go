package check

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/anishathalye/porcupine"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// A key's lock is free, or held under a token. What a history must agree with:
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
// too, may have had the key for a while and not told anybody. It frees it in the end, so
// it makes no answer of the others wrong but one: "free" cannot turn into "held" for no
// reason. So it is no step of the model; instead "held" is not judged while one may be
// about, and the refusals that were judged are counted. That keeps the model deterministic.

// step is the input of an operation.
type step struct {
	kind  stepKind
	token int64
	// before is the token of the grant that clients were told of before this one.
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

// piece is how many grants are judged at once: the checker's memory grows with the
// square. overlap is how many of them are judged again with the next: what is wrong
// between grants that are neighbours is seen within a piece, and between others the rules
// of exclusion and of tokens see it.
const (
	piece   = 1000
	overlap = 10
)

// model: each key's history can be put in an order in which a lock answers just so.
func model(h *arranged) []Violation {
	found := make([][]Violation, len(h.keys))
	judged := make([]int, len(h.keys))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, k := range h.keys {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for from := 0; from == 0 || from+overlap < len(k.terms); from += piece - overlap {
				steps, refusals := h.steps(k, from)
				judged[i] += refusals
				result := porcupine.CheckOperationsTimeout(lockModel(), steps, h.rules.Patience)
				if result == porcupine.Ok {
					continue
				}
				v := Violation{Rule: "model", Key: k.key, Text: "no lock answers like this"}
				if result == porcupine.Unknown {
					v.Text = fmt.Sprintf("not decided in %s", h.rules.Patience)
				}
				if len(k.terms) > 0 {
					v.Ops = []history.Op{k.terms[from].grant, k.terms[min(from+piece, len(k.terms))-1].grant}
					v.Text += ", from the first of these grants to the second"
				}
				found[i] = append(found[i], v)
			}
		})
	}
	wg.Wait()
	var broken []Violation
	for i := range h.keys {
		broken = append(broken, found[i]...)
		h.counts.Refusals += judged[i]
	}
	return broken
}

// steps are the model's operations around a piece of a key's grants, from that one on.
func (h *arranged) steps(k *keyHistory, from int) (steps []porcupine.Operation, refusals int) {
	to := min(from+piece, len(k.terms))
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
	// What names no token is judged where it can have met these grants only.
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
		case s.kind == isHeld:
			refusals++
		}
		called := op.Call
		if op.Cached {
			called -= int64(h.rules.Cache)
		}
		steps = append(steps, operation(s, called, op.Return))
	}
	return steps, refusals
}

// reads is the step of an operation that grants nothing, if it has one.
func (h *arranged) reads(k *keyHistory, op history.Op) (step, bool) {
	s := step{token: op.Token, op: op}
	if op.Return == 0 {
		return s, false
	}
	if op.Kind == history.Release && op.Outcome == history.Done {
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
	case op.Kind == history.Get && op.Outcome == history.Free:
		s.kind = isFree
	case op.Outcome == history.Held, op.Outcome == history.Timeout:
		s.kind = isHeld
		return s, op.Group == "" && !k.haunted(op.Call-int64(h.rules.Cache), op)
	default:
		return s, false
	}
	return s, true
}

// haunted tells whether somebody may have had the key for whom nobody was told of it,
// from that time until the operation was over.
func (k *keyHistory) haunted(from int64, op history.Op) bool {
	for _, g := range k.ghosts {
		if g.meets(from, op.Return) && g.op != op.ID {
			return true
		}
	}
	return meets(k.groups, from, op.Return)
}

func operation(s step, from, to int64) porcupine.Operation {
	return porcupine.Operation{Input: s, Call: from, Return: to, Metadata: s.op}
}
