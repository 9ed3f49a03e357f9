package e2e

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

var contendFor = flag.Duration("contend-for", time.Second, "how long TestCallersOfTwoSidecarsAreServedAlike contends")

// promisedWait is the longest wait of one of eight callers who hold the key for no time.
const promisedWait = 400 * time.Millisecond

// caller is one of several clients that want one key all the time.
type caller struct {
	grants  int
	longest time.Duration
	// passed is the greatest number of grants to others during one wait, from the call on.
	passed int64
}

// contend lets callers of sidecars want a key again and again, and hold it for no time. body is what the nth caller asks for.
func contend(t *testing.T, d time.Duration, each int, body func(i int) string, sidecars ...*sidecar) []*caller {
	t.Helper()
	var grants atomic.Int64
	var wg sync.WaitGroup
	all := make([]*caller, each*len(sidecars))
	until := time.Now().Add(d)
	for i := range all {
		c, err := wire.Dial(sidecars[i%len(sidecars)].socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		all[i] = &caller{}
		wg.Go(func() {
			for time.Now().Before(until) {
				before, began := grants.Load(), time.Now()
				a, err := c.Call(patience, "PUT", lockPath("fair"), body(i))
				if err != nil || a.Status != 200 {
					t.Errorf("caller %d: %v, %d %s", i, err, a.Status, a.Body)
					return
				}
				all[i].longest = max(all[i].longest, time.Since(began))
				all[i].passed = max(all[i].passed, grants.Add(1)-1-before)
				all[i].grants++
				if a, err = c.Call(patience, "DELETE", fmt.Sprintf("%s?token=%d", lockPath("fair"), a.Token), ""); err != nil || a.Status != 200 {
					t.Errorf("caller %d: %v, %d %s", i, err, a.Status, a.Body)
					return
				}
			}
		})
	}
	wg.Wait()
	return all
}

// TestCallersOfTwoSidecarsAreServedAlike: callers who want one key all the time are served alike, whichever sidecar they ask.
// Proves: promise 5
func TestCallersOfTwoSidecarsAreServedAlike(t *testing.T) {
	modes := []struct {
		name string
		body func(i int) string
	}{
		{"exclusive", func(int) string { return `{"wait_ms":-1}` }},
		{"permits", func(int) string { return place }},
		{"shared and exclusive", func(i int) string {
			if i%4 < 2 {
				return `{"wait_ms":-1}`
			}
			return `{"mode":"shared","wait_ms":-1}`
		}},
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			sharing(t, nil, func(t *testing.T, _ options, one, two *sidecar) {
				all := contend(t, *contendFor, 4, m.body, one, two)
				least, most, longest, passed, sum := all[0].grants, 0, time.Duration(0), int64(0), 0
				for _, c := range all {
					least, most, longest, passed, sum = min(least, c.grants), max(most, c.grants), max(longest, c.longest), max(passed, c.passed), sum+c.grants
				}
				t.Logf("%d to %d grants a caller, %d/s, longest wait %s, at most %d grants of others during one", least, most,
					int(float64(sum)/contendFor.Seconds()), longest.Round(time.Millisecond), passed)
				// In turns it is one grant of each of the others. Who starves waits for a large part of all grants.
				const few = 10 // of a slow machine
				if 2*least+few < most || passed > int64(sum/5) {
					t.Errorf("callers were not served alike: %d to %d grants, and %d of %d grants went to others during one wait", least, most, passed, sum)
				}
				if *plain && longest > promisedWait {
					t.Errorf("a caller waited %s, want at most %s", longest, promisedWait)
				}
			})
		})
	}
}
