package attempt

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
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

// queue contains the attempts that are queued, or may be. It passes them news. Because news is only a hint, it also
// checks them: just after the holder's expiry; as often as leases are renewed, because a sidecar that handed a lock
// on may have died before it sent the news; and every poll interval if news of other pods does not arrive. One
// statement checks all attempts that are due or due soon, except those that may reap their holder.
type queue struct {
	cfg   types.Config
	clk   clock.Clock
	obs   *observe.Observer
	store waitStore
	spawn func(func()) bool

	mu sync.Mutex
	// attempts are by the half that a hint names. Apps choose request ids, so several may have the same half.
	attempts map[store.HalfID][]*Attempt
	byKey    map[string]*line
	size     atomic.Int64 // number of attempts, for callers that rarely find one
	checks   int          // running checks
	wakeAt   time.Time    // the next tick of watch
	wake     chan struct{}
}

type waitStore interface {
	Traits() store.Traits
	Ready() error
	Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error)
	Check(ctx context.Context, attempts []store.Attempt) ([]store.Answer, error)
}

// newQueue makes a queue. spawn runs a check in another goroutine.
func newQueue(cfg types.Config, obs *observe.Observer, st waitStore, spawn func(func()) bool) *queue {
	return &queue{
		cfg: cfg, clk: cfg.Clock, obs: obs, store: st, spawn: spawn,
		attempts: make(map[store.HalfID][]*Attempt), byKey: make(map[string]*line), wake: make(chan struct{}, 1),
	}
}

// add begins to pass news to an attempt. It returns a [LimitError] at twice MaxWaiters, because as many
// attempts may remain of calls that have left.
func (q *queue) add(b *Attempt) error {
	if limit := q.cfg.MaxWaiters; q.size.Load() >= 2*int64(limit) {
		return waiterLimit(limit)
	}
	q.mu.Lock()
	half := store.HalfOf(b.id)
	q.attempts[half] = append(q.attempts[half], b)
	q.joinLine(b)
	q.size.Add(1)
	q.obs.Waits(b.req.Key, 1) // before another goroutine can find the attempt here and count it as left
	q.mu.Unlock()
	return nil
}

func (q *queue) remove(b *Attempt) {
	holds := b.holds()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.has(b) {
		return
	}
	half := store.HalfOf(b.id)
	q.attempts[half] = slices.DeleteFunc(q.attempts[half], func(other *Attempt) bool { return other == b })
	if len(q.attempts[half]) == 0 {
		delete(q.attempts, half)
	}
	q.size.Add(-1)
	q.obs.Waits(b.req.Key, -1)
	q.leftLine(b, holds)
}

// has reports whether an attempt is queued, or is about to be. The caller holds q.mu.
func (q *queue) has(b *Attempt) bool { return slices.Contains(q.attempts[store.HalfOf(b.id)], b) }

// each yields all attempts. The caller holds q.mu.
func (q *queue) each(yield func(*Attempt) bool) {
	for _, attempts := range q.attempts {
		for _, b := range attempts {
			if !yield(b) {
				return
			}
		}
	}
}

func (q *queue) empty() bool { return q.size.Load() == 0 }

func (b *Attempt) onEnqueue(ans store.Answer, err error) {
	if b.decided("enqueue", ans, err) {
		return
	}
	if len(ans.Cohort) > 0 {
		b.aq.extendCohort(&ans)
	}
	b.mu.Lock()
	if b.phase == over { // news came before this answer, or the lease was lost
		b.mu.Unlock()
		b.onLateAnswer()
		return
	}
	b.phase, b.wasQueued = queued, true
	b.note(ans, b.sent)
	leave, at := b.unwanted || b.timeUp || b.positionLost, b.dueAt()
	b.mu.Unlock()
	if leave {
		b.cancel()
		return
	}
	b.aq.queue.queued(b, ans.Alone, at)
}

