package clients

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Rules are the figures that a history is judged by.
type Rules struct {
	// Timeout is what clients were told to wait for an answer at most. TTL is the sidecars'.
	Timeout, TTL time.Duration
	// Slack is how much later than promised a program may note anything: it shares its processor with all others.
	Slack time.Duration
	// Told is how much later it may note that it lost a key. Few holds are long, so a rule with the slack of the others would hardly refuse one.
	Told time.Duration
	// Recovery is how long after a fault was healed an error can come from it.
	Recovery time.Duration
	// Least is what must have happened in each program.
	Least Counts
}

// Counts is what has happened in a program.
type Counts struct {
	Grants, Timeouts, Cancelled, Losses, Errors, Again int
	// Frozen are the keys that it held when its sidecar was frozen for longer than a lease.
	Frozen int
}

// Violation is a rule that was broken.
type Violation struct { //nolint:errname // that is what it is
	Rule, Text string
	// Ops show it.
	Ops []Op
}

func (v Violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.Rule, v.Text)
	for _, op := range v.Ops {
		fmt.Fprintf(&b, "\n\t%s", op)
	}
	return b.String()
}

// Report is what came out.
type Report struct {
	Counts     map[string]Counts // of each program
	Errors     map[string]int    // by program, call and class
	Violations []Violation
}

// Err is nil if nothing was broken.
func (r Report) Err() error {
	const most = 30 // one bug breaks many
	var all []error
	for _, v := range r.Violations[:min(len(r.Violations), most)] {
		all = append(all, v)
	}
	if more := len(r.Violations) - most; more > 0 {
		all = append(all, fmt.Errorf("and %d more", more))
	}
	return errors.Join(all...)
}

