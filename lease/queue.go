package lease

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// checkSlack is how long after the holder's expiry a wait is checked, and how
	// much earlier than it is due a check may come along with another.
	checkSlack = 10 * time.Millisecond
	// checkPause is the least time between two checks of a wait whose holder is
	// expired and about to be buried.
	checkPause = 100 * time.Millisecond
	// hintPause is the least time between two checks of a wait because of news, so
	// that a storm of it costs little.
	hintPause = 50 * time.Millisecond
	// maxChecks is the most checks at a time. One of them may have to wait, to bury
	// a holder whose row somebody keeps locked; the others must not wait for it, and
	// those that will hardly have to bury anybody do not go with it.
	maxChecks = 4
)

// queue has the bids that stand in line, or may: it brings news to them, and
// sees to it that they are checked, for news is only a hint: just after the
// holder's expiry; as often as leases are renewed, for whoever handed a lock on
// may have died before it told so; and every poll interval where news of other
// pods does not come by itself now. All that are due are checked with one
// statement, and with them those that are due soon; but those whose holder may have
// to be buried apart from the others.
type queue struct {
	m *Manager

	mu sync.Mutex
	// bids are by what a hint names. Ids that are derived from request_ids are the apps'
	// choice, so several may have the same half.
	bids   map[store.HalfID][]*bid
	byKey  map[string]int
	size   atomic.Int64 // how many bids, for those who ask often and hardly ever find any
	checks int          // under way
	wakeAt time.Time    // when watch looks next by itself
	wake   chan struct{}
}

func newQueue(m *Manager) *queue {
	return &queue{m: m, bids: make(map[store.HalfID][]*bid), byKey: make(map[string]int), wake: make(chan struct{}, 1)}
}

// every is how often a wait is checked that nothing else makes due.
func (q *queue) every() time.Duration {
	if q.m.st.Traits().Polls {
		return min(q.m.cfg.RenewInterval, q.m.cfg.PollInterval)
	}
	return q.m.cfg.RenewInterval
}

// add expects news of a bid that is about to stand in line. It fails with a [LimitError] when
// there are too many: as many as calls may wait, and as many again that their calls have left.
func (q *queue) add(b *bid) error {
	if limit := q.m.cfg.MaxWaiters; q.size.Load() >= 2*int64(limit) {
		return waiterLimit(limit)
	}
	q.mu.Lock()
	half := store.HalfOf(b.grant)
	q.bids[half] = append(q.bids[half], b)
	q.byKey[b.req.Key]++
	q.size.Add(1)
	q.m.figures.Waits(b.req.Key, 1) // before anybody finds it here, and counts it out
	q.mu.Unlock()
	q.m.ear.listen() // before the store is asked to put it in line
	return nil
}

func (q *queue) remove(b *bid) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.has(b) {
		return
	}
	half := store.HalfOf(b.grant)
	q.bids[half] = slices.DeleteFunc(q.bids[half], func(other *bid) bool { return other == b })
	if len(q.bids[half]) == 0 {
		delete(q.bids, half)
	}
	q.size.Add(-1)
	q.m.figures.Waits(b.req.Key, -1)
	if q.byKey[b.req.Key]--; q.byKey[b.req.Key] == 0 {
		delete(q.byKey, b.req.Key)
	}
	if len(q.bids) == 0 {
		q.m.ear.quiet()
	}
}

// has reports whether a bid stands in line, or is about to. q.mu is held.
func (q *queue) has(b *bid) bool { return slices.Contains(q.bids[store.HalfOf(b.grant)], b) }

// awaits reports whether a bid for a grant stands in line, or is about to.
func (q *queue) awaits(grant store.GrantID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.bids[store.HalfOf(grant)], func(b *bid) bool { return b.grant == grant })
}

// each runs over all bids. q.mu is held.
func (q *queue) each(yield func(*bid) bool) {
	for _, bids := range q.bids {
		for _, b := range bids {
			if !yield(b) {
				return
			}
		}
	}
}

// empty reports whether no bid stands in line, or is about to.
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

