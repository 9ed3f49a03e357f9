package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// The answers of a shared key. There is no model of it: each answer is compared with those who held the key for certain
// while it was asked for, and with those who may have held it.

// possible is when a term may have had the key: not before it was asked for, and not after it was given up for certain.
func (h *arranged) possible(t *term) span {
	s := span{t.grant.Call, plus(max(t.until, t.end), settle)}
	if t.released != nil {
		s.to = t.released.Return
	} else if t.left != 0 {
		s.to = h.effect(history.Op{Call: t.left, Return: t.left}).to
	}
	return s
}

// share is a term, or an acquire that told nobody, or the release that a crash may forget.
type share struct {
	span
	exclusive bool // it may have been
}

// around are all who may have had a key then, and whether somebody may have waited for it; but for an operation itself.
func (h *arranged) around(k *keyHistory, from, to int64, but string) (all []share, waits bool) {
	for _, t := range k.terms {
		s := share{h.possible(t), !t.grant.Shared}
		if t.downgrade != nil && t.downgrade.Outcome == history.Held && t.downgrade.Return < from {
			s.exclusive = false
		}
		if s.meets(from, to) && t.grant.ID != but {
			all = append(all, s)
		}
		waits = waits || t.grant.ID != but && t.grant.Call <= to && from <= t.grant.Return
	}
	for _, g := range k.ghosts {
		if g.op != but && g.meets(from, to) {
			all = append(all, share{g.span, true})
		}
	}
	for _, kept := range k.kept {
		if kept.meets(from, to) {
			all = append(all, share{kept.span, true})
		}
	}
	for _, op := range k.ops {
		if op.Kind == history.Acquire && op.Outcome != history.Granted && op.ID != but && h.effect(op).meets(from, to) {
			waits = true
		}
	}
	return all, waits
}

// certain is the number of clients who believe that they hold a key during the whole time between two moments.
func certain(stays []stay, from, to int64) (n int) {
	for _, s := range stays {
		if s.from <= from && to < s.to {
			n++
		}
	}
	return n
}

// shares: no answer about a shared key is impossible.
//
//   - A holder is not told that it lost the key while it may believe that it holds it, and not that it holds what it
//     has given up.
//   - Nobody is refused where there is a permit and nobody can wait. Nobody is told of another limit by those who hold the
//     key under the limit that it names.
//   - A look finds all who hold the key for certain, and not more than those who may.
func shares(h *arranged) (broken []Violation) {
	for _, k := range h.shared {
		terms, stays := make(map[int64]*term), k.stays()
		for _, t := range k.terms {
			terms[t.grant.Token] = t
		}
		for _, op := range k.ops {
			if op.Return == 0 || meets(h.unpromised, op.Call, op.Return) {
				continue
			}
			if text := h.wrong(k, terms[op.Token], stays, op); text != "" {
				v := Violation{Rule: "shares", Key: k.key, Text: text, Ops: []history.Op{op}}
				if t := terms[op.Token]; t != nil && t.grant.ID != op.ID {
					v.Ops = []history.Op{t.grant, op}
				}
				broken = append(broken, v)
			}
		}
	}
	return broken
}

// wrong is what is wrong with an answer, or nothing.
func (h *arranged) wrong(k *keyHistory, t *term, stays []stay, op history.Op) string {
	asks := op.Kind == history.Confirm || op.Kind == history.Downgrade
	switch {
	case t != nil && (op.Kind == history.Lost || op.Outcome == history.NotHeld) && op.Return < max(t.due, t.grant.Call):
		return "its holder lost it without a reason"
	case t != nil && asks && op.Outcome == history.Held && t.released != nil && t.released.Return < op.Call:
		return "it is held, and was released"
	case op.Kind == history.Get && op.Outcome == history.Free && certain(stays, op.Call, op.Return) > 0:
		return "it shows as free, and is held"
	case op.Kind == history.Get && op.Outcome == history.Held:
		return h.counted(k, stays, op)
	case op.Kind == history.Acquire && op.Outcome == history.Mismatch:
		for _, s := range stays {
			if !s.exclusive && !s.unknown && s.limit == op.Limit && s.from <= op.Call && op.Return < s.to {
				return fmt.Sprintf("refused because of the limit %d, and they hold it under that", op.Limit)
			}
		}
	case op.Kind == history.Acquire && h.refuses(op):
		return h.refused(k, op)
	}
	return ""
}

