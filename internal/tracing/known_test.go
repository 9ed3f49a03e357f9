package tracing

import (
	"strings"
	"testing"
)

func TestKnown(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for value, want := range map[string]bool{
		good: true, strings.ToUpper(good): false, good + "-x": false, "01" + good[2:] + "-x": true, "01" + good[2:] + "x": false,
		"ff" + good[2:]: false, good[:54]: false, "": false, strings.Replace(good, "4bf92f3577b34da6a3ce929d0e0e4736", strings.Repeat("0", 32), 1): false,
		strings.Replace(good, "00f067aa0ba902b7", strings.Repeat("0", 16), 1): false, strings.Replace(good, "-", "_", 1): false,
		strings.Replace(good, "4b", "4g", 1): false,
	} {
		if got := Known(value) != ""; got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}
