package model

import (
	"os"
	"strings"
	"testing"
	"time"
)

// small is where each search begins: two sidecars.
var small = Bounds{Sidecars: 2, TTL: 2, Timeout: 1}

func with(change func(*Bounds)) Bounds {
	b := small
	change(&b)
	return b
}

// far is the number of states after which a search gives up: it takes a few hundred bytes for each.
const far = 40_000_000

// long: MODEL=long looks further, for minutes and with gigabytes.
var long = os.Getenv("MODEL") == "long"

// TestModel goes through all states within bounds: without a bound of the
// attempts where nothing goes wrong, else with few.
func TestModel(t *testing.T) {
	searches := map[string]Bounds{
		"nothing goes wrong": small,
		"a fault":            with(func(b *Bounds) { b.Faults, b.Attempts = 1, 2 }),
		"a crash":            with(func(b *Bounds) { b.Crashes, b.Attempts = 1, 2 }),
		"a failover":         with(func(b *Bounds) { b.Failovers, b.Attempts = 1, 1 }),
		"three sidecars":     with(func(b *Bounds) { b.Sidecars, b.Attempts = 3, 2 }),
	}
	if long {
		searches = map[string]Bounds{
			"a fault":                 with(func(b *Bounds) { b.Faults = 1 }),
			"a crash":                 with(func(b *Bounds) { b.Crashes = 1 }),
			"a failover":              with(func(b *Bounds) { b.Failovers, b.Attempts = 1, 2 }),
			"two faults":              with(func(b *Bounds) { b.Faults, b.Attempts = 2, 3 }),
			"a fault and a crash":     with(func(b *Bounds) { b.Faults, b.Crashes, b.Attempts = 1, 1, 3 }),
			"a fault and a failover":  with(func(b *Bounds) { b.Faults, b.Failovers, b.Attempts = 1, 1, 2 }),
			"three sidecars, a fault": with(func(b *Bounds) { b.Sidecars, b.Faults, b.Attempts = 3, 1, 3 }),
			"longer leases, a fault":  with(func(b *Bounds) { b.TTL, b.Faults, b.Attempts = 3, 1, 3 }),
		}
	}
	for name, b := range searches {
		t.Run(name, func(t *testing.T) {
			r := Search(b, far)
			t.Logf("%d states, %d steps, at most %d from the beginning, in %v", r.States, r.Steps, r.Depth, r.Took.Round(time.Millisecond))
			if r.Short {
				t.Errorf("there are more than %d states", far)
			}
			if r.Broken != Fine {
				t.Errorf("broken: %s\n%s", r.Broken, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