// write writes all violations into a file: Err has only some.
func (r Report) write(file string) error {
	var b strings.Builder
	for _, v := range r.Violations {
		fmt.Fprintln(&b, v)
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// Judge judges what programs have written, by the notes of the world: the faults, the processes that ended, and when the machine
// was slow.
func Judge(ops []Op, notes []history.Op, rules Rules) Report {
	h := arrange(ops, notes, rules)
	r := Report{Counts: h.counts(), Errors: map[string]int{}}
	for _, op := range ops {
		if op.Outcome == Failed {
			r.Errors[fmt.Sprintf("%s %s %s", op.Program, op.Kind, op.Error)]++
		}
	}
	for _, rule := range []func(*judged) []Violation{exclusion, told, clock, tokens, permits, inTime, documented, known, again} {
		r.Violations = append(r.Violations, rule(h)...)
	}
	r.Violations = append(r.Violations, traffic(r.Counts, rules.Least)...)
	return r
}

// hold is one key that a program was granted.
type hold struct {
	key   string
	token int64
	grant Op
	// end is until when the program believed that it holds the key: up to the call that releases it, or the news of its loss.
	end int64
	// ended is the op that ended the hold; its Kind is empty if the program did.
	ended Op
	// certain: the sidecar confirmed by the release that the key was held up to that.
	certain bool
	// released are all tries of the release.
	releases []Op
}

// judged is a history in the order in which rules need it.
type judged struct {
	rules  Rules
	ops    []Op
	holds  map[string][]*hold // by key, in the order of their grants
	byHold map[string][]*hold // by the id of the acquire
	faults []trouble
	slow   []span
	// ends is when an app, or a child of it, was killed.
	ends map[string]int64
	last int64
}

// span is a time between two moments.
type span struct{ from, to int64 }

// within is how much of a span lies between two moments.
func (s span) within(from, to int64) time.Duration {
	return time.Duration(max(0, min(s.to, to)-max(s.from, from)))
}

// trouble is a fault of the world's.
type trouble struct {
	span
	name   string
	part   string // sidecar, app or server
	target int
}

func arrange(ops []Op, notes []history.Op, rules Rules) *judged {
	h := &judged{rules: rules, ops: ops, holds: map[string][]*hold{}, byHold: map[string][]*hold{}, ends: map[string]int64{}}
	for _, op := range ops {
		h.last = max(h.last, op.Call, op.Return)
	}
	for _, note := range notes {
		h.note(note)
	}
	for _, op := range ops {
		if op.Kind == Killed {
			h.ends[process(op.App, op.Pid)] = op.Call
		}
	}
	for _, op := range ops {
		h.take(op)
	}
	for key, holds := range h.holds {
		slices.SortStableFunc(holds, func(a, b *hold) int { return int(min(1, max(-1, a.grant.Return-b.grant.Return))) })
		h.holds[key] = holds
	}
	return h
}

func process(app string, pid int) string { return fmt.Sprintf("%s/%d", app, pid) }

func (h *judged) note(note history.Op) {
	end := note.Return
	if end == 0 {
		end = h.last
	}
	switch note.Kind {
	case history.Slow:
		h.slow = append(h.slow, span{note.Call, end})
	case history.Ended:
		if note.Whose != "" {
			h.ends[note.Whose] = note.Call
		}
	case history.Fault:
		f := trouble{span: span{note.Call, end}, part: "server"}
		name, whom, _ := strings.Cut(note.Note, " ")
		f.name = name
		for _, part := range []string{"sidecar", "app"} {
			if _, err := fmt.Sscanf(whom, part+"%d", &f.target); err == nil {
				f.part = part
			}
		}
		h.faults = append(h.faults, f)
	}
}

// take takes an op into the holds.
func (h *judged) take(op Op) {
	switch op.Kind {
	case Acquire:
		if op.Outcome != Granted {
			return
		}
		for i, key := range op.Keys {
			one := &hold{key: key, token: op.Tokens[i], grant: op, end: h.endOf(op)}
			h.holds[key] = append(h.holds[key], one)
			h.byHold[op.ID] = append(h.byHold[op.ID], one)
		}
	case Release, Lost:
		for _, one := range h.byHold[op.Hold] {
			if op.Kind == Lost && len(op.Keys) == 1 && op.Keys[0] != one.key {
				continue
			}
			if op.Kind == Release {
				one.releases = append(one.releases, op)
			}
			if op.Call < one.end || one.ended.Kind == "" && op.Call == one.end {
				one.end, one.ended = op.Call, op
				one.certain = op.Kind == Release && op.Outcome == Done
			}
		}
	}
}

// endOf is when the process of an op ended at the latest.
func (h *judged) endOf(op Op) int64 {
	end := h.last + 1
	for _, name := range []string{op.App, process(op.App, op.Pid)} {
		if at, ok := h.ends[name]; ok {
			end = min(end, at)
		}
	}
	return end
}

// app is the index of the app of an op.
func app(op Op) int {
	var index, start int
	if _, err := fmt.Sscanf(op.App, "app%d-%d", &index, &start); err != nil {
		return -1
	}
	return index
}

// struck reports whether a fault of those that name picks can be felt by an op between two moments.
func (h *judged) struck(op Op, from, to int64, pick func(f trouble) bool) bool {
	for _, f := range h.faults {
		if pick(f) && f.concerns(op) && f.from <= to && from <= f.to+int64(h.rules.Recovery) {
			return true
		}
	}
	return false
}

// concerns: a fault strikes the program itself, its sidecar, or the store of all.
func (f trouble) concerns(op Op) bool {
	switch f.part {
	case "app":
		return f.target == app(op)
	case "sidecar":
		return f.target == op.Sidecar
	}
	return true
}

// frozenHold is a key that a program held when its sidecar was frozen for longer than the lease.
type frozenHold struct {
	*hold

	freeze trouble
}

// frozen are those that only a loss could end. It leaves out what a program released in time by itself. The client for PHP has no thread, so its programs
// learn of a loss when they ask for it: in these the holds count that do nothing else.
func (h *judged) frozen() (all []frozenHold) {
	for _, f := range h.faults {
		over := f.from + int64(h.rules.TTL+h.rules.Told)
		if f.name != "freeze-sidecar" || f.to < over {
			continue
		}
		for _, holds := range h.holds {
			for _, one := range holds {
				held := one.grant.Return <= f.from && one.end > f.from
				waits := one.grant.Form == through // its release comes with the news of the loss, and may be noted before
				asks := one.grant.Program != "php" || waits
				if held && asks && f.concerns(one.grant) && (waits || one.ended.Kind == Lost || one.end > over) {
					all = append(all, frozenHold{one, f})
				}
			}
		}
	}
	return all
}

// halted is for how long the program could not run between two moments, as far as anybody knows.
func (h *judged) halted(op Op, from, to int64) (total time.Duration) {
	for _, f := range h.faults {
		if f.name == "freeze-app" && f.concerns(op) {
			total += f.within(from, to)
		}
	}
	for _, s := range h.slow {
		total += s.within(from, to)
	}
	return total
}

// counts is what has happened in each program.
func (h *judged) counts() map[string]Counts {
	all := map[string]Counts{}
	for _, op := range h.ops {
		c := all[op.Program]
		switch {
		case op.Kind == Lost:
			c.Losses++
		case op.Kind == Again && op.Outcome == Done:
			c.Again++
		case op.Outcome == Granted:
			c.Grants++
		case op.Outcome == Timeout:
			c.Timeouts++
		case op.Outcome == Cancelled:
			c.Cancelled++
		case op.Outcome == Failed:
			c.Errors++
		}
		if op.Program != "" {
			all[op.Program] = c
		}
	}
	for _, one := range h.frozen() {
		c := all[one.grant.Program]
		c.Frozen++
		all[one.grant.Program] = c
	}
	return all
}
