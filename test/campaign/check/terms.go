package check

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// settle is how long after its call something of unknown outcome can still take effect
// while faults are about. calmly is how far from an answer an effect can be when none is.
const (
	settle = time.Minute
	calmly = time.Second
)

// never is a time that does not come.
const never = math.MaxInt64

// arranged is a history by key, with the questions that several rules ask.
type arranged struct {
	rules  Rules
	ops    []history.Op
	keys   []*keyHistory // those that nobody shares, in the order of their names
	shared []*keyHistory // the others
	faults []span        // with the time of recovery
	// slow is when the machine was.
	slow []span
	// unpromised is when exclusion was not promised.
	unpromised []span
	// quiet is when a free key may be kept for those who wait.
	quiet []span
	// replaced is when another server took over, with the time of recovery.
	replaced []span
	// keeps is for how long each sidecar keeps keys without use, if it does.
	keeps map[int]time.Duration
	// alive is when each lease was last seen to live, in the line of any key.
	alive map[string]int64
	// forgetting is when the database server forgot releases.
	forgetting []span
	// groupForced are the times when somebody broke one of the keys of a call for several, by
	// the call's name.
	groupForced map[string][]span
	counts      Counts
}

type span struct{ from, to int64 }

// ghost is an acquire that may have got the key without telling, or a release that may be forgotten.
type ghost struct {
	span
	op string
}

func (s span) meets(from, to int64) bool { return s.from <= to && from <= s.to }

func meets(spans []span, from, to int64) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.meets(from, to) })
}

// keyHistory is what happened to one key.
type keyHistory struct {
	key    string
	ops    []history.Op
	terms  []*term // in the order of their tokens
	ghosts []ghost // when somebody may have had it who was never told so
	kept   []keeping
	groups []span // when a call for several keys wanted it
	forced []span // when somebody broke it, perhaps
	lines  []history.Op
	shared bool
}

// term is the time under one grant, as far as clients know of it.
type term struct {
	grant history.Op
	// until is up to when the sidecars' answers said that it holds.
	until int64
	// ranOut is when its lease was over by its sidecar's clock: until, or earlier if the machine was suspended.
	ranOut int64
	// end is the first moment at which it may have ended: until, or earlier if the client
	// released it, or something ended it that was meant to.
	end int64
	// belief is the time until which its client relied on it: end, or earlier if it learned of a loss.
	belief int64
	// due is end, whether or not its client released it before.
	due int64
	// released is the release that was confirmed, if any; left is when the client had
	// given it up for certain, by a release or a drop, 0 if it never did.
	released *history.Op
	left     int64
	// freed is the release that was answered so, whatever was promised then; freeing is that, or one of unknown outcome.
	freed, freeing *history.Op
	// take: its sidecar may have kept the key, and given it to this client without the store.
	take bool
	// downgrade is when the client asked that others may share it, if it did.
	downgrade *history.Op
}

// arrange sorts a history out.
func arrange(ops []history.Op, rules Rules) *arranged {
	h := &arranged{rules: rules, ops: ops, alive: make(map[string]int64), keeps: make(map[int]time.Duration)}
	byKey := make(map[string]*keyHistory)
	for _, op := range ops {
		if op.Kind == history.Fault || op.Kind == history.Ended || op.Kind == history.Unpromised || op.Kind == history.Replaced {
			h.faults = append(h.faults, span{op.Call, plus(answered(op), rules.Recovery)})
		}
		if op.Kind == history.Replaced {
			h.replaced = append(h.replaced, span{op.Call, plus(answered(op), rules.Recovery)})
		}
		if op.Kind == history.Quiet {
			h.quiet = append(h.quiet, span{op.Call, answered(op)})
		}
		if op.Kind == history.Forgets {
			h.forgetting = append(h.forgetting, span{op.Call, answered(op)})
		}
		if op.Kind == history.Slow {
			h.slow = append(h.slow, span{op.Call, op.Return})
			if op.Return-op.Call > int64(calmly) {
				h.faults = append(h.faults, span{op.Call, plus(op.Return, rules.Recovery)})
			}
		}
		if op.Kind == history.Keeps {
			h.keeps[op.Sidecar] = time.Duration(op.Until - op.Call)
			continue
		}
		for _, place := range op.Line {
			if !place.Dead {
				h.alive[place.Lease] = max(h.alive[place.Lease], op.Call)
			}
		}
		if op.Key == "" {
			continue
		}
		k := byKey[op.Key]
		if k == nil {
			k = &keyHistory{key: op.Key}
			byKey[op.Key] = k
		}
		k.ops = append(k.ops, op)
		k.shared = k.shared || op.Shared && op.Kind == history.Acquire
	}
	e := endings(ops)
	h.unpromised = slices.Concat(e.unpromised, e.replaced)
	h.groupForced = make(map[string][]span)
	for _, name := range slices.Sorted(maps.Keys(byKey)) {
		k := byKey[name]
		if k.shared {
			h.shared = append(h.shared, k)
		} else {
			h.keys = append(h.keys, k)
		}
		k.arrange(h, e)
		for _, op := range k.ops {
			if op.Kind == history.Acquire && op.Group != "" {
				h.groupForced[op.Group] = append(h.groupForced[op.Group], k.forced...)
			}
		}
	}
	return h
}

