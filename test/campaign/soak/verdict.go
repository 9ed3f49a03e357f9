package soak

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// sample is the figures of one moment.
type sample struct {
	at      time.Duration // since the beginning
	figures map[string]float64
}

// rule is what is asked of a figure.
type rule struct {
	figure, unit string
	// per is what a unit is, 0: one.
	per float64
	// slack is by how much it may rise in the half that is judged, in units. A negative
	// one: it is only shown.
	slack float64
}

// shown is the slack of a figure that is not judged.
const shown = -1

// judged is a figure of a run.
type judged struct {
	rule
	first, last, growth float64
	failed              bool
}

// judge judges the second half of the samples.
func judge(samples []sample, rules []rule) (all []judged, err error) {
	half := samples[len(samples)/2:]
	if len(half) < 3 {
		return nil, fmt.Errorf("soak: %d samples are too few to judge", len(samples))
	}
	for _, r := range rules {
		if r.per == 0 {
			r.per = 1
		}
		j := judged{rule: r, growth: growth(half, r.figure) / r.per}
		j.first, j.last = half[0].figures[r.figure]/r.per, half[len(half)-1].figures[r.figure]/r.per
		j.failed = r.slack != shown && j.growth > r.slack
		all = append(all, j)
	}
	return all, nil
}

// growth is by how much the straight line that fits the samples best rises from the first
// to the last.
func growth(samples []sample, figure string) float64 {
	var at, value float64
	for _, s := range samples {
		at += s.at.Seconds() / float64(len(samples))
		value += s.figures[figure] / float64(len(samples))
	}
	var along, square float64
	for _, s := range samples {
		d := s.at.Seconds() - at
		along += d * (s.figures[figure] - value)
		square += d * d
	}
	return along / square * (samples[len(samples)-1].at - samples[0].at).Seconds()
}

// columns are the figures of a table of samples, with units of which a number says enough.
var columns = []struct {
	figure, title string
	per           float64
}{
	{memory, "sidecars' MiB", 1 << 20},
	{descriptors, "descriptors", 1},
	{goroutines, "goroutines", 1},
	{backendBytes, "MiB of a backend", 1 << 20},
	{tableBytes, "tables KiB", 1 << 10},
	{indexBytes, "indexes KiB", 1 << 10},
	{liveRows, "rows", 1},
	{deadRows, "dead rows", 1},
	{pair, "ms a pair", 1e6},
	{granted, "grants", 1},
}

// lines is how many samples a table shows.
const lines = 13

// writeSamples writes a table of samples, the same time apart.
func writeSamples(w io.Writer, samples []sample) {
	fmt.Fprint(w, "| at |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Repeat("|---", len(columns)+1)+"|")
	n := min(lines, len(samples))
	for i := range n {
		s := samples[i*(len(samples)-1)/max(1, n-1)]
		fmt.Fprintf(w, "| %s |", s.at.Round(time.Second))
		for _, c := range columns {
			fmt.Fprintf(w, " %s |", number(s.figures[c.figure]/c.per))
		}
		fmt.Fprintln(w)
	}
}

// write writes a table of them.
func write(w io.Writer, all []judged) {
	fmt.Fprintf(w, "| figure | at half time | at the end | line through it | may rise by | |\n|---|---|---|---|---|---|\n")
	for _, j := range all {
		verdict, slack := "steady", number(j.slack)
		switch {
		case j.slack == shown:
			verdict, slack = "", "–"
		case j.failed:
			verdict = "**grows**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", strings.TrimSpace(j.figure+" "+j.unit),
			number(j.first), number(j.last), fmt.Sprintf("%+.2f", j.growth), slack, verdict)
	}
}

func number(f float64) string {
	if f == float64(int64(f)) {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.2f", f)
}
