// Package check judges a history. Each rule has a file of its own:
//
//   - model.go: for each key there is an order of all operations, each between its call
//     and its answer, in which a lock would have answered just so (linearizability,
//     decided in one pass);
//   - porcupine.go: porcupine finds none of which that is not true, either;
//   - exclusion.go: no two clients believe at a time that they hold a key;
//   - tokens.go: a later grant has a larger token;
//   - fencing.go: what a client writes while it believes that it holds is accepted;
//   - fifo.go: of two that waited in the queue, the first got the lock first;
//   - passed.go: few of the calls that were made after one that waits get the lock before it;
//   - handoff.go: who waits has a lock soon after it was given up;
//   - permits.go: of those who share a key there are never more than its limit, each with a
//     slot of its own, and none beside an exclusive holder;
//   - kept.go: a key that its sidecar keeps is taken there only for as long as it may, and given up when somebody elsewhere waits;
//   - shares.go: the answers of shared keys fit to those who hold them, and whoever fits
//     gets in;
//   - orphan.go: when all have left, the store holds nothing for them;
//   - traffic.go: enough happened that the rest says something.
//
// All hold whatever fails, but for times that are marked as [history.Unpromised]. But fifo, passed,
// hand-off, and who gets in are judged only where no fault is under way, or was just
// before: what they promise then is said there.
//
// The model, exclusion and hand-off are for keys that nobody asks to share.
package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Rules are the figures that a history is judged by.
type Rules struct {
	// Handoff is the longest time from the answer to a release to the answer to the waiting call.
	Handoff time.Duration
	// Passed is how many calls that were made after one that waits may get the lock before it.
	Passed int
	// Recovery is how long after a fault was healed its traces can be seen: leases that
	// were not renewed in time expire, calls wait in the queue again, what is unknown is withdrawn.
	Recovery time.Duration
	// Cache is the sidecars' LOCKSIDECAR_CACHE_TTL.
	Cache time.Duration
	// Shortest is the shortest time for which a client asks for a lock of its own lease.
	Shortest time.Duration
	// KeptFor is the longest time from the ask of a grant until its sidecar gives the key to another session without the store.
	KeptFor time.Duration
	// Search is how long porcupine may look for what the model has not found: 0 is not at all.
	Search time.Duration
	// Least is what must have happened.
	Least Counts
}

// DefaultRules fit sidecars with a TTL of a few seconds, on a machine with other work.
func DefaultRules() Rules {
	return Rules{
		Handoff: time.Second, Passed: 80, Recovery: 15 * time.Second, Cache: 100 * time.Millisecond, Shortest: history.ShortestTTL,
		KeptFor: 2 * time.Second, Search: 20 * time.Second,
	}
}

// Violation is a rule that was broken.
type Violation struct { //nolint:errname // that is what it is
	Rule, Key, Text string
	// Ops show it.
	Ops []history.Op
}

func (v Violation) Error() string {
	var b strings.Builder
	b.WriteString(v.Rule + ": ")
	if v.Key != "" {
		b.WriteString(v.Key + ": ")
	}
	b.WriteString(v.Text)
	for _, op := range v.Ops {
		b.WriteString("\n\t" + describe(op))
	}
	return b.String()
}

// Report is what came out.
type Report struct {
	Counts     Counts
	Violations []Violation
}

// Err is nil when all was decided, and nothing broken.
func (r Report) Err() error {
	const most = 20 // one bug breaks many
	var all []error
	for _, v := range r.Violations[:min(len(r.Violations), most)] {
		all = append(all, v)
	}
	if more := len(r.Violations) - most; more > 0 {
		all = append(all, fmt.Errorf("and %d more", more))
	}
	return errors.Join(all...)
}

// Keys are those with violations.
func (r Report) Keys() []string {
	keys := make(map[string]bool)
	for _, v := range r.Violations {
		if v.Key != "" {
			keys[v.Key] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// All judges a history by all rules except that of orphans, which needs the store.
func All(ops []history.Op, rules Rules) Report {
	h := arrange(ops, rules)
	h.count()
	var r Report
	for _, rule := range []func(*arranged) []Violation{model, search, exclusion, tokens, fencing, fifo, passed, handoff, kept, permits, shares, rooms, traffic} {
		r.Violations = append(r.Violations, rule(h)...)
	}
	r.Counts = h.counts
	return r
}

func describe(op history.Op) string {
	text := fmt.Sprintf("%s %s %s", op.ID, op.Kind, op.Outcome)
	if op.Outcome == history.Unknown {
		text = fmt.Sprintf("%s %s", op.ID, op.Kind)
	}
	if op.Token != 0 {
		text += fmt.Sprintf(" token %d", op.Token)
	}
	text += fmt.Sprintf(" by client %d of %s (sidecar %d, session %q), called %d", op.Client, op.Process, op.Sidecar, op.Session, op.Call)
	if op.Return != 0 {
		text += fmt.Sprintf(", answered after %s", time.Duration(op.Return-op.Call))
	}
	if op.Until != 0 {
		text += fmt.Sprintf(", good for %s", time.Duration(op.Until-op.Call))
	}
	if op.Note != "" {
		text += ": " + op.Note
	}
	return text
}
