package soak

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// series makes samples, each 5 seconds apart.
func series(n int, figure func(i int) float64) (samples []sample) {
	for i := range n {
		samples = append(samples, sample{at: time.Duration(i) * 5 * time.Second, figures: map[string]float64{"f": figure(i)}})
	}
	return samples
}

// TestJudge: what rises in the second half fails by more than its slack, whatever it did
// in the first; noise does not, however large it is.
func TestJudge(t *testing.T) {
	saw := func(i int) float64 { return float64(i % 4 * 10) }
	for name, c := range map[string]struct {
		figure func(i int) float64
		failed bool
	}{
		"steady":                  {func(int) float64 { return 7 }, false},
		"a saw":                   {saw, false},
		"rises, then steady":      {func(i int) float64 { return float64(min(i, 60)) }, false},
		"falls":                   {func(i int) float64 { return -float64(i) }, false},
		"rises by just the slack": {func(i int) float64 { return float64(i) * 20 / 59.001 }, false},
		"rises by more":           {func(i int) float64 { return float64(i) * 21 / 59 }, true},
		"rises under a saw":       {func(i int) float64 { return saw(i) + float64(i) }, true},
		"rises late":              {func(i int) float64 { return max(0, float64(i-90)) }, true},
	} {
		all, err := judge(series(120, c.figure), []rule{{figure: "f", slack: 20}})
		if err != nil || all[0].failed != c.failed {
			t.Errorf("%s: %+v %v", name, all, err)
		}
	}
	if _, err := judge(series(4, saw), []rule{{figure: "f", slack: 20}}); err == nil {
		t.Error("four samples are judged")
	}
	if all, _ := judge(series(120, func(i int) float64 { return float64(i) }), []rule{{figure: "f", slack: shown}}); all[0].failed {
		t.Error("a figure that is only shown fails")
	}
}

// TestWriteSamples: the first and the last stand in the table, and some between.
func TestWriteSamples(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 13: 13, 361: 13} {
		var b strings.Builder
		writeSamples(&b, series(n, func(i int) float64 { return float64(i) }))
		table := strings.Split(strings.TrimSpace(b.String()), "\n")[2:]
		last := fmt.Sprintf("| %s |", time.Duration(n-1)*5*time.Second)
		if len(table) != want || !strings.HasPrefix(table[0], "| 0s |") || !strings.HasPrefix(table[want-1], last) {
			t.Errorf("of %d samples:\n%s", n, b.String())
		}
	}
}

// TestGrowth: a line's own rise, in the figure's unit.
func TestGrowth(t *testing.T) {
	line := series(100, func(i int) float64 { return 1000 + 3*float64(i) })
	if g := growth(line, "f"); math.Abs(g-3*99) > 1e-6 {
		t.Errorf("%f", g)
	}
	all, _ := judge(line, []rule{{figure: "f", unit: "KiB", per: 1024, slack: 0}})
	var b strings.Builder
	write(&b, all)
	if want := "| f KiB | 1.12 | 1.27 | +0.14 | 0 | **grows** |"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}
