package check

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Counts is what happened. As [Rules.Least] it is what must have happened: a campaign in
// which nobody got a lock, or no call remained unanswered, proves nothing.
type Counts struct {
	Grants     int
	Waited     int // grants of calls that may wait and that had not the key at once, as far as seen
	Unknown    int // acquires and releases of unknown outcome
	Drops      int
	Losses     int // locks that a client had, and was told that it has not any more
	Stale      int // writes that the fence refused
	Faults     int
	Refusals   int // refusals that the model judged, since nobody could have had the key unseen
	Searched   int // pieces of histories in which porcupine found nothing wrong
	Undecided  int // those in which it found no end in time
	Ordered    int // pairs that the rule of first in, first out was applied to
	Moved      int // places in line that were lost while all was calm, with their leases
	Turns      int // waiting calls of which was judged how many later ones were served before them
	Passed     int // how many that were at most
	HandOffs   int // hand-offs whose time was judged
	HandedOn   int // grants that sidecars handed on to their own waiters, without the store
	Kept       int // grants of keys that their sidecars had kept, without the store
	Recalled   int // grants of such keys to others, elsewhere, whose time was judged
	Shares     int // grants that share a key
	Full       int // times in which a semaphore had as many holders as it may, for certain
	Downgrades int // locks that were shared from some time on
	Mismatches int // acquires that named another limit
	Counted    int // looks at shared keys whose number of holders was judged
	Rooms      int // grants of shared keys whose time was judged
	Operations int
}

// waited is the time from which on a grant counts as waited for.
const waited = 5_000_000

func (h *arranged) count() {
	c := &h.counts
	for _, op := range h.ops {
		c.Operations++
		switch {
		case op.Kind == history.Acquire && op.Outcome == history.Granted:
			c.Grants++
			if op.Shared {
				c.Shares++
			}
			if op.Wait != 0 && op.Return-op.Call > waited {
				c.Waited++
			}
		case (op.Kind == history.Acquire || op.Kind == history.Release) && op.Outcome == history.Unknown:
			c.Unknown++
		case op.Outcome == history.Mismatch:
			c.Mismatches++
		case op.Kind == history.Downgrade && op.Outcome == history.Held:
			c.Downgrades++
		case op.Kind == history.Drop:
			c.Drops++
		case op.Kind == history.Lost, op.Kind == history.Confirm && op.Outcome == history.NotHeld:
			c.Losses++
		case op.Outcome == history.Stale:
			c.Stale++
		case op.Kind == history.Fault:
			c.Faults++
		}
	}
	for _, k := range h.keys {
		for i := 1; i < len(k.terms); i++ {
			if k.terms[i].grant.Token == k.terms[i-1].grant.Token+1 && !k.terms[i].take { // those of the store are further apart
				c.HandedOn++
			}
		}
	}
}

// traffic: each figure reaches its least. It comes last, for the other rules count, too.
func traffic(h *arranged) (broken []Violation) {
	is, least := reflect.ValueOf(h.counts), reflect.ValueOf(h.rules.Least)
	for i := range is.NumField() {
		if is.Field(i).Int() < least.Field(i).Int() {
			broken = append(broken, Violation{
				Rule: "traffic",
				Text: fmt.Sprintf("%s: %d, want at least %d", is.Type().Field(i).Name, is.Field(i).Int(), least.Field(i).Int()),
			})
		}
	}
	return broken
}

// Enough reports whether each figure reaches its least already, as far as the load makes it.
func Enough(ops []history.Op, rules Rules) bool {
	rules.Search, rules.Least.Searched = 0, 0
	return !slices.ContainsFunc(All(ops, rules).Violations, func(v Violation) bool { return v.Rule == "traffic" })
}
