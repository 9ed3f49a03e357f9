package lease

import (
	"context"
	"testing"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A lock may be given up at the moment in which its group is complete. Whether the lock is still
// undelivered is read when it can no longer change. The race detector checks this.
func TestGiveUpAtTheReveal(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.m.groups.NewGroup(context.Background(), s, []string{"a", "b"}, &types.Request{TTL: s.TTL()})
		done, err := g.Admit()
		r.must(err)
		defer done()
		for g.Missing() {
			r.must(g.Advance())
		}
		h, over := r.m.holdings.Get("b"), make(chan struct{})
		go func() {
			defer close(over)
			h.LoseAndRelease(types.LostMaxHold)
		}()
		g.Complete()
		<-over
	})
}
