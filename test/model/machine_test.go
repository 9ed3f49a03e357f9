package model

import (
	"strings"
	"testing"
	"time"
)

// TestMachine goes through all states of a row of the key machine, with a few calls of two sidecars. Its rules cannot be turned off
// here: test/mutants breaks them in the machine itself.
func TestMachine(t *testing.T) {
	t.Parallel()
	searches := map[string]SharedBounds{
		"exclusive calls":           {Pods: "AAB", Modes: "xxx", Faults: 1, Leaves: 1, Crashes: 1},
		"a semaphore":               {Pods: "AABB", Modes: "ssss", Limit: 2, Leaves: 1},
		"a semaphore and a crash":   {Pods: "AAB", Modes: "sss", Limit: 1, Crashes: 1, Faults: 1},
		"readers and a writer":      {Pods: "AABB", Modes: "sxss", Leaves: 1, Crashes: 1},
		"two limits":                {Pods: "AAB", Modes: "sso", Limit: 2, Crashes: 1, Leaves: 1},
		"two limits that wait":      {Pods: "AAB", Modes: "xso", Limit: 2, Leaves: 1},
		"a downgrade":               {Pods: "AAB", Modes: "dsx", Faults: 1, Leaves: 1, Crashes: 1},
		"a lock with a lease":       {Pods: "AAB", Modes: "txs", Faults: 1, Leaves: 1, Crashes: 1},
		"a hold":                    {Pods: "AAB", Modes: "hxs", Faults: 1, Leaves: 1, Crashes: 1},
		"a hold and a lock's lease": {Pods: "AB", Modes: "ht", Faults: 1, Crashes: 2},
	}
	if long {
		searches = map[string]SharedBounds{
			"everything": {Pods: "AABB", Modes: "sxtd", Limit: 2, Faults: 1, Leaves: 1, Crashes: 1},
			"holds":      {Pods: "AABB", Modes: "hsht", Faults: 1, Leaves: 1, Crashes: 1},
			"five":       {Pods: "AABBB", Modes: "sxsss", Limit: 2, Leaves: 1, Crashes: 1},
		}
	}
	for name, b := range searches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := SearchMachine(b, far)
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
