package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// timeIsUp ends the attempt: won if it has been granted, otherwise with errTimeUp.
func (b *Attempt) timeIsUp() {
	b.mustLeave(timeUp)
	b.leaveQueue()
}

// Cancel makes the attempt hand back what it has won or still wins.
func (b *Attempt) Cancel() {
	if won := b.mustLeave(callerLeft); won {
		b.HandBackWon(b.result.Token)
		return
	}
	b.leaveQueue()
}

// IsUnwanted reports whether the attempt hands back what it wins.
func (b *Attempt) IsUnwanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaving&callerLeft != 0
}

// leaveQueue takes the attempt out of the queue once its position is confirmed, because a cancel that reached the
// store before the enqueue would leave an orphan. An attempt that has not asked for a position yet is over.
func (b *Attempt) leaveQueue() {
	switch b.depart() {
	case later:
		return
	case gone:
		b.end()
		return
	case toCancel:
	}
	if err := b.aq.lanes.Cancels.Submit(b.tr.Carry(context.Background()), b.Ref(), b.onCancel); err != nil {
		b.fail(err) // the sidecar stops; the waiter may get the key before the lease is revoked
	}
}

func (b *Attempt) onCancel(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.win(&ans, b.lastSent())
	case ans.Outcome == store.Skipped: // the store has forgotten the waiter
		b.Finish(&types.SkippedError{Key: b.req.Key, Result: ans.Result})
	case ans.Outcome == store.RowLocked:
		b.fail(types.RowLocked("cancel"))
	default:
		b.mu.Lock()
		if ans.Position > 0 {
			b.position = ans.Position
		}
		err := b.whyLeftLocked()
		b.mu.Unlock()
		b.Finish(err)
	}
}

// skipped ends an attempt whose work the holder has done. The store remembers the waiter until the sidecar
// confirms.
func (b *Attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.Ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}
