package sidecar

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// When memory is low, the pods that take the most get nothing more, and the others do, until it is full.
// Proves: threat flood, threat other pod
func TestMemoryIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		low, full := false, false
		m := newShares(func() bool { return low }, func() bool { return full })
		weights := map[hostfolder.Key]int64{"greedy": 1000, "as greedy": 1000, "busy": 100, "quiet": 10, "idle": 0}
		for k := range weights {
			m.add(k, func() int64 { return weights[k] })
		}
		check := func(when string, want ...hostfolder.Key) {
			t.Helper()
			time.Sleep(weighPause)
			refused := map[hostfolder.Key]bool{}
			for _, k := range want {
				refused[k] = true
			}
			for k := range weights {
				if m.refuses(k) != refused[k] {
					t.Errorf("%s: %q is refused: %t", when, k, !refused[k])
				}
			}
		}
		check("with memory")
		low = true
		check("low", "greedy", "as greedy")
		full = true
		check("full", "greedy", "as greedy", "busy", "quiet", "idle")
		full = false
		weights["greedy"], weights["as greedy"] = 0, 20
		check("after the greedy ones have let go", "busy")
		for _, k := range []hostfolder.Key{"greedy", "as greedy", "busy", "idle"} {
			m.forget(k)
			delete(weights, k)
		}
		check("alone", "quiet")
		if m.add("new", func() int64 { return 0 }); m.refuses("new") {
			t.Error("a new pod is refused")
		}
	})
}
