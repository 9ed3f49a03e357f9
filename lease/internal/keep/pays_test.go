package keep

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
)

// TestKeepingPaysForAllKeysTogether: if most recalls came after few takes, keys of which nothing is known are hardly kept any more,
// until takes show that keeping pays again.
func TestKeepingPaysForAllKeysTogether(t *testing.T) {
	const asks = 20 * worthTries
	table := New(time.Hour, time.Hour, clock.System{})
	kept := func() (n int) {
		t.Helper()
		for i := range asks {
			key := fmt.Sprint("new", i)
			table.Released(key, 1)
			if table.Last(key, table.clk.Now()) == 1 {
				n++
			}
		}
		return n
	}
	recalls := func(n int) {
		for i := range n {
			table.Judge(&Grant{Key: fmt.Sprint("recalled", i)})
		}
	}
	recalls(worthRecalls/4 - 1)
	if n := kept(); n != asks {
		t.Errorf("after few recalls %d of %d keys may be kept", n, asks)
	}
	recalls(1)
	if n := kept(); n != asks/worthTries {
		t.Errorf("after recalls that did not pay %d of %d keys may be kept, want %d", n, asks, asks/worthTries)
	}
	lease, now := &heartbeat.Lease{}, table.clk.Now()
	g := NewGrant("taken", lease, 1, now, now, now)
	for range worthTakes * worthRecalls / 4 {
		g.last = g.Visible // as if it was another grant
		if !table.Keep(g, now) {
			t.Fatal("the key is not kept")
		}
		if how, _, _ := table.Take("taken", lease, now); how != Got {
			t.Fatalf("the kept key is not taken: %v", how)
		}
	}
	if n := kept(); n != asks {
		t.Errorf("after many takes %d of %d keys may be kept", n, asks)
	}
	// What is long ago does not count for ever.
	recalls(100 * worthRecalls)
	if n := kept(); n != asks/worthTries {
		t.Errorf("after many recalls %d of %d keys may be kept, want %d", n, asks, asks/worthTries)
	}
	table.worth.takes.Add(worthTakes * worthRecalls)
	if n := kept(); n != asks {
		t.Errorf("after new takes %d of %d keys may be kept", n, asks)
	}
}