// calm reports whether there was no fault.
func (h *arranged) calm(from, to int64) bool {
	return !meets(h.faults, from, to)
}

// effect is when an operation may have had an effect.
func (h *arranged) effect(op history.Op) span {
	if to := plus(op.Return, calmly); op.Return != 0 && h.calm(op.Call, to) {
		return span{op.Call, to}
	}
	return span{op.Call, plus(max(op.Call, op.Return), settle)}
}

// haunting is when an acquire that was granted to nobody may have had the key. While its
// client waited it had not got it: it would have been told.
func (h *arranged) haunting(op history.Op) span {
	s := h.effect(op)
	if op.Return != 0 && op.Group == "" && s.to == plus(op.Return, calmly) {
		s.from = max(op.Call, op.Return-int64(calmly))
	}
	return s
}

// forgotten is when a release that was confirmed just before a crash may be forgotten.
func (h *arranged) forgotten(op history.Op) (ghosts []ghost) {
	for _, s := range h.forgetting {
		if s.meets(op.Call, plus(op.Return, calmly)) {
			ghosts = append(ghosts, ghost{span{s.from, plus(s.to, h.rules.Recovery)}, op.ID})
		}
	}
	return ghosts
}

func (k *keyHistory) arrange(h *arranged, e ended) {
	terms := make(map[int64]*term)
	for _, op := range k.ops {
		switch {
		case op.Kind == history.Acquire && op.Outcome == history.Granted:
			t := &term{grant: op, until: op.Until}
			k.terms = append(k.terms, t)
			terms[op.Token] = t
			// An earlier attempt may have had it, and given it back. A bind:ttl lock may have run out in an outage
			// before its client heard of it; then the call waited for it once more.
			if op.Repeats > 0 || op.Session == "" && op.Wait != 0 && !h.calm(op.Call, op.Return) {
				k.ghosts = append(k.ghosts, ghost{span{op.Call, op.Return}, op.ID})
			}
		case op.Kind == history.Acquire && (op.Wait != 0 || op.Group != "" || op.Outcome == history.Unknown):
			k.ghosts = append(k.ghosts, ghost{h.haunting(op), op.ID})
		case h.releases(op):
			k.ghosts = append(k.ghosts, h.forgotten(op)...)
		case op.Kind == history.Force && (op.Outcome == history.Done || op.Outcome == history.Unknown):
			k.forced = append(k.forced, h.effect(op))
		case op.Kind == history.Line:
			k.lines = append(k.lines, op)
		}
		if op.Kind == history.Acquire && op.Group != "" {
			s := h.effect(op)
			if op.Return != 0 && h.calm(op.Call, op.Return) {
				s.to = op.Return // it gives parts back before it answers
			}
			k.groups = append(k.groups, s)
		}
	}
	slices.SortFunc(k.terms, func(a, b *term) int { return cmp.Compare(a.grant.Token, b.grant.Token) })
	// A confirmation can only prolong: clients do not ask for less than they have.
	for _, op := range k.ops {
		if t := terms[op.Token]; t != nil && (op.Kind == history.Confirm || op.Kind == history.Downgrade) && op.Outcome == history.Held {
			t.until = max(t.until, op.Until)
		}
	}
	for _, t := range k.terms {
		t.ranOut = cut(t.grant, t.until, e.sidecars[t.grant.Sidecar])
		t.belief = min(t.until, e.of(t.grant, t.until))
		t.belief = cut(t.grant, t.belief, k.forced)
		t.end = cut(t.grant, t.belief, e.replaced) // the server may have forgotten it, and its client believes in it
		t.due = t.end
		t.left = e.left(t.grant)
	}
	for i, op := range k.ops {
		t := terms[op.Token]
		if t == nil {
			continue
		}
		switch op.Kind {
		case history.Release:
			t.end, t.belief = min(t.end, op.Call), min(t.belief, op.Call)
			if op.Outcome == history.Done {
				t.left, t.freed = op.Return, &k.ops[i]
			}
			if op.Outcome == history.Done || op.Outcome == history.Unknown {
				t.freeing = &k.ops[i]
			}
			if h.releases(op) {
				t.released = &k.ops[i]
			}
		case history.Lost:
			t.belief = min(t.belief, op.Call)
		case history.Downgrade:
			t.downgrade = &k.ops[i]
		default:
		}
	}
	k.takes(h)
}

