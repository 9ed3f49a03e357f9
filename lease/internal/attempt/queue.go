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
	// CheckSlack is how long after the holder's expiry a wait is checked, and how
	// much earlier than it is due a check may come along with another.
	CheckSlack = 10 * time.Millisecond
	// CheckPause is the least time between two checks of a wait whose holder is
	// expired and about to be revoked.
	CheckPause = 100 * time.Millisecond
	// HintPause is the least time between two checks of a wait because of news, so
	// that a storm of it costs little.
	HintPause = 50 * time.Millisecond
	// MaxChecks is the most checks at a time. One of them may have to wait, to revoke
	// a holder whose row somebody keeps locked; the others must not wait for it, and
	// those that will hardly have to revoke anybody do not go with it.
	MaxChecks = 4
)

// queue has the attempts that be queued, or may: it brings news to them, and
// sees to it that they are checked, for news is only a hint: just after the
// holder's expiry; as often as leases are renewed, for whoever handed a lock on
// may have died before it told so; and every poll interval where news of other
// pods does not come by itself now. All that are due are checked with one
// statement, and with them those that are due soon; but those whose holder may have
// to be revoked apart from the others.
type queue struct {
	cfg   types.Config
	clk   clock.Clock
	obs   *observe.Observer
	store waitStore
	spawn func(func()) bool

	mu sync.Mutex
	// attempts are by what a hint names. Ids that are derived from request_ids are the apps'
	// choice, so several may have the same half.
	attempts map[store.HalfID][]*Attempt
	byKey    map[string]int
	size     atomic.Int64 // how many attempts, for those who ask often and hardly ever find any
	checks   int          // under way
	wakeAt   time.Time    // when watch looks next by itself
	wake     chan struct{}
}

// waitStore is what an acquirer uses of a store, beside its lanes.
type waitStore interface {
	Traits() store.Traits
	Ready() error
	Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error)
	Check(ctx context.Context, attempts []store.Attempt) ([]store.Answer, error)
}

// newQueue makes a queue. spawn runs a check beside it.
func newQueue(cfg types.Config, obs *observe.Observer, st waitStore, spawn func(func()) bool) *queue {
	return &queue{
		cfg: cfg, clk: cfg.Clock, obs: obs, store: st, spawn: spawn,
		attempts: make(map[store.HalfID][]*Attempt), byKey: make(map[string]int), wake: make(chan struct{}, 1),
	}
}

// every is how often a wait is checked that nothing else makes due.
func (q *queue) every() time.Duration {
	if q.store.Traits().Polls {
		return min(q.cfg.RenewInterval, q.cfg.PollInterval)
	}
	return q.cfg.RenewInterval
}

// add expects news of an attempt that is about to be queued. It fails with a [LimitError] when
// there are too many: as many as calls may wait, and as many again that their calls have left.
func (q *queue) add(b *Attempt) error {
	if limit := q.cfg.MaxWaiters; q.size.Load() >= 2*int64(limit) {
		return waiterLimit(limit)
	}
	q.mu.Lock()
	half := store.HalfOf(b.id)
	q.attempts[half] = append(q.attempts[half], b)
	q.byKey[b.req.Key]++
	q.size.Add(1)
	q.obs.Waits(b.req.Key, 1) // before anybody finds it here, and counts it out
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
	if q.byKey[b.req.Key]--; q.byKey[b.req.Key] == 0 {
		delete(q.byKey, b.req.Key)
	}
}

// has reports whether an attempt is queued, or is about to. q.mu is held.
func (q *queue) has(b *Attempt) bool { return slices.Contains(q.attempts[store.HalfOf(b.id)], b) }

// each runs over all attempts. q.mu is held.
func (q *queue) each(yield func(*Attempt) bool) {
	for _, attempts := range q.attempts {
		for _, b := range attempts {
			if !yield(b) {
				return
			}
		}
	}
}

// empty reports whether no attempt is queued, or is about to.
func (q *queue) empty() bool { return q.size.Load() == 0 }

// length is how many calls of this sidecar wait for a key.
func (q *queue) length(key string) int {
	if q.empty() {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.byKey[key]
}

// on returns the attempts that be queued under a lease.
func (q *queue) on(l *heartbeat.Lease) []*Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*Attempt
	for b := range q.each {
		if b.Lease() == l {
			out = append(out, b)
		}
	}
	return out
}

// news brings a grant, or the hint to look, to its attempt. A attempt id that is not
// here is of an attempt whose end is known; an attempt whose call has left stays here until
// then.
func (q *queue) news(n store.News) {
	q.mu.Lock()
	named := slices.Clone(q.attempts[store.HalfOf(n.ID)])
	q.mu.Unlock()
	if n.Answer.Outcome == 0 {
		q.hint(named)
		return
	}
	for _, b := range named {
		if b.id == n.ID { // who tells of an outcome knows all of the id
			b.onNews(n.Answer)
		}
	}
}

// hint has attempts checked. Nobody is woken before all of them are marked, so that they
// are checked together.
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

// nextCheck is when to look after an attempt whose key is held like that.
func (q *queue) nextCheck(lock store.Lock) time.Time {
	now := q.clk.Now()
	wait := max(lock.Holder.ExpiresIn+CheckSlack, CheckPause)
	return now.Add(min(wait, clock.Jittered(q.every())))
}

// changed wakes watch if it would otherwise look later than at that time.
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

// callersLeft leaves all attempts alone.
func (q *queue) callersLeft() {
	for _, b := range q.all() {
		b.CallerLeft()
	}
}

// watch checks the attempts when they are due, until ctx ends.
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

// due returns the attempts to be checked now, the most urgent among them, or how
// long none is. A check of what it returns must follow.
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

// checked lets others be checked.
func (q *queue) checked(attempts []*Attempt) {
	for _, b := range attempts {
		b.endCheck()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checks--
	q.changedLocked(time.Time{})
}

// check asks the store what became of attempts.
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
