package clients

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// exclusion: while a program holds a key that nobody shares, and its release confirms that it did up to then, nobody else is
// granted the key. What fails meanwhile is no excuse.
func exclusion(h *judged) (broken []Violation) {
	for _, holds := range h.holds {
		for i, a := range holds {
			if a.grant.Limit > 0 || !a.certain {
				continue
			}
			for _, b := range holds {
				within := b.grant.Return > a.grant.Return && b.grant.Return < a.end // granted while a held it
				if b != a && b.token > a.token && within {
					broken = append(broken, Violation{
						Rule: "exclusion", Ops: []Op{a.grant, a.ended, b.grant},
						Text: fmt.Sprintf("%q was granted while it was held, %s before the release that was confirmed", a.key, time.Duration(a.end-b.grant.Return)),
					})
				}
			}
			for _, b := range holds[i+1:] {
				if b.certain && b.token < a.token && b.end > a.grant.Return {
					broken = append(broken, Violation{
						Rule: "exclusion", Ops: []Op{b.grant, b.ended, a.grant, a.ended}, Text: fmt.Sprintf("two held %q at a time, and both releases were confirmed", a.key),
					})
				}
			}
		}
	}
	return broken
}

// told: a program that lost a key knows before another is granted it. If its sidecar cannot say so, the client knows by its own
// clock. It is told late only if nobody could tell it, because it was frozen itself, and then soon after that.
func told(h *judged) (broken []Violation) {
	for _, holds := range h.holds {
		for i, a := range holds {
			if a.grant.Limit > 0 || a.certain {
				continue
			}
			for _, b := range holds[i+1:] {
				if b.token <= a.token || b.grant.Return >= a.end {
					continue
				}
				late := time.Duration(a.end-b.grant.Return) - h.halted(a.grant, b.grant.Return, a.end)
				if late > h.rules.Told {
					broken = append(broken, Violation{
						Rule: "told", Ops: []Op{a.grant, a.ended, b.grant},
						Text: fmt.Sprintf("a program believed that it holds %q for %s after another was granted it", a.key, late),
					})
				}
				break
			}
		}
	}
	return broken
}

// clock: a program whose sidecar is frozen is told of a loss by the client's own clock, when the lease of the last answer is over. The sidecar gave that answer
// before it was frozen.
func clock(h *judged) (broken []Violation) {
	for _, one := range h.frozen() {
		knew := min(one.end, one.freeze.to)
		late := time.Duration(knew-one.freeze.from) - h.rules.TTL - h.halted(one.grant, one.freeze.from, knew)
		if late > h.rules.Told {
			broken = append(broken, Violation{
				Rule: "clock", Ops: []Op{one.grant, one.ended},
				Text: fmt.Sprintf("its sidecar was frozen, and a program believed that it holds %q for %s after the end of the lease", one.key, late),
			})
		}
	}
	return broken
}

// tokens: no two grants of a key have the same token, and a later one has a larger token.
func tokens(h *judged) (broken []Violation) {
	for key, holds := range h.holds {
		var last *hold // of those that had returned, the one with the largest token
		byCall := slices.Clone(holds)
		slices.SortStableFunc(byCall, func(a, b *hold) int { return int(min(1, max(-1, a.grant.Call-b.grant.Call))) })
		next := 0
		seen := map[int64]*hold{}
		for _, a := range byCall {
			for ; next < len(holds) && holds[next].grant.Return < a.grant.Call; next++ {
				if last == nil || holds[next].token > last.token {
					last = holds[next]
				}
			}
			if last != nil && a.token <= last.token {
				broken = append(broken, Violation{Rule: "tokens", Ops: []Op{last.grant, a.grant}, Text: fmt.Sprintf("a later grant of %q has no larger token", key)})
			}
			if other := seen[a.token]; other != nil {
				broken = append(broken, Violation{Rule: "tokens", Ops: []Op{other.grant, a.grant}, Text: fmt.Sprintf("two grants of %q have one token", key)})
			}
			seen[a.token] = a
		}
	}
	return broken
}

// permits: of a semaphore, no more than its limit are held at a time by programs whose releases confirm it.
func permits(h *judged) (broken []Violation) {
	for key, holds := range h.holds {
		for _, a := range holds {
			if a.grant.Limit == 0 || !a.certain {
				continue
			}
			beside := []Op{a.grant}
			for _, b := range holds {
				if b != a && b.certain && b.grant.Return <= a.grant.Return && b.end > a.grant.Return {
					beside = append(beside, b.grant)
				}
			}
			if len(beside) > a.grant.Limit {
				broken = append(broken, Violation{Rule: "permits", Ops: beside, Text: fmt.Sprintf("%d hold %q at a time, whose limit is %d", len(beside), key, a.grant.Limit)})
			}
		}
	}
	return broken
}

