package model

import (
	"strings"
	"testing"
	"time"
)

// TestCohorts goes through all states of a few calls behind two sidecars.
// Proves: promise 5
func TestCohorts(t *testing.T) {
	t.Parallel()
	searches := map[string]CohortBounds{
		"nothing goes wrong": {Pods: "AAABB"},
		"calls leave":        {Pods: "AAAB", Leaves: 2},
		"a fault":            {Pods: "AAAB", Faults: 1},
		"a crash":            {Pods: "AAAB", Crashes: 1},
		"a stop":             {Pods: "AAAB", Stops: 1},
	}
	if long {
		searches = map[string]CohortBounds{
			"a fault, and calls leave": {Pods: "AAAB", Faults: 1, Leaves: 1},
			"a crash, and calls leave": {Pods: "AAAB", Crashes: 1, Leaves: 1},
			"three faults":             {Pods: "AAAB", Faults: 3, Leaves: 2},
			"five calls and a fault":   {Pods: "AAABB", Faults: 1},
			"five calls and a crash":   {Pods: "AAABB", Crashes: 1, Leaves: 1},
			"a stop, a fault, a crash": {Pods: "AAAB", Stops: 1, Faults: 1, Crashes: 1},
		}
	}
	for name, b := range searches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := SearchCohorts(b, far)
			t.Logf("%d states, %d steps, in %v", r.States, r.Steps, r.Took.Round(time.Millisecond))
			if r.Short {
				t.Errorf("there are more than %d states", far)
			}
			if r.Broken != Fine {
				t.Errorf("broken: %s\n%s", r.Broken, strings.Join(r.Trace, "\n"))
			}
		})
	}
}

// TestCohortTeeth turns off each rule of cohorts. The search must find what it is there for.
func TestCohortTeeth(t *testing.T) {
	t.Parallel()
	for rule, tooth := range map[CohortRule]struct {
		bounds CohortBounds
		finds  Invariant
	}{
		DirectlyBehind: {CohortBounds{Pods: "AAAB"}, InTurn},
		ServedLeave:    {CohortBounds{Pods: "AAB"}, Orphan},
		TokenOfItsOwn:  {CohortBounds{Pods: "AAA"}, TokensGrow},
		Reserved:       {CohortBounds{Pods: "AAAB"}, TokensGrow},
		OfOneGrant:     {CohortBounds{Pods: "AAAB"}, Stuck},
		PassesOver:     {CohortBounds{Pods: "AAAB", Leaves: 1}, Orphan},
		NotBackwards:   {CohortBounds{Pods: "AAAA"}, Committed},
		StopEnds:       {CohortBounds{Pods: "AAAA", Stops: 1}, Asked},
	} {
		t.Run(rule.String(), func(t *testing.T) {
			tooth.bounds.Off = rule
			r := SearchCohorts(tooth.bounds, far)
			t.Logf("%s, after %d states, %v", r.Broken, r.States, r.Took.Round(time.Millisecond))
			if r.Broken != tooth.finds {
				t.Errorf("finds %q, want %q:\n%s", r.Broken, tooth.finds, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
