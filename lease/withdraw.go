package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// withdraw frees what an attempt of unknown outcome may have got. The question may
// still lie in somebody's buffer, and be carried out after it was withdrawn: so it is
// withdrawn at once, for those who wait for the key, and once more when the server
// has long given up on what reached it.
func (aq *acquirer) withdraw(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	aq.withdrawOnce(ctx, a, matters, func() {
		again := func() { aq.withdrawOnce(ctx, a, matters, settled) }
		if aq.inline || !matters() || !aq.retries.after(2*aq.cfg.StoreTimeout, again) {
			settled()
		}
	})
}

// withdrawOnce tries again and again until the store confirms it or it does not
// matter any more. Then, once, settled is called.
func (aq *acquirer) withdrawOnce(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	again := func() { aq.withdrawOnce(context.Background(), a, matters, settled) }
	answer := func(o store.Outcome, err error) {
		aq.heldCache.Drop(a.Key)
		withdrawn := err == nil && o != store.RowLocked
		if withdrawn || !matters() || !aq.retries.after(clock.Jittered(clock.RetryPause), again) {
			settled()
		}
	}
	if err := aq.lanes.Withdrawals.Submit(ctx, a, answer); err != nil {
		settled() // as in free
	}
}

// free frees what nobody waits for.
func (aq *acquirer) free(ctx context.Context, c store.Claim, matters func() bool, settled func()) {
	aq.releaser.Release(ctx, &unwatched{c, matters, settled})
}
