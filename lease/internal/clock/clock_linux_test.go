// Proves: promise 2

package clock

import (
	"testing"
	"time"
)

// TestGlances: the boot-time clock is looked at again as soon as a suspension is
// possible: the wall clock has jumped, or some time has passed.
func TestGlances(t *testing.T) {
	t.Parallel()
	const wall = 50 * 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		monotonic, wall time.Duration
		looks           bool
	}{
		"the same moment":                 {0, wall, false},
		"just now":                        {glanceLasts - 1, wall, false},
		"just now, by another's reading":  {1 - glanceLasts, wall, false},
		"the clocks drift":                {glanceLasts - 1, wall + glanceLasts - 1, false},
		"some time ago":                   {glanceLasts, wall, true},
		"long ago":                        {time.Hour, wall, true},
		"suspended for as long as counts": {1, wall + SuspensionLimit, true},
		"suspended for a little while":    {1, wall + glanceLasts, true},
		"suspended for long":              {1, wall + time.Hour, true},
		"the wall clock was set back":     {1, wall - time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var g glances
			at := time.Hour
			g.ahead(at, wall, func() time.Duration { return 1 })
			want := time.Duration(1)
			if c.looks {
				want = 2
			}
			if ahead := g.ahead(at+c.monotonic, c.wall, func() time.Duration { return 2 }); ahead != want {
				t.Errorf("ahead is %d, want %d", ahead, want)
			}
		})
	}
}

// TestGlanceIsReplaced: what was seen last counts from then on.
func TestGlanceIsReplaced(t *testing.T) {
	t.Parallel()
	var g glances
	g.ahead(0, 0, func() time.Duration { return 1 })
	g.ahead(1, time.Hour, func() time.Duration { return 2 }) // suspended
	never := func() time.Duration { t.Error("looked again"); return 3 }
	if ahead := g.ahead(2, time.Hour, never); ahead != 2 {
		t.Errorf("ahead is %d, want 2", ahead)
	}
	if ahead := g.ahead(3, 0, func() time.Duration { return 4 }); ahead != 4 {
		t.Errorf("ahead is %d, want 4: an old reading of the clocks is no reason to believe in an old glance", ahead)
	}
}

// TestSuspendedReadsTheClocks: on a machine that was not suspended meanwhile.
// Proves: promise 2
func TestSuspendedReadsTheClocks(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if s := (System{}).Suspended(time.Now()); s.Abs() > SuspensionLimit/2 {
			t.Fatalf("suspended for %s", s)
		}
	}
}
