package lease

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// note takes over what an answer tells of the queue. b.mu is held.
func (b *bid) note(ans store.Answer) {
	lock := ans.Lock
	b.seen = &lock
	if ans.Position > 0 { // not every answer tells it
		b.position = ans.Position
	}
	b.tr.sees(ans.Lock, ans.Position)
	b.holderEnds = b.m.clk.Now().Add(ans.Lock.Holder.ExpiresIn)
	b.checkAt = b.m.queue.nextCheck(ans.Lock)
}

// dueAt is when the bid must be checked, if it stands in line. b.mu is held.
func (b *bid) dueAt() time.Time {
	if at := b.checkedAt.Add(hintPause); b.hinted && at.Before(b.checkAt) {
		return at
	}
	return b.checkAt
}

// untilCheck is how long until the bid must be checked, if it stands in line and
// is not being checked; and whether the check may have to bury the holder.
func (b *bid) untilCheck(now time.Time) (wait time.Duration, burial, can bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.dueAt().Sub(now), 0), !now.Before(b.holderEnds), b.phase == queued && !b.checking
}

func (b *bid) beginCheck(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checking, b.hinted, b.checkedAt = true, false, now
}

func (b *bid) endCheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checking = false
}

// onNews hears that a hand-off gave the bid its lock, or that it was skipped.
func (b *bid) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, b.m.clk.Now())
}

// hint hears that something may have changed for the bid. It returns when the bid must be
// checked, and whether it stands in line: if not, it is seen to when it does.
func (b *bid) hint() (at time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hinted = true
	return b.dueAt(), b.phase == queued
}

// onCheck hears what a check that was sent at that time found of a queued bid.
func (b *bid) onCheck(ans store.Answer, sent time.Time) {
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
			b.finish(errBidLost)
		}
	}
}
