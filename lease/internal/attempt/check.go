package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// note records the queue state of an answer. The caller holds b.mu.
func (b *Attempt) note(ans store.Answer) {
	lock := ans.Lock
	b.seen = &lock
	if ans.Position > 0 { // some answers lack it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(firstEnd(&ans.Lock))
	b.checkAt = b.aq.queue.nextCheck(ans.Lock)
}

// dueAt is when the attempt must be checked, if it is queued. The caller holds b.mu.
func (b *Attempt) dueAt() time.Time {
	if at := b.checkedAt.Add(HintPause); b.hinted && at.Before(b.checkAt) {
		return at
	}
	return b.checkAt
}

// untilCheck returns the time until the next check, whether this check may reap the holder, and whether a check
// is possible.
func (b *Attempt) untilCheck(now time.Time) (wait time.Duration, reaps, can bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.dueAt().Sub(now), 0), !now.Before(b.holderExpiry), b.phase == queued && !b.checking
}

func (b *Attempt) beginCheck(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checking, b.hinted, b.checkedAt = true, false, now
}

func (b *Attempt) endCheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checking = false
}

// onNews processes a hand-off or a skip.
func (b *Attempt) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, clock.Read(b.aq.clk))
}

// hint records that something may have changed. at is the next check. waits: the attempt is already queued.
func (b *Attempt) hint() (at time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hinted = true
	return b.dueAt(), b.phase == queued
}

// onCheck processes the answer to a check that was sent at the given time.
func (b *Attempt) onCheck(ans store.Answer, sent time.Time) {
	switch ans.Outcome {
	case store.Granted:
		b.winAsOf(&ans, sent)
	case store.Skipped:
		b.skipped(ans)
	case store.Queued:
		b.mu.Lock()
		b.note(ans)
		b.mu.Unlock()
	default:
		b.mu.Lock()
		gone := b.phase == queued
		b.mu.Unlock()
		if gone {
			b.Finish(ErrAttemptLost)
		}
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