// inTime: a call ends in its time: its wait, and an answer's; and soon after it was cancelled, with the time of an answer to the
// withdrawal. The time in which the program was frozen does not count, nor that in which the machine was slow.
func inTime(h *judged) (broken []Violation) {
	for _, op := range h.ops {
		end, late := op.Return, ""
		if end == 0 {
			if end = h.endOf(op); end <= h.last {
				continue // its process was killed
			}
			late = "it has not ended"
		}
		began, limit := op.Call, time.Duration(-1)
		switch op.Kind {
		case Acquire, Enter:
			if op.Wait >= 0 {
				limit = time.Duration(op.Wait)*time.Millisecond + h.rules.Timeout
			}
			if op.Cancel > 0 && (limit < 0 || op.Cancel < op.Call+int64(limit)) {
				began, limit = op.Cancel, h.rules.Timeout
			}
		case Release, Leave: // it may be sent again, on another connection
			limit = 2 * h.rules.Timeout
		}
		if late == "" && limit >= 0 {
			if took := time.Duration(end-began) - h.halted(op, began, end); took > limit+h.rules.Slack {
				late = fmt.Sprintf("it ended %s after its limit of %s", took-limit, limit)
			}
		}
		if late != "" {
			broken = append(broken, Violation{Rule: "time", Ops: []Op{op}, Text: late})
		}
	}
	return broken
}

// known: when all is quiet, those keys are held that programs say they hold, and no others.
func known(h *judged) (broken []Violation) {
	said := map[string]Op{} // by app
	looks := 0
	for _, op := range h.ops {
		switch op.Kind {
		case Quiet:
			said[op.App] = op
		case Stored:
			looks++
			broken = append(broken, h.differs(said, op)...)
		}
	}
	if looks == 0 {
		broken = append(broken, Violation{Rule: "known", Text: "nobody has looked at what is held"})
	}
	return broken
}

// differs compares what the programs say with what is held.
func (h *judged) differs(said map[string]Op, stored Op) (broken []Violation) {
	holds := map[string]bool{}
	for name, q := range said {
		if h.endOf(q) <= stored.Call {
			continue // it was killed
		}
		for _, key := range q.Keys {
			holds[key] = true
			if !slices.Contains(stored.Keys, key) {
				broken = append(broken, Violation{Rule: "known", Ops: []Op{q, stored}, Text: fmt.Sprintf("%s says that it holds %q, and it is not held", name, key)})
			}
		}
	}
	for i, key := range stored.Keys {
		if !holds[key] {
			broken = append(broken, Violation{
				Rule: "known", Ops: append(h.about(stored.Texts[i]), stored), Text: fmt.Sprintf("%q is held, and no program knows: by %s", key, stored.Texts[i]),
			})
		}
	}
	return broken
}

// about is the call that named itself as a holder, and what became of its locks.
func (h *judged) about(holder string) (ops []Op) {
	for _, op := range h.ops {
		if id := " " + op.ID + " "; strings.Contains(holder, id) || op.Hold != "" && strings.Contains(holder, " "+op.Hold+" ") {
			ops = append(ops, op)
		}
	}
	return ops
}

// again: each object of a program works after all that has happened.
func again(h *judged) (broken []Violation) {
	for _, op := range h.ops {
		if op.Kind == Again && op.Outcome != Done && (op.Return != 0 || h.endOf(op) > h.last) {
			broken = append(broken, Violation{Rule: "again", Ops: []Op{op}, Text: "an object does not work any more"})
		}
	}
	return broken
}

// traffic: enough has happened in each program that the rest says something.
func traffic(counts map[string]Counts, least Counts) (broken []Violation) {
	for program, c := range counts {
		if c.Grants < least.Grants || c.Timeouts < least.Timeouts || c.Cancelled < least.Cancelled || c.Losses < least.Losses || c.Frozen < least.Frozen || c.Errors < least.Errors || c.Again < least.Again {
			broken = append(broken, Violation{Rule: "traffic", Text: fmt.Sprintf("too little has happened in %s: %+v of %+v", program, c, least)})
		}
	}
	if len(counts) == 0 {
		broken = append(broken, Violation{Rule: "traffic", Text: "nothing has happened"})
	}
	return broken
}
