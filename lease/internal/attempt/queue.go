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
	// CheckSlack is how long after the holder's expiry a wait is checked, and how early a check may come.
	CheckSlack = 10 * time.Millisecond
	// CheckPause is the least time between two checks of a wait whose expired holder is being revoked.
	CheckPause = 100 * time.Millisecond
	// HintPause is the least time between two checks because of news, so that a storm of it costs little.
	HintPause = 50 * time.Millisecond
	// MaxChecks is the most checks at a time. One may wait to revoke a holder whose row is kept locked;
	// the others must not wait for it, so checks that hardly revoke run apart.
	MaxChecks = 4
)

// queue has the attempts that are queued, or may be. It passes them news, and checks them, because news is
// only a hint: just after the holder's expiry; as often as leases are renewed, because a sidecar that
// handed a lock on may have died before it sent the news; and every poll interval if other pods' news does
// not come by itself. One statement checks all that are due or due soon, apart from those that may revoke
// their holder.
type queue struct {
	cfg   types.Config
	clk   clock.Clock
	obs   *observe.Observer
	store waitStore
	spawn func(func()) bool

	mu sync.Mutex
	// attempts are by what a hint names. Apps choose request ids, so several may have the same half.
	attempts map[store.HalfID][]*Attempt
	byKey    map[string]*line
	size     atomic.Int64 // how many attempts, for frequent callers that hardly ever find any
	checks   int          // under way
	wakeAt   time.Time    // when watch looks next by itself
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

// every is how often a wait is checked if nothing else makes it due.
func (q *queue) every() time.Duration {
	if q.store.Traits().Polls {
		return min(q.cfg.RenewInterval, q.cfg.PollInterval)
	}
	return q.cfg.RenewInterval
}

// add expects news of an attempt. It fails with a [LimitError] at twice MaxWaiters: calls may have left as
// many.
func (q *queue) add(b *Attempt) error {
	if limit := q.cfg.MaxWaiters; q.size.Load() >= 2*int64(limit) {
		return waiterLimit(limit)
	}
	q.mu.Lock()
	half := store.HalfOf(b.id)
	q.attempts[half] = append(q.attempts[half], b)
	q.joinLine(b)
	q.size.Add(1)
	q.obs.Waits(b.req.Key, 1) // before another goroutine finds the attempt here and counts it out
	q.mu.Unlock()
	return nil
}

func (q *queue) remove(b *Attempt) {
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
	q.leftLine(b)
}

// has reports whether an attempt is queued, or is about to be. q.mu is held.
func (q *queue) has(b *Attempt) bool { return slices.Contains(q.attempts[store.HalfOf(b.id)], b) }

// each yields all attempts. q.mu is held.
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

// length is how many calls of this sidecar wait for a key.
func (q *queue) length(key string) int {
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

// on returns the attempts that are queued under a lease.
func (q *queue) on(l *heartbeat.Lease) []*Attempt {
	return q.those(func(b *Attempt) bool { return b.Lease() == l })
}

// those returns the attempts that are queued, or may be, and match.
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

// news passes a grant or a hint to its attempt. Without one, the outcome is known already.
func (q *queue) news(n store.News) {
	q.mu.Lock()
	named := slices.Clone(q.attempts[store.HalfOf(n.ID)])
	q.mu.Unlock()
	if n.Answer.Outcome == 0 {
		q.hint(named)
		return
	}
	for _, b := range named {
		if b.id == n.ID { // an outcome comes with the whole id
			b.onNews(n.Answer)
		}
	}
}

// next is the attempt for a key that is named so; nil: there is none. It reports false if that is not certain.
func (q *queue) next(key string, half store.HalfID) (b *Attempt, certain bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch named := q.attempts[half]; {
	case len(named) == 0:
		return nil, true
	case len(named) > 1 || named[0].req.Key != key:
		return nil, false
	default:
		return named[0], true
	}
}

// hint has attempts checked. It marks all before it wakes watch, so they are checked together.
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

// nextCheck is when to check a wait whose key is held like that.
func (q *queue) nextCheck(lock store.Lock) time.Time {
	now := q.clk.Now()
	wait := max(firstEnd(&lock)+CheckSlack, CheckPause)
	return now.Add(min(wait, clock.Jittered(q.every())))
}

// firstEnd is when the first of the holders expires.
func firstEnd(lock *store.Lock) time.Duration {
	if lock.Shared {
		return lock.NextEnd
	}
	return lock.Holder.ExpiresIn
}

// changed wakes watch if it would check later than at that time.
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
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) all() []*Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(q.each)
}

func (q *queue) callersLeft() {
	for _, b := range q.all() {
		b.CallerLeft()
	}
}

// watch checks the attempts when due, until ctx ends.
func (q *queue) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, next := q.due()
		if len(due) > 0 {
			q.spawn(func() { q.check(ctx, due) })
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// due returns the attempts to be checked now, or how long none is. A check of them must follow.
func (q *queue) due() (due []*Attempt, next time.Duration) {
	now, soonEnough := q.clk.Now(), q.every()/2
	next = time.Hour
	var groups [2]struct{ due, soon []*Attempt } // those that may revoke are the second
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks >= MaxChecks {
		q.wakeAt = now.Add(next) // the end of a check wakes
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

// checked lets these attempts, and others, be checked again.
func (q *queue) checked(attempts []*Attempt) {
	for _, b := range attempts {
		b.endCheck()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checks--
	q.changedLocked(time.Time{})
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