// note records the queue state of the answer to a question that was sent at the given time. The caller holds b.mu.
func (b *Attempt) note(ans store.Answer, sent time.Time) {
	lock := ans.Lock
	b.seen, b.seenAt = &lock, sent
	if ans.Position > 0 { // some answers lack it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(firstEnd(&ans.Lock))
	b.checkAt = b.aq.queue.nextCheck(ans.Lock)
}

// queued records that the store has queued an attempt, whether alone (see [store.Answer]), and when it must be
// checked.
func (q *queue) queued(b *Attempt, alone bool, checkAt time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.has(b) {
		b.inStore = true
		l := q.byKey[b.req.Key]
		switch l.inStore++; {
		case !alone:
			l.alone = time.Time{}
		case l.alone.IsZero():
			l.alone = q.clk.Now()
		}
	}
	q.changedLocked(checkAt)
}

// News passes a grant or a hint of the store to its attempt. If there is none, its outcome is known already. It does not block.
func (q *queue) News(n store.News) {
	q.mu.Lock()
	named := slices.Clone(q.attempts[store.HalfOf(n.ID)])
	q.mu.Unlock()
	if n.Answer.Outcome == 0 {
		q.hint(named)
		return
	}
	for _, b := range named {
		if b.id == n.ID { // an outcome always has the whole id
			b.onNews(n.Answer)
		}
	}
}

// onNews processes a hand-off or a skip.
func (b *Attempt) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, clock.Read(b.aq.clk))
}

// watch checks the attempts when they are due, until ctx ends.
func (q *queue) watch(ctx context.Context) {
	clock.Loop(ctx, q.wake, func() time.Duration {
		due, next := q.due() // with due attempts, it is zero
		if len(due) > 0 {
			q.spawn(func() { q.check(ctx, due) })
		}
		return next
	})
}

// due returns the attempts to be checked now, or the time until one is due. The caller must check them.
func (q *queue) due() (due []*Attempt, next time.Duration) {
	now, soonEnough := q.clk.Now(), q.CheckInterval()/2
	next = time.Hour
	var groups [2]struct{ due, soon []*Attempt } // the second group may reap
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks >= MaxChecks {
		q.wakeAt = now.Add(next) // the end of a check wakes watch
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

func (q *queue) check(ctx context.Context, due []*Attempt) {
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
func (q *queue) checked(attempts []*Attempt) {
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
		b.winAsOf(&ans, sent)
	case store.Skipped:
		b.skipped(ans)
	case store.Queued:
		b.mu.Lock()
		b.note(ans, sent)
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

// nextCheck returns when to check a wait for a key with this holder.
func (q *queue) nextCheck(lock store.Lock) time.Time {
	now := q.clk.Now()
	wait := max(firstEnd(&lock)+CheckSlack, CheckPause)
	return now.Add(min(wait, clock.Jittered(q.CheckInterval())))
}

// CheckInterval is how often a wait is checked without other reasons.
func (q *queue) CheckInterval() time.Duration {
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

// changed wakes watch if its next tick is later than the given time.
func (q *queue) changed(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changedLocked(at)
}

func (q *queue) changedLocked(at time.Time) {
	if !at.Before(q.wakeAt) {
		return
	}
	q.wakeAt = at
	clock.Wake(q.wake)
}

// LookAgain causes a check of all waiting attempts soon.
func (q *queue) LookAgain() { q.hint(q.Waiting()) }

// hint causes checks of attempts. It marks all of them before it wakes watch, so they are checked together.
func (q *queue) hint(attempts []*Attempt) {
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

// keys is the number of keys with attempts that are queued, or may be.
func (q *queue) keys() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		if l.attempts > 0 {
			n++
		}
	}
	return n
}

// QueueLength is the number of this sidecar's calls that wait for a key.
func (q *queue) QueueLength(key string) int {
	if q.empty() {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		return l.attempts
	}
	return 0
}

// WaitingUnder returns the attempts that wait under a lease.
func (q *queue) WaitingUnder(l *heartbeat.Lease) []*Attempt {
	return q.those(func(b *Attempt) bool { return b.Lease() == l })
}

// those returns the matching attempts that are queued, or may be.
func (q *queue) those(match func(*Attempt) bool) []*Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*Attempt
	for b := range q.each {
		if match(b) {
			out = append(out, b)
		}
	}
	return out
}

// Waiting returns the attempts that are queued, or may be.
func (q *queue) Waiting() []*Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(q.each)
}

// CallersLeft makes all waiting attempts hand back what they win.
func (q *queue) CallersLeft() {
	for _, b := range q.Waiting() {
		b.CallerLeft()
	}
}
