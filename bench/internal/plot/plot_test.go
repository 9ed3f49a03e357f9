package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestAxes(t *testing.T) {
	flat := fitting([]float64{3, 47}, 100, 0)
	if flat.log || flat.at(0) != 100 || flat.up != 50 || flat.at(50) != 0 || len(flat.ticks) != 6 {
		t.Errorf("3 to 47: %+v", flat)
	}
	steep := fitting([]float64{2, 900}, 100, 0)
	if !steep.log || steep.at(1) != 100 || math.Abs(steep.at(1000)) > 1e-9 || len(steep.ticks) != 4 {
		t.Errorf("2 to 900: %+v", steep)
	}
	if zeros := fitting([]float64{0, 0}, 100, 0); zeros.log || math.IsNaN(zeros.at(0)) {
		t.Errorf("zeros: %+v", zeros)
	}
	if one := logarithmic([]float64{1000}, 0, 100); one.at(1000) != 0 || one.at(10000) != 100 {
		t.Errorf("a power of ten alone: %+v", one)
	}
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 20: "20", 1500: "1.5k", 10000000: "10M"} {
		if got := short(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestChartIsXMLWithAllThatItShows(t *testing.T) {
	text := Chart{Title: "a < b", X: "connections", Panels: []Panel{
		{Y: "rate (1/s)", Lines: []Line{{Name: "ours & theirs", Points: []Point{{1, 10}, {1000, 5000}}}}},
		{Y: "time (ms)", Lines: []Line{{Name: "median", Points: []Point{{1, 2}, {10, 3}}}, {Name: "p99", Points: []Point{{1, 0}}}}},
	}}.SVG()
	words := ""
	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if chars, ok := token.(xml.CharData); ok {
			words += string(chars) + "|"
		}
	}
	for _, want := range []string{"a < b", "connections", "rate (1/s) (logarithmic)", "ours & theirs", "time (ms)|", "median", "p99"} {
		if !strings.Contains(words, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Errorf("points that stand nowhere:\n%s", text)
	}
}