// counted is what is wrong with a number of holders.
func (h *arranged) counted(k *keyHistory, stays []stay, op history.Op) string {
	if least := certain(stays, op.Call, op.Return); op.Holders < least {
		return fmt.Sprintf("it shows %d holders, and %d hold it", op.Holders, least)
	}
	all, _ := h.around(k, op.Call, op.Return, op.ID)
	if op.Holders > len(all) {
		return fmt.Sprintf("it shows %d holders, and at most %d can hold it", op.Holders, len(all))
	}
	h.counts.Counted++
	return ""
}

// refused is the violation of a refusal for which there was no reason.
func (h *arranged) refused(k *keyHistory, op history.Op) string {
	all, waits := h.around(k, h.asked(op), op.Return, op.ID)
	full := slices.ContainsFunc(all, func(s share) bool { return s.exclusive || !op.Shared })
	if waits || full || meets(h.quiet, h.asked(op), op.Return) || op.Shared && op.Limit > 0 && len(all) >= op.Limit {
		return ""
	}
	return fmt.Sprintf("refused, and at most %d can hold it", len(all))
}

// rooms: without a fault, a waiting call has a shared key within [Rules.Handoff] of the moment from which on it fits: the
// calls before it have the key or left, and so did as many holders as must. So it also is with those who fit beside
// the call before them: all of them are granted together.
func rooms(h *arranged) (broken []Violation) {
	for _, k := range h.shared {
		for i, t := range k.terms {
			w := t.grant
			if w.Wait == 0 || w.Repeats > 0 || !h.calm(w.Call, w.Return) || meets(k.forced, w.Call, w.Return) {
				continue
			}
			from, after := h.fits(k, i)
			if from >= w.Return {
				continue // it did not wait, or nobody knows what for
			}
			if from > w.Call {
				h.counts.Rooms++
			}
			if took := time.Duration(w.Return - from); took > h.rules.Handoff+turns*h.slowest(from, w.Return) {
				broken = append(broken, Violation{
					Rule: "rooms", Key: k.key, Ops: []history.Op{after, w},
					Text: fmt.Sprintf("it waited for %s longer than it had to, more than %s", took, h.rules.Handoff),
				})
			}
		}
	}
	return broken
}

// fits is from when on the i-th grant of a key fits for certain, and after which grant: the last that kept it waiting.
func (h *arranged) fits(k *keyHistory, i int) (from int64, after history.Op) {
	w := k.terms[i].grant
	from = w.Call
	later := func(at int64, op history.Op) {
		if at > from {
			from, after = at, op
		}
	}
	if i > 0 {
		later(k.terms[i-1].grant.Return, k.terms[i-1].grant)
	}
	for _, g := range k.ghosts {
		if g.meets(w.Call, w.Return) {
			later(g.to, history.Op{})
		}
	}
	var beside []*term
	for _, t := range k.terms[:i] {
		switch {
		case t.gone() < w.Call:
		case !w.Shared:
			later(t.gone(), t.grant)
		case t.grant.Shared:
			beside = append(beside, t)
		case t.downgrade != nil && t.downgrade.Outcome == history.Held:
			later(t.downgrade.Return, t.grant)
			beside = append(beside, t)
		default:
			later(t.gone(), t.grant)
		}
	}
	if w.Limit > 0 && len(beside) >= w.Limit { // so many of them must go, the first ones
		slices.SortFunc(beside, func(a, b *term) int { return int(min(1, max(-1, a.gone()-b.gone()))) })
		last := beside[len(beside)-w.Limit]
		later(last.gone(), last.grant)
	}
	return from, after
}

// gone is when a term was over for certain.
func (t *term) gone() int64 {
	if t.left == 0 {
		return never
	}
	return t.left
}
