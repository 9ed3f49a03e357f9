package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// skipped ends an attempt that needs no lock any more: the holder has done what was to
// be done. The store remembers the attempt until it is told that this was heard.
func (b *attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}

// forgetWait makes the store forget a waiter that was skipped. It tries again and
// again until the store confirms it, or the waiter's lease is dead, and the waiter
// with it. Then, once, settled is called.
func (aq *acquirer) forgetWait(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	again := func() { aq.forgetWait(context.Background(), a, matters, settled) }
	answer := func(ans store.Answer, err error) {
		forgotten := err == nil && ans.Outcome != store.RowLocked
		if forgotten || !matters() || !aq.retries.after(clock.Jittered(clock.RetryPause), again) {
			settled()
		}
	}
	if err := aq.lanes.Cancels.Submit(ctx, a, answer); err != nil {
		settled() // as in free
	}
}
