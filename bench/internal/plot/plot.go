// Package plot draws curves as SVG: panels, each with an axis of its own, over the
// same x.
package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Chart is one picture.
type Chart struct {
	Title string
	// X is what stands below each panel; its scale is logarithmic, and has no 0.
	X      string
	Panels []Panel
}

// Panel is a diagram.
type Panel struct {
	// Y says what its axis measures, with the unit.
	Y     string
	Lines []Line
}

// Line is one curve. Its points stand in the order of their X.
type Line struct {
	Name   string
	Points []Point
}

// Point is one of a line.
type Point struct{ X, Y float64 }

const (
	width, height = 380.0, 300.0 // of a panel
	left, right   = 64.0, 16.0   // of it around the diagram
	top, bottom   = 76.0, 46.0
	title         = 34.0 // above all panels
	perRow        = 2    // more would be too small to read on a page
	// wide is the ratio of the largest to the smallest from which on an axis is
	// logarithmic.
	wide = 30
)

// colours are told apart also by those who see red and green alike.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"}

// SVG is the text of the picture.
func (c Chart) SVG() string {
	var s strings.Builder
	rows := (len(c.Panels) + perRow - 1) / perRow
	w, h := width*float64(min(len(c.Panels), perRow)), title+height*float64(rows)
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12" fill="#222">`+"\n",
		w, h, w, h)
	fmt.Fprintf(&s, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	fmt.Fprintf(&s, `<text x="%.0f" y="24" font-size="16" text-anchor="middle">%s</text>`+"\n", w/2, html.EscapeString(c.Title))
	for i, p := range c.Panels {
		fmt.Fprintf(&s, `<g transform="translate(%.0f %.0f)">`+"\n", float64(i%perRow)*width, title+float64(i/perRow)*height)
		p.draw(&s, c.X)
		s.WriteString("</g>\n")
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func (p Panel) draw(s *strings.Builder, xLabel string) {
	var xs, ys []float64
	for _, l := range p.Lines {
		for _, point := range l.Points {
			xs, ys = append(xs, point.X), append(ys, point.Y)
		}
	}
	x := logarithmic(xs, left, width-right)
	y := fitting(ys, height-bottom, top)
	for _, v := range y.ticks {
		at := y.at(v)
		fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`, left, at, width-right, at)
		fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", left-6, at+4, short(v))
	}
	for _, v := range x.ticks {
		at := x.at(v)
		fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#eee"/>`, at, top, at, height-bottom)
		fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", at, height-bottom+18, short(v))
	}
	fmt.Fprintf(s, `<path d="M%.1f %.1fV%.1fH%.1f" fill="none" stroke="#222"/>`+"\n", left, top, height-bottom, width-right)
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-8, html.EscapeString(xLabel))
	fmt.Fprintf(s, `<text x="8" y="14" font-weight="bold">%s</text>`+"\n", html.EscapeString(p.Y+y.note()))
	for i, l := range p.Lines {
		l.draw(s, i, x, y)
	}
}

// draw draws a line and its name in the legend, two to a row.
func (l Line) draw(s *strings.Builder, i int, x, y axis) {
	colour := colours[i%len(colours)]
	var points strings.Builder
	for _, p := range l.Points {
		fmt.Fprintf(&points, "%.1f,%.1f ", x.at(p.X), y.at(p.Y))
		fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x.at(p.X), y.at(p.Y), colour)
	}
	fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(points.String()), colour)
	lx, ly := 8+float64(i%2)*(width-16)/2, 32+float64(i/2)*18
	fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`+"\n", lx+4, ly, colour, lx+13, ly+4, html.EscapeString(l.Name))
}

// axis says where values stand.
type axis struct {
	log      bool
	low, up  float64 // values, or their logarithms
	from, to float64 // where these stand
	ticks    []float64
}

func (a axis) at(v float64) float64 {
	if a.log {
		v = math.Log10(v)
	}
	return a.from + (v-a.low)/(a.up-a.low)*(a.to-a.from)
}

func (a axis) note() string {
	if a.log {
		return " (logarithmic)"
	}
	return ""
}

// fitting is logarithmic where that makes sense, else it begins at 0.
func fitting(values []float64, from, to float64) axis {
	low, up := bounds(values)
	if low > 0 && up/low >= wide {
		return logarithmic(values, from, to)
	}
	step := roundStep(max(up, 1e-9) / 5)
	a := axis{from: from, to: to}
	for i := 0; i == 0 || a.up < up; i++ {
		a.up = float64(i+1) * step
		a.ticks = append(a.ticks, float64(i)*step)
	}
	a.ticks = append(a.ticks, a.up)
	return a
}

// logarithmic reaches from a power of ten to another.
func logarithmic(values []float64, from, to float64) axis {
	low, up := bounds(values)
	const tiny = 1e-9 // of a logarithm: what is a power of ten stays one
	a := axis{log: true, low: math.Floor(math.Log10(low) + tiny), from: from, to: to}
	a.up = max(math.Ceil(math.Log10(up)-tiny), a.low+1)
	for e := a.low; e <= a.up; e++ {
		a.ticks = append(a.ticks, math.Pow(10, e))
	}
	return a
}

func bounds(values []float64) (low, up float64) {
	low, up = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, up = min(low, v), max(up, v)
	}
	return low, up
}

// roundStep is 1, 2 or 5 times a power of ten, and at least as much.
func roundStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least {
			return m * power
		}
	}
	return 10 * power
}

// short writes a number of an axis.
func short(v float64) string {
	for _, unit := range []struct {
		size float64
		sign string
	}{{1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			return strconv.FormatFloat(v/unit.size, 'g', 4, 64) + unit.sign
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