// releases reports whether an operation released its lock. Where nothing is promised, somebody
// else may have had it before; sidecars tell what they believe.
func (h *arranged) releases(op history.Op) bool {
	return op.Kind == history.Release && op.Outcome == history.Done && !meets(h.unpromised, op.Call, op.Return)
}

// ended is when sessions, and the promise, ended, for other reasons than a release.
type ended struct {
	drops      map[string]history.Op // by session
	sidecars   map[int][]span
	processes  map[string][]span
	unpromised []span
	replaced   []span
}

func endings(ops []history.Op) ended {
	e := ended{drops: make(map[string]history.Op), sidecars: make(map[int][]span), processes: make(map[string][]span)}
	for _, op := range ops {
		s := span{op.Call, answered(op)}
		switch op.Kind {
		case history.Drop:
			if first, ok := e.drops[op.Session]; !ok || op.Call < first.Call {
				e.drops[op.Session] = op
			}
		case history.Ended:
			if op.Whose != "" {
				e.processes[op.Whose] = append(e.processes[op.Whose], s)
			} else {
				e.sidecars[op.Sidecar] = append(e.sidecars[op.Sidecar], s)
			}
		case history.Unpromised:
			e.unpromised = append(e.unpromised, s)
		case history.Replaced:
			e.replaced = append(e.replaced, s)
		default:
		}
	}
	return e
}

// of is when the session of a grant ended, or exclusion was not promised any more; until
// if neither happened before.
func (e ended) of(grant history.Op, until int64) int64 {
	end := cut(grant, until, e.unpromised)
	if grant.Session == "" {
		return cut(grant, end, e.replaced)
	}
	end = cut(grant, end, e.sidecars[grant.Sidecar])
	end = cut(grant, end, e.processes[grant.Process])
	if drop, ok := e.drops[grant.Session]; ok {
		end = min(end, drop.Call)
	}
	return end
}

// cut is the end of a term that one of these times cuts short.
func cut(grant history.Op, end int64, spans []span) int64 {
	for _, s := range spans {
		if s.meets(grant.Call, end) {
			end = max(s.from, grant.Call)
		}
	}
	return end
}

// left is when the session's client had closed its connection.
func (e ended) left(grant history.Op) int64 {
	if drop, ok := e.drops[grant.Session]; ok && grant.Session != "" {
		return drop.Return
	}
	return 0
}

// answered is when an operation was over.
func answered(op history.Op) int64 {
	if op.Return == 0 {
		return never
	}
	return op.Return
}

// plus does not overflow.
func plus(t int64, d time.Duration) int64 {
	if t > never-int64(d) {
		return never
	}
	return t + int64(d)
}
