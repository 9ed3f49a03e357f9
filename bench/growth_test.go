package main

import (
	"strings"
	"testing"
)

func TestCurveShowsEachColumnOnItsAxis(t *testing.T) {
	c := curve{
		name: "locks", title: "Cost over locks", x: "locks", about: "About it.",
		columns: []column{{"median (ms)", "time (ms)", "%.1f"}, {"p99 (ms)", "time (ms)", "%.1f"}, {"size", "", "%.0f"}, {"rate (1/s)", "rate (1/s)", "%.0f"}},
		rows:    []step{{1, []float64{2, 3, 4, 5}}, {10, []float64{6, 7, 8, 9}}},
	}
	for _, want := range []string{
		"\n## Cost over locks\n\nAbout it.\n\n![Cost over locks](growth-locks.svg)\n",
		"| locks | median (ms) | p99 (ms) | size | rate (1/s) |\n|--:|--:|--:|--:|--:|\n| 1 | 2.0 | 3.0 | 4 | 5 |\n| 10 | 6.0 | 7.0 | 8 | 9 |\n",
	} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("its text has no\n%s\nbut is\n%s", want, c.text())
		}
	}
	panels := c.chart().Panels
	if len(panels) != 2 || panels[0].Y != "time (ms)" || len(panels[0].Lines) != 2 || panels[1].Lines[0].Name != "rate (1/s)" {
		t.Fatalf("its panels: %+v", panels)
	}
	if p := panels[0].Lines[1].Points; len(p) != 2 || p[1].X != 10 || p[1].Y != 7 {
		t.Errorf("the points of p99: %v", p)
	}
}
