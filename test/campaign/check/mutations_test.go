package check

import (
	"slices"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// mutations make a right history a wrong one, if there is something in it that makes
// that certain.
var mutations = map[string]func(ops []history.Op) ([]history.Op, bool){
	"a token twice": func(ops []history.Op) ([]history.Op, bool) {
		a, b, ok := pair(ops, func(a, b *history.Op) bool { return granted(a) && granted(b) && a.ID != b.ID })
		if ok {
			b.Token = a.Token
		}
		return ops, ok
	},
	"tokens that shrink": func(ops []history.Op) ([]history.Op, bool) {
		a, b, ok := pair(ops, func(a, b *history.Op) bool { return granted(a) && granted(b) && a.Return < b.Call })
		if ok {
			b.Token, a.Token = a.Token, b.Token
		}
		return ops, ok
	},
	"a grant before the release": func(ops []history.Op) ([]history.Op, bool) {
		for _, k := range arrange(ops, DefaultRules()).keys {
			for i := 1; i < len(k.terms); i++ {
				before, next := k.terms[i-1], k.terms[i]
				if before.released == nil || before.belief < before.grant.Return+2 || next.belief <= before.belief {
					continue
				}
				op := byID(ops, next.grant.ID)
				op.Return = before.belief - 1
				op.Call = min(op.Call, op.Return)
				return ops, true
			}
		}
		return ops, false
	},
	"held no more, without a reason": within(history.Confirm, func(t *term, op *history.Op) bool {
		before := t.grant.Until // without what the changed answer itself promised
		if op.Token != t.grant.Token || op.Outcome != history.Held || op.Return >= min(before, t.end) {
			return false
		}
		op.Outcome, op.Until = history.NotHeld, 0
		return true
	}),
	"lost without a reason": within(history.Write, func(t *term, op *history.Op) bool {
		op.Kind, op.Outcome = history.Lost, history.Unknown
		return op.Token == t.grant.Token
	}),
	"free in the middle": within(history.Get, func(_ *term, op *history.Op) bool {
		op.Outcome = history.Free
		return true
	}),
	"a holder's write is refused": within(history.Write, func(t *term, op *history.Op) bool {
		op.Outcome = history.Stale
		return op.Token == t.grant.Token
	}),
	"still held, and another one has it": func(ops []history.Op) ([]history.Op, bool) {
		grant, asked, ok := pair(ops, func(grant, asked *history.Op) bool {
			return granted(grant) && asked.Outcome == history.NotHeld && asked.Token < grant.Token && grant.Return < asked.Call
		})
		if ok {
			asked.Outcome, asked.Until = history.Held, grant.Call
		}
		return ops, ok
	},
	"released twice": func(ops []history.Op) ([]history.Op, bool) {
		for _, op := range ops {
			if op.Kind == history.Release && op.Outcome == history.Done {
				op.ID, op.Call, op.Return = "again", op.Return+1, op.Return+2
				return append(ops, op), true
			}
		}
		return ops, false
	},
	"another order in line": func(ops []history.Op) ([]history.Op, bool) {
		for _, op := range ops {
			for j := 1; j < len(op.Line); j++ {
				a, b := byID(ops, op.Line[j-1].ID), byID(ops, op.Line[j].ID)
				if granted(a) && granted(b) {
					return swapped(ops, a.ID, b.ID), true
				}
			}
		}
		return ops, false
	},
}

// swapped lets two stand in each other's places in all that was seen.
func swapped(ops []history.Op, a, b string) []history.Op {
	for i := range ops {
		ops[i].Line = slices.Clone(ops[i].Line)
		for j := range ops[i].Line {
			switch id := &ops[i].Line[j].ID; *id {
			case a:
				*id = b
			case b:
				*id = a
			}
		}
	}
	return ops
}

func granted(op *history.Op) bool { return op.Outcome == history.Granted }

func byID(ops []history.Op, id string) *history.Op {
	return &ops[slices.IndexFunc(ops, func(op history.Op) bool { return op.ID == id })]
}

// pair finds the first two operations for which that is true.
func pair(ops []history.Op, fits func(a, b *history.Op) bool) (a, b *history.Op, ok bool) {
	for i := range ops {
		for j := range ops {
			if fits(&ops[i], &ops[j]) {
				return &ops[i], &ops[j], true
			}
		}
	}
	return nil, nil, false
}

// within changes the first operation of a kind that lies in the time in which a client
// believes that it holds the lock, if change says so.
func within(kind history.Kind, change func(t *term, op *history.Op) bool) func([]history.Op) ([]history.Op, bool) {
	return func(ops []history.Op) ([]history.Op, bool) {
		for _, k := range arrange(ops, DefaultRules()).keys {
			for _, t := range k.terms {
				for i := range ops {
					op := ops[i]
					if op.Kind == kind && op.Call > t.grant.Return && op.Return != 0 && op.Return < t.belief && change(t, &op) {
						ops[i] = op
						return ops, true
					}
				}
			}
		}
		return ops, false
	}
}
