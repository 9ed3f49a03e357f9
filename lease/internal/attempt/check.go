package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// note takes over what an answer tells of the queue. b.mu is held.
func (b *Attempt) note(ans store.Answer) {
	lock := ans.Lock
	b.seen = &lock
	if ans.Position > 0 { // not every answer tells it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(ans.Lock.Holder.ExpiresIn)
	b.checkAt = b.aq.queue.nextCheck(ans.Lock)
}

// dueAt is when the attempt must be checked, if it is queued. b.mu is held.
func (b *Attempt) dueAt() time.Time {
	if at := b.checkedAt.Add(HintPause); b.hinted && at.Before(b.checkAt) {
		return at
	}
	return b.checkAt
}

// untilCheck is how long until the attempt must be checked, if it is queued and
// is not being checked; and whether the check may have to revoke the holder.
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

// onNews hears that a hand-off gave the attempt its lock, or that it was skipped.
func (b *Attempt) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, clock.Read(b.aq.clk))
}

// hint hears that something may have changed for the attempt. It returns when the attempt must be
// checked, and whether it is queued: if not, it is seen to when it does.
func (b *Attempt) hint() (at time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hinted = true
	return b.dueAt(), b.phase == queued
}

// onCheck hears what a check that was sent at that time found of a queued attempt.
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

// skipped ends an attempt that needs no lock any more: the holder has done what was to
// be done. The store remembers the attempt until it is told that this was heard.
func (b *Attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.Ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}
