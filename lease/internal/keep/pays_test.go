package keep

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
)

// payer uses keys of a table. Each statement is shared by that many calls.
type payer struct {
	*testing.T
	table    *Table
	together float64
	lease    *heartbeat.Lease
	last     *Grant
}

func newPayer(t *testing.T) *payer {
	p := &payer{T: t, together: 1, lease: &heartbeat.Lease{}}
	p.table = New(time.Hour, MaxEntries, time.Hour, func() float64 { return p.together }, clocktest.Bubble{})
	return p
}

// takes has a key kept and taken n times, under grants of 100 takes.
func (p *payer) takes(key string, n int) {
	p.Helper()
	for i := range n {
		now := p.table.clk.Now()
		if i%100 == 0 {
			p.last = NewGrant(key, p.lease, 1, now, now, now)
		}
		if !p.table.Keep(p.last, now) {
			p.Fatal("the key is not kept")
		}
		if how, _, _ := p.table.Take(key, p.lease, now); how != Got {
			p.Fatalf("the kept key is not taken: %v", how)
		}
	}
}

// recalls has a new grant of the key recalled, and returns whether keeping the key has paid.
func (p *payer) recalls(key string) bool { return p.table.Judge(&Grant{Key: key}) }

// mayBeKept releases a key and reports whether its next grant may be kept.
func (p *payer) mayBeKept(key string) bool {
	p.table.Released(key, 1)
	return p.table.Last(key, p.table.clk.Now()) == 1
}

// newKeys is how many of 100 keys that were not used before may be kept.
func (p *payer) newKeys() (n int) {
	for i := range 100 {
		if key := fmt.Sprint("new", i); p.mayBeKept(key) {
			n++
		}
	}
	return n
}

// TestThePriceOfARecall: keeping a key has paid if it was taken often enough since its last recall, under whatever grants. How often
// that is depends on how many calls share a statement.
func TestThePriceOfARecall(t *testing.T) {
	for _, c := range []struct {
		together float64
		price    int
	}{{1, 3}, {2, 5}, {2.1, 6}, {10, 25}, {100, 250}} {
		p := newPayer(t)
		p.together = c.together
		p.takes("k", c.price-1)
		if p.recalls("k") {
			t.Errorf("%v calls share a statement: %d takes have paid", c.together, c.price-1)
		}
		p.takes("k", c.price)
		if !p.recalls("k") {
			t.Errorf("%v calls share a statement: %d takes have not paid", c.together, c.price)
		}
		if p.recalls("k") {
			t.Errorf("%v calls share a statement: takes of before a recall count for the next one", c.together)
		}
	}
}

// TestNewKeysMustPayTogether: if most recalls of new keys came after few takes, one new key a second is kept, until takes show that
// keeping pays again.
func TestNewKeysMustPayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPayer(t)
		for i := range worthFrom - 1 {
			p.recalls(fmt.Sprint("recalled", i))
		}
		if n := p.newKeys(); n != 100 {
			t.Errorf("after few recalls %d of 100 keys may be kept", n)
		}
		p.recalls("another")
		for range 3 {
			if n := p.newKeys(); n != 0 {
				t.Errorf("after recalls that did not pay %d of 100 keys may be kept at once", n)
			}
			time.Sleep(worthTries)
			if n := p.newKeys(); n != 1 {
				t.Errorf("after recalls that did not pay %d of 100 keys may be kept a second later", n)
			}
		}
		for i := range worthFrom {
			p.takes(fmt.Sprint("taken", i), leastPrice)
		}
		if n := p.newKeys(); n != 100 {
			t.Errorf("after many takes %d of 100 keys may be kept", n)
		}
		// Old recalls are forgotten: as many takes as the price of a few recalls turn the judgment.
		for i := range 100 * worthRecalls {
			p.recalls(fmt.Sprint("recalled", i))
		}
		if n := p.newKeys(); n != 0 {
			t.Errorf("after many recalls %d of 100 keys may be kept", n)
		}
		for i := range worthRecalls {
			p.takes(fmt.Sprint("taken again", i), leastPrice)
		}
		if n := p.newKeys(); n != 100 {
			t.Errorf("after new takes %d of 100 keys may be kept", n)
		}
	})
}

// TestAKeyIsItsOwnJudge: a key that has paid is kept though new keys are not worth it, until a recall comes too early. Its takes do not
// speak for new keys.
func TestAKeyIsItsOwnJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPayer(t)
		for i := range worthRecalls {
			p.recalls(fmt.Sprint("recalled", i))
		}
		p.takes("k", leastPrice-1)
		if p.mayBeKept("k") {
			t.Error("a key that has not paid yet is kept")
		}
		p.takes("k", 1)
		if !p.mayBeKept("k") {
			t.Error("a key that has paid is not kept")
		}
		if !p.recalls("k") || !p.mayBeKept("k") {
			t.Error("a key that has paid is not kept after its recall")
		}
		p.takes("k", 100*worthRecalls)
		if n := p.newKeys(); n != 0 {
			t.Errorf("one key has paid, and %d of 100 new keys may be kept", n)
		}
		if !p.recalls("k") || p.recalls("k") || p.mayBeKept("k") {
			t.Error("a key that was recalled too early is kept")
		}
	})
}

// TestAJudgmentIsForgotten: when no new key was recalled for a minute, new keys are kept again, because nobody may hear what a try shows.
func TestAJudgmentIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPayer(t)
		for i := range worthFrom {
			p.recalls(fmt.Sprint("recalled", i))
		}
		time.Sleep(forgetAfter - time.Second)
		if n := p.newKeys(); n != 1 {
			t.Errorf("%d of 100 keys may be kept", n)
		}
		time.Sleep(time.Second)
		if n := p.newKeys(); n != 100 {
			t.Errorf("a minute after the last recall %d of 100 keys may be kept", n)
		}
		p.recalls("another")
		if n := p.newKeys(); n != 100 {
			t.Errorf("after one recall %d of 100 keys may be kept", n)
		}
	})
}
