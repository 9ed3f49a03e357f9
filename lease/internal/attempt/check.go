package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// note takes over an answer's queue state. b.mu is held.
func (b *Attempt) note(ans store.Answer) {
	lock := ans.Lock
	b.seen = &lock
	if ans.Position > 0 { // not every answer has it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(firstEnd(&ans.Lock))
	b.checkAt = b.aq.queue.nextCheck(ans.Lock)
}

// dueAt is when the attempt must be checked, if it is queued. b.mu is held.
func (b *Attempt) dueAt() time.Time {
	if at := b.checkedAt.Add(HintPause); b.hinted && at.Before(b.checkAt) {
		return at
	}
	return b.checkAt
}

// untilCheck is the time until the next check, whether it may revoke the holder, and if it is possible.
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

// onNews takes a hand-off or a skip.
func (b *Attempt) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, clock.Read(b.aq.clk))
}

// hint notes that something may have changed. at is the next check; waits: it is queued already.
func (b *Attempt) hint() (at time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hinted = true
	return b.dueAt(), b.phase == queued
}

// onCheck takes the answer to a check sent at that time.
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

// skipped ends an attempt whose work the holder has done. The store remembers it until acknowledged.
func (b *Attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.Ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}
