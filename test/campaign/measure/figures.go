// Package measure is what the longer tests of the campaign count and time.
package measure

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// Figures are those of GET /metrics, by the name and the labels of each.
type Figures map[string]float64

// FiguresOf asks a sidecar for its figures.
func FiguresOf(c *wire.Conn) (Figures, error) {
	a, err := c.Call(callLimit, "GET", "/metrics", "")
	if err != nil {
		return nil, fmt.Errorf("no figures: %w", err)
	}
	if a.Status != 200 {
		return nil, fmt.Errorf("no figures: %d %s", a.Status, a.Code)
	}
	f := make(Figures)
	for line := range strings.Lines(string(a.Body)) {
		name, value, ok := cutLast(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if f[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("the figure %q: %w", line, err)
		}
	}
	return f, nil
}

// Sum adds up the figures of that name whose labels have the text.
func (f Figures) Sum(name, label string) (sum float64) {
	for full, value := range f {
		if before, labels, _ := strings.Cut(full, "{"); before == name && strings.Contains(labels, label) {
			sum += value
		}
	}
	return sum
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
