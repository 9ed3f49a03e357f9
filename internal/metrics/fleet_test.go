package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/store"
)

// The types are named by apps. Two metrics with the same labels are refused by who reads them.
func TestTheFleetHasFewNames(t *testing.T) {
	s := everything()
	types := []store.Stat{
		{Namespace: "n", Name: "", Held: 1},
		{Namespace: "n", Name: none, Held: 2},
		{Namespace: "n", Name: strings.Repeat("x", maxTypeBytes+1), Held: 5000},
		{Namespace: "m", Name: strings.Repeat("y", maxTypeBytes+1), Held: 1},
		{Name: store.Others, Held: 1},
	}
	for i := range fleetLines {
		types = append(types, store.Stat{Namespace: "n", Name: fmt.Sprint("t", i), Held: int64(100 + i)})
	}
	s.Locks.ObserveFleet(func() (store.Stats, bool) { return store.Stats{Types: types[:5]}, true })
	if got := locksByType(t, s); len(got) != 2 || got["n _none"] != 3 || got[" _others"] != 5002 {
		t.Errorf("%v", got)
	}
	s.Locks.ObserveFleet(func() (store.Stats, bool) { return store.Stats{Types: types}, true })
	if got := locksByType(t, s); len(got) != fleetLines+1 || got["n t0"] != 100 || got[" _others"] != 5005 {
		t.Errorf("%v", got)
	}
}

func locksByType(t *testing.T, s *Set) map[string]float64 {
	locks := map[string]float64{}
	for _, m := range exposed(t, s)["locksidecar_fleet_locks"].GetMetric() {
		locks[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
	}
	return locks
}
