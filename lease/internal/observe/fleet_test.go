package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
)

func TestFleetOf(t *testing.T) {
	var types []store.Stat
	for i := range 25 {
		types = append(types, store.Stat{Namespace: "n", Name: fmt.Sprint("t", i), Held: int64(100 - i), Average: time.Second, Longest: time.Duration(i) * time.Minute})
	}
	types = append(types,
		store.Stat{Namespace: "n", Name: "", Held: 1000, Expired: 2, Waiting: 3, Average: 500 * time.Millisecond, Longest: time.Hour},
		store.Stat{Namespace: "n", Name: strings.Repeat("x", fleetType+1), Held: 5000, Longest: 2 * time.Hour},
		store.Stat{Namespace: "n", Name: "empty", Waiting: 1},
		store.Stat{Name: store.Others, Held: 1, Average: 7 * time.Second})
	got := FleetOf(store.Stats{Types: types, Pods: []store.Stat{{Namespace: "n", Name: "p", Held: 2, Average: time.Second / 2}}})

	if len(got.Types) != fleetLines+1 {
		t.Fatalf("%d lines", len(got.Types))
	}
	want := metrics.FleetLine{Namespace: "n", Name: "_none", Held: 1000, Expired: 2, Waiting: 3, AverageHold: 500 * time.Millisecond, LongestHold: time.Hour}
	if got.Types[0] != want {
		t.Errorf("first: %+v", got.Types[0])
	}
	if last := got.Types[fleetLines-1]; last.Name != "t18" || last.AverageHold != time.Second {
		t.Errorf("last with a name: %+v", last)
	}
	// t19 to t24, the long one, the empty one, and what the store had summed up.
	sumHeld := int64(81+80+79+78+77+76) + 5000 + 1
	want = metrics.FleetLine{
		Name: store.Others, Held: sumHeld, Waiting: 1,
		AverageHold: time.Duration(81+80+79+78+77+76+7) * time.Second / time.Duration(sumHeld), LongestHold: 2 * time.Hour,
	}
	others := got.Types[fleetLines]
	if off := (others.AverageHold - want.AverageHold).Abs(); off > time.Microsecond { // of adding up
		t.Errorf("others are held for %s on average, want %s", others.AverageHold, want.AverageHold)
	}
	if want.AverageHold = others.AverageHold; others != want {
		t.Errorf("others: %+v, want %+v", others, want)
	}
	if pods := got.Pods; len(pods) != 1 || pods[0] != (metrics.FleetLine{Namespace: "n", Name: "p", Held: 2, AverageHold: 500 * time.Millisecond}) {
		t.Errorf("pods: %+v", pods)
	}
}

// TestFleetNamesOnce: a type that is named like one that is made up is the same line:
// two metrics with the same labels are refused by who reads them.
func TestFleetNamesOnce(t *testing.T) {
	got := FleetOf(store.Stats{Types: []store.Stat{
		{Namespace: "n", Name: "", Held: 1}, {Namespace: "n", Name: "_none", Held: 2}, {Namespace: "m", Name: "_none", Held: 9},
	}})
	if len(got.Types) != 2 || got.Types[1] != (metrics.FleetLine{Namespace: "n", Name: "_none", Held: 3}) {
		t.Errorf("%+v", got.Types)
	}
}
