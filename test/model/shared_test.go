package model

import (
	"strings"
	"testing"
	"time"
)

// TestShared goes through all states of a few calls that share a key, behind two sidecars.
// Proves: promise 19
func TestShared(t *testing.T) {
	t.Parallel()
	searches := map[string]SharedBounds{
		"a semaphore":               {Pods: "AABB", Modes: "ssss", Limit: 2, Leaves: 1},
		"a semaphore and a writer":  {Pods: "AABB", Modes: "ssxs", Limit: 2, Leaves: 1},
		"a semaphore, a fault":      {Pods: "AAB", Modes: "sss", Limit: 1, Faults: 1, Leaves: 1},
		"a semaphore, a crash":      {Pods: "AAB", Modes: "sss", Limit: 1, Crashes: 1, Faults: 1},
		"two limits":                {Pods: "AAB", Modes: "sso", Limit: 2, Crashes: 1, Leaves: 1},
		"readers and a writer":      {Pods: "AABB", Modes: "sxss", Leaves: 1, Crashes: 1},
		"a downgrade":               {Pods: "AAB", Modes: "dsx", Faults: 1, Leaves: 1, Crashes: 1},
		"a downgraded semaphore":    {Pods: "ABB", Modes: "dss", Limit: 2, Faults: 1, Crashes: 1},
		"a semaphore, and failover": {Pods: "AABB", Modes: "ssss", Limit: 2, Failovers: 1},
	}
	if long {
		searches = map[string]SharedBounds{
			"a semaphore, all goes wrong": {Pods: "AABB", Modes: "sxss", Limit: 2, Faults: 2, Leaves: 2, Crashes: 1, Failovers: 1},
			"five of a semaphore":         {Pods: "AABBB", Modes: "sssss", Limit: 2, Faults: 1, Leaves: 1, Crashes: 1},
			"downgrades":                  {Pods: "AABB", Modes: "dxsd", Faults: 2, Leaves: 2, Crashes: 1},
		}
	}
	for name, b := range searches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := SearchShared(b, far)
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

// TestSharedTeeth turns off each rule of shared keys. The search must find what it is there for.
func TestSharedTeeth(t *testing.T) {
	t.Parallel()
	teeth := map[SharedRule]struct {
		bounds SharedBounds
		finds  Invariant
	}{
		Limited:       {SharedBounds{Pods: "AAB", Modes: "sss", Limit: 2}, Places},
		Alone:         {SharedBounds{Pods: "AB", Modes: "sx"}, Exclusion},
		Behind:        {SharedBounds{Pods: "AAB", Modes: "sxs"}, InTurn},
		Together:      {SharedBounds{Pods: "AAB", Modes: "xss"}, InTurn},
		FreeSlot:      {SharedBounds{Pods: "AAB", Modes: "sss", Limit: 2}, Places},
		OneLimit:      {SharedBounds{Pods: "AB", Modes: "so", Limit: 2}, Places},
		ByItsToken:    {SharedBounds{Pods: "AA", Modes: "ss"}, Committed},
		PassesOn:      {SharedBounds{Pods: "AB", Modes: "ss", Limit: 1}, InTurn},
		LeaverLooks:   {SharedBounds{Pods: "AAB", Modes: "sxs", Leaves: 1}, InTurn},
		ReaperLooks:   {SharedBounds{Pods: "AB", Modes: "ss", Limit: 1, Crashes: 1}, Stuck},
		WaiterLooks:   {SharedBounds{Pods: "BAB", Modes: "sxs", Leaves: 1, Crashes: 1}, InTurn},
		ExpiredCounts: {SharedBounds{Pods: "AB", Modes: "ss", Limit: 1, Faults: 1}, Places},
		AlsoWithdrawn: {SharedBounds{Pods: "A", Modes: "s", Limit: 1, Faults: 1}, Stuck},
		LetsReadersIn: {SharedBounds{Pods: "AB", Modes: "ds"}, InTurn},
		MayBeShared:   {SharedBounds{Pods: "AA", Modes: "ds", Faults: 1}, Orphan},
		Quiet:         {SharedBounds{Pods: "AAB", Modes: "sss", Limit: 1, Failovers: 1}, Places},
		EachVerified:  {SharedBounds{Pods: "AAB", Modes: "sss", Limit: 2, Failovers: 1}, Committed},
	}
	for rule := SharedRule(1); rule < sharedRules; rule++ {
		t.Run(rule.String(), func(t *testing.T) {
			tooth := teeth[rule]
			tooth.bounds.Off = rule
			r := SearchShared(tooth.bounds, far)
			t.Logf("%s, after %d states, %v", r.Broken, r.States, r.Took.Round(time.Millisecond))
			if r.Broken != tooth.finds {
				t.Errorf("finds %q, want %q:\n%s", r.Broken, tooth.finds, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