// on returns the bids that stand in line under a lease.
func (q *queue) on(l *renewed) []*bid {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*bid
	if b := l.only.Load(); b != nil {
		if q.has(b) {
			out = append(out, b)
		}
		return out
	}
	for b := range q.each {
		if b.lease == l {
			out = append(out, b)
		}
	}
	return out
}

// news brings a grant, or the hint to look, to its bid. A grant id that is not
// here is of a bid whose end is known; a bid whose call has left stays here until
// then.
func (q *queue) news(n store.News) {
	if n.Signals {
		q.m.signals.look()
		return
	}
	if n.Event != nil {
		q.m.watches.hear(*n.Event)
		return
	}
	if n.Attempt == store.EveryWait.Attempt {
		q.m.signals.look()
		q.m.watches.changed(q.m.watches.everything)
		q.hint(q.all())
		return
	}
	q.mu.Lock()
	named := slices.Clone(q.bids[store.HalfOf(n.Grant)])
	q.mu.Unlock()
	if n.Answer.Outcome == 0 {
		q.hint(named)
		return
	}
	for _, b := range named {
		if b.grant == n.Grant { // who tells of an outcome knows all of the id
			b.onNews(n.Answer)
		}
	}
}

// hint has bids checked. Nobody is woken before all of them are marked, so that they
// are checked together.
func (q *queue) hint(bids []*bid) {
	var soonest time.Time
	for _, b := range bids {
		if at, waits := b.hint(); waits && (soonest.IsZero() || at.Before(soonest)) {
			soonest = at
		}
	}
	if !soonest.IsZero() {
		q.changed(soonest)
	}
}

// nextCheck is when to look after a bid whose key is held like that.
func (q *queue) nextCheck(lock store.Lock) time.Time {
	now := q.m.clk.Now()
	wait := max(lock.Holder.ExpiresIn+checkSlack, checkPause)
	return now.Add(min(wait, jittered(q.every())))
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

func (q *queue) all() []*bid {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(q.each)
}

// abandon leaves all bids alone.
func (q *queue) abandon() {
	for _, b := range q.all() {
		b.abandon()
	}
}

// watch checks the bids when they are due, until ctx ends.
func (q *queue) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, next := q.due()
		if len(due) > 0 {
			q.m.spawn(func() { q.check(ctx, due) })
			continue
		}
		timer.Reset(min(next, q.m.ear.hush()))
		select {
		case <-timer.C:
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// due returns the bids to be checked now, the most urgent among them, or how
// long none is. A check of what it returns must follow.
func (q *queue) due() (due []*bid, next time.Duration) {
	now, soonEnough := q.m.clk.Now(), q.every()/2
	next = time.Hour
	var groups [2]struct{ due, soon []*bid } // those that may bury are the second
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks >= maxChecks {
		q.wakeAt = now.Add(next) // the end of a check wakes
		return nil, next
	}
	for b := range q.each {
		wait, burial, can := b.untilCheck(now)
		if !can {
			continue
		}
		g := &groups[0]
		if burial {
			g = &groups[1]
		}
		switch {
		case wait <= checkSlack:
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
	due = due[:min(len(due), q.m.cfg.BatchMax)]
	for _, b := range due {
		b.beginCheck(now)
	}
	q.checks++
	return due, 0
}

// checked lets others be checked.
func (q *queue) checked(bids []*bid) {
	for _, b := range bids {
		b.endCheck()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checks--
	q.changedLocked(time.Time{})
}

// check asks the store what became of bids.
func (q *queue) check(ctx context.Context, due []*bid) {
	defer q.checked(due)
	waits := make([]store.Attempt, len(due))
	for i, b := range due {
		waits[i] = b.attempt()
	}
	ctx, cancel := context.WithTimeout(ctx, q.m.cfg.StoreTimeout)
	defer cancel()
	sent := q.m.clk.Now()
	answers, err := q.m.st.CheckWaits(ctx, waits)
	if err != nil {
		q.m.log.Debug("waits not checked, trying again", "waits", len(due), "error", err)
		later := q.m.clk.Now().Add(jittered(q.m.cfg.PollInterval))
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
