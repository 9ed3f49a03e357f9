package main

import "testing"

// TestChosen: -only names a part, or all parts of P12.
func TestChosen(t *testing.T) {
	for only, want := range map[string]string{"": "P1 P2 P2f P12a P12f ", "P1": "P1 ", "P2": "P2 ", "P12": "P12a P12f ", "P12f,P2f": "P2f P12f "} {
		got := ""
		for _, id := range []string{"P1", "P2", "P2f", "P12a", "P12f"} {
			if (&bench{options: options{only: only}}).chosen(id) {
				got += id + " "
			}
		}
		if got != want {
			t.Errorf("%q chooses %q, want %q", only, got, want)
		}
	}
}
