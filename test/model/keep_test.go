package model

import (
	"strings"
	"testing"
	"time"
)

// TestKeepers goes through all states of a few calls of two sidecars that keep the key between them.
// Proves: promise 1, promise 3, promise 5, trap kept key, trap recall
func TestKeepers(t *testing.T) {
	t.Parallel()
	searches := map[string]KeepBounds{
		"nothing goes wrong": {Pods: "AAAB"},
		"both keep":          {Pods: "AABB"},
		"calls leave":        {Pods: "AAB", Leaves: 1},
		"a fault":            {Pods: "AAB", Faults: 1, Leaves: 1},
		"a crash":            {Pods: "AAB", Crashes: 1},
	}
	if long {
		searches = map[string]KeepBounds{
			"five calls":          {Pods: "AAABB"},
			"two faults":          {Pods: "AAB", Faults: 2, Leaves: 1},
			"a fault and a crash": {Pods: "AAB", Faults: 1, Leaves: 1, Crashes: 1},
			"both keep, a fault":  {Pods: "AABB", Faults: 1, Leaves: 1},
		}
	}
	for name, b := range searches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := SearchKeepers(b, far)
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

// TestKeepTeeth turns off each rule of sidecars that keep keys. The search must find what it is there for.
func TestKeepTeeth(t *testing.T) {
	t.Parallel()
	teeth := map[KeepRule]struct {
		bounds KeepBounds
		finds  Invariant
	}{
		OnlyIfAlone:     {KeepBounds{Pods: "AAB"}, Forgotten},
		Unrecalled:      {KeepBounds{Pods: "AAB"}, Forgotten},
		Outruns:         {KeepBounds{Pods: "AAB"}, Forgotten},
		WithinTheGrant:  {KeepBounds{Pods: "AAAB"}, Committed},
		UnderItsLease:   {KeepBounds{Pods: "AAB", Crashes: 1}, Committed},
		NotWhileGivenUp: {KeepBounds{Pods: "AAB", Faults: 1}, Committed},
		NamesItself:     {KeepBounds{Pods: "AAB"}, Orphan},
		OncePerToken:    {KeepBounds{Pods: "AAB"}, Orphan},
		ShownIsHeld:     {KeepBounds{Pods: "AAB"}, Orphan},
	}
	for rule := range keepRules {
		if rule == 0 {
			continue
		}
		t.Run(rule.String(), func(t *testing.T) {
			tooth := teeth[rule]
			tooth.bounds.Off = rule
			r := SearchKeepers(tooth.bounds, far)
			t.Logf("%s, after %d states, %v", r.Broken, r.States, r.Took.Round(time.Millisecond))
			if r.Broken != tooth.finds {
				t.Errorf("finds %q, want %q:\n%s", r.Broken, tooth.finds, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
