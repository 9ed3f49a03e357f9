package attempt

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// CheckSlack is how long after the holder's expiry a wait is checked, and how early a check may be.
	CheckSlack = 10 * time.Millisecond
	// CheckPause is the least time between two checks of a wait whose expired holder is being reaped.
	CheckPause = 100 * time.Millisecond
	// HintPause is the least time between two checks because of news, so that many news cost little.
	HintPause = 50 * time.Millisecond
	// MaxChecks limits the checks at a time. One may wait to reap a holder whose row is locked. The others must
	// not wait for it, so checks that hardly ever reap run separately.
	MaxChecks = 4
)

// checkWhenDue checks the attempts when they are due, until ctx ends.
func (q *Queue) checkWhenDue(ctx context.Context) {
	clock.Loop(ctx, q.wake, func() time.Duration {
		due, next := q.due() // with due attempts, it is zero
		if len(due) > 0 {
			q.spawn(func() { q.check(ctx, due) })
		}
		return next
	})
}

// due returns the attempts to be checked now, or the time until one is due. The caller must check them.
func (q *Queue) due() (due []*Attempt, next time.Duration) {
	now, soonEnough := q.clk.Now(), q.CheckInterval()/2
	next = time.Hour
	var groups [2]struct{ due, soon []*Attempt } // the second group may reap
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks >= MaxChecks {
		q.wakeAt = now.Add(next) // the end of a check wakes checkWhenDue
		return nil, next
	}
	for b := range q.each {
		wait, reaps, can := b.untilCheck(now)
		if !can {
			continue
		}
		g := &groups[0]
		if reaps {
			g = &groups[1]
		}
		switch {
		case wait <= CheckSlack:
			g.due = append(g.due, b)
		case wait <= soonEnough:
			g.soon = append(g.soon, b)
		}
		next = min(next, wait)
	}
	q.wakeAt = now.Add(next)
	g := &groups[0]
	if len(g.due) == 0 {
		g = &groups[1]
	}
	if len(g.due) == 0 {
		return nil, next
	}
	due = slices.Concat(g.due, g.soon)
	due = due[:min(len(due), q.cfg.BatchMax)]
	for _, b := range due {
		b.beginCheck(now)
	}
	q.checks++
	return due, 0
}

func (q *Queue) check(ctx context.Context, due []*Attempt) {
	defer q.checked(due)
	waits := make([]store.Attempt, len(due))
	for i, b := range due {
		waits[i] = b.Ref()
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.StoreTimeout)
	defer cancel()
	sent := q.clk.Now()
	answers, err := q.store.Check(ctx, waits)
	if err != nil {
		q.cfg.Logger.Debug("waits not checked, trying again", "waits", len(due), "error", err)
		later := q.clk.Now().Add(clock.Jittered(q.cfg.PollInterval))
		for _, b := range due {
			b.mu.Lock()
			b.checkAt = later
			b.mu.Unlock()
		}
		return
	}
	for i, b := range due {
		b.onCheck(answers[i], sent)
	}
}

// checked allows further checks of these and other attempts.
func (q *Queue) checked(attempts []*Attempt) {
	for _, b := range attempts {
		b.endCheck()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checks--
	q.changedLocked(time.Time{})
}

// onCheck processes the answer to a check that was sent at the given time.
func (b *Attempt) onCheck(ans store.Answer, sent time.Time) {
	switch ans.Outcome {
	case store.Granted:
		b.win(&ans, sent)
	case store.Skipped:
		b.skipped(ans)
	case store.Queued:
		b.mu.Lock()
		b.note(ans, sent)
		b.mu.Unlock()
		b.refusedBy(&ans, sent)
	default:
		b.mu.Lock()
		gone := b.phase == queued
		b.mu.Unlock()
		if gone {
			b.Finish(ErrAttemptLost)
		}
	}
}

// nextCheck returns when to check a wait for a key with this holder.
func (q *Queue) nextCheck(lock store.Lock) time.Time {
	now := q.clk.Now()
	wait := max(firstEnd(&lock)+CheckSlack, CheckPause)
	return now.Add(min(wait, clock.Jittered(q.CheckInterval())))
}

// CheckInterval is how often a wait is checked without other reasons.
func (q *Queue) CheckInterval() time.Duration {
	if q.store.Traits().Polls {
		return min(q.cfg.RenewInterval, q.cfg.PollInterval)
	}
	return q.cfg.RenewInterval
}

// firstEnd is when the first of the holders expires.
func firstEnd(lock *store.Lock) time.Duration {
	if lock.Shared {
		return lock.NextEnd
	}
	return lock.Holder.ExpiresIn
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

// checkNow causes a check of the attempt.
func (b *Attempt) checkNow() {
	now := b.aq.clk.Now()
	b.mu.Lock()
	b.checkAt = now
	b.mu.Unlock()
	b.aq.Queue.changed(now)
}

// changed wakes checkWhenDue if its next look is later than the given time.
func (q *Queue) changed(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changedLocked(at)
}

func (q *Queue) changedLocked(at time.Time) {
	if !at.Before(q.wakeAt) {
		return
	}
	q.wakeAt = at
	clock.Wake(q.wake)
}

// LookAgain causes a check of all waiting attempts soon.
func (q *Queue) LookAgain() { q.hint(q.Waiting()) }

// hint causes checks of attempts. It marks all of them before it wakes checkWhenDue, so they are checked together.
func (q *Queue) hint(attempts []*Attempt) {
	var soonest time.Time
	for _, b := range attempts {
		if at, waits := b.hint(); waits && (soonest.IsZero() || at.Before(soonest)) {
			soonest = at
		}
	}
	if !soonest.IsZero() {
		q.changed(soonest)
	}
}

// hint records that something may have changed. at is the next check. waits: the attempt is already queued.
func (b *Attempt) hint() (at time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hinted = true
	return b.dueAt(), b.phase == queued
}
