package lease

import (
	"testing"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Calls that come while a cohort is served join it, in their order.
// Proves: promise 5
func TestQueuedCallsJoinTheCohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls, first := r.cohort(r.another(opt), "k", 3)
		before := r.st.count("Release") + r.st.count("Adopt")
		for i := range 40 {
			if g := calls[i].granted(t); g.Token != first.Token+int64(i) || calls[i+1].isOver() {
				t.Fatalf("call %d got %+v, the next is over: %v", i, g, calls[i+1].isOver())
			}
			calls[i].release(r)
			calls = append(calls, r.wait(r.eitherSession(), "k", types.WaitForever))
		}
		if n := r.st.count("Release") + r.st.count("Adopt") - before; n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		for _, c := range calls[40:] {
			c.release(r)
		}
		r.nothingLeft()
	})
}

// A call behind one of another pod does not join the cohort.
// Proves: promise 5
func TestCallsBehindAnotherPodDoNotJoin(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, _ := r.cohort(other, "k", 2)
		theirs := other.wait(other.eitherSession(), "k", types.WaitForever)
		last := r.wait(r.eitherSession(), "k", types.WaitForever)
		for _, c := range calls {
			c.release(r)
		}
		theirs.granted(t)
		if last.isOver() {
			t.Fatal("a call of another pod was overtaken")
		}
		theirs.release(other)
		last.release(r)
		r.nothingLeft()
	})
}

// A grant has a limited number of tokens. When they are used, the store grants the next ones.
func TestACohortEndsWithItsTokens(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxSessions = 3 * store.TokensPerGrant }))
		calls, first := r.cohort(r.another(opt), "k", 2)
		before, last := r.st.count("Release"), first.Token-1
		for i := range 2*store.TokensPerGrant - 1 {
			g := calls[i].granted(t)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			calls = append(calls, r.wait(r.eitherSession(), "k", types.WaitForever))
			calls[i].release(r)
		}
		if n := r.st.count("Release") - before; n != 1 {
			t.Errorf("the store was asked %d times for twice %d grants", n, store.TokensPerGrant)
		}
		for _, c := range calls[2*store.TokensPerGrant-1:] {
			c.release(r)
		}
		r.nothingLeft()
	})
}
