package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/plot"
)

// curve is how cost grows with one thing, x: a table and a picture.
type curve struct {
	name, title, x string
	// about says how it is measured.
	about   string
	columns []column
	rows    []step
}

// column is a figure of each step.
type column struct {
	name string
	// panel is the axis that it shares with others, with the unit; empty: it is not
	// drawn.
	panel  string
	format string
}

// step is one x and its figures, in the order of the columns.
type step struct {
	x       float64
	figures []float64
}

var curves = []struct {
	name    string
	measure func(*bench) (*curve, error)
}{
	{"connections", (*bench).growConnections},
	{"locks", (*bench).growLocks},
	{"sidecars", (*bench).growSidecars},
	{"listeners", (*bench).growListeners},
	{"rows", (*bench).growRows},
	{"hot", (*bench).growHot},
}

// growth measures the curves that are chosen, and writes them and their pictures.
func (b *bench) growth() error {
	var text strings.Builder
	for _, c := range curves {
		if !b.chosen(c.name) {
			continue
		}
		began := time.Now()
		grown, err := c.measure(b)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		b.log.Printf("growth over %s took %.0f s", c.name, time.Since(began).Seconds())
		text.WriteString(grown.text())
		if !b.write {
			continue
		}
		if err := os.WriteFile("bench/growth-"+grown.name+".svg", []byte(grown.chart().SVG()), 0o644); err != nil {
			return err
		}
	}
	fmt.Println(text.String())
	if !b.write {
		return nil
	}
	page, logged := "GROWTH.md", "growth.log"
	if b.only != "" {
		page, logged = "growth-"+b.only+".md", "growth-"+b.only+".log"
	}
	head := fmt.Sprintf("# How cost grows\n\nMeasured %s by `go run ./bench %s`; what was printed meanwhile is in [%s](%s).\n"+
		"How each is measured: [README.md](README.md#how-cost-grows).\n\nMachine: %s\n",
		time.Now().UTC().Format("2006-01-02"), strings.Join(os.Args[1:], " "), logged, logged, b.machine)
	return errors.Join(
		os.WriteFile("bench/"+page, []byte(head+text.String()), 0o644),
		os.WriteFile("bench/"+logged, []byte(b.logged.String()), 0o644))
}

// upTo leaves out the steps that -upto excludes.
func (b *bench) upTo(steps ...int) (some []int) {
	for _, n := range steps {
		if b.most == 0 || n <= b.most {
			some = append(some, n)
		}
	}
	return some
}

func (c *curve) note(b *bench, x int, figures ...float64) {
	s := step{x: float64(x), figures: figures}
	c.rows = append(c.rows, s)
	var line strings.Builder
	for i, col := range c.columns {
		fmt.Fprintf(&line, ", %s "+col.format, col.name, s.figures[i])
	}
	b.log.Printf("growth: %d %s%s", x, c.x, line.String())
}

// text is the table, below the picture.
func (c *curve) text() string {
	var t, rule strings.Builder
	fmt.Fprintf(&t, "\n## %s\n\n%s\n\n![%s](growth-%s.svg)\n\n| %s |", c.title, c.about, c.title, c.name, c.x)
	rule.WriteString("|--:|")
	for _, col := range c.columns {
		fmt.Fprintf(&t, " %s |", col.name)
		rule.WriteString("--:|")
	}
	t.WriteString("\n" + rule.String() + "\n")
	for _, r := range c.rows {
		fmt.Fprintf(&t, "| %.0f |", r.x)
		for i, col := range c.columns {
			fmt.Fprintf(&t, " "+col.format+" |", r.figures[i])
		}
		t.WriteString("\n")
	}
	return t.String()
}

// chart draws the columns, those of one panel in one diagram.
func (c *curve) chart() plot.Chart {
	chart := plot.Chart{Title: c.title, X: c.x + " (logarithmic)"}
	index := make(map[string]int)
	for i, col := range c.columns {
		if col.panel == "" {
			continue
		}
		at, ok := index[col.panel]
		if !ok {
			at = len(chart.Panels)
			index[col.panel] = at
			chart.Panels = append(chart.Panels, plot.Panel{Y: col.panel})
		}
		line := plot.Line{Name: col.name}
		for _, r := range c.rows {
			line.Points = append(line.Points, plot.Point{X: r.x, Y: r.figures[i]})
		}
		chart.Panels[at].Lines = append(chart.Panels[at].Lines, line)
	}
	return chart
}
