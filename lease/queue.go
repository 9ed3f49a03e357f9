package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
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
)

// queue has the bids that stand in line, or may: it brings news to them, and
// sees to it that they are checked, for news is only a hint: just after the
// holder's expiry; as often as leases are renewed, for whoever handed a lock on
// may have died before it told so; and every poll interval where news of other
// pods does not come by itself. All that are due are checked with one statement,
// and with them those that are due soon.
type queue struct {
	m     *Manager
	every time.Duration

	mu     sync.Mutex
	bids   map[store.GrantID]*bid
	byKey  map[string]int
	wakeAt time.Time // when watch looks next by itself
	wake   chan struct{}
}

func newQueue(m *Manager) *queue {
	q := &queue{
		m: m, every: m.cfg.RenewInterval,
		bids: make(map[store.GrantID]*bid), byKey: make(map[string]int), wake: make(chan struct{}, 1),
	}
	if m.st.Traits().Polls {
		q.every = min(q.every, m.cfg.PollInterval)
	}
	return q
}

func (q *queue) add(b *bid) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bids[b.grant] = b
	q.byKey[b.req.Key]++
}

func (q *queue) remove(b *bid) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bids[b.grant] != b {
		return
	}
	delete(q.bids, b.grant)
	if q.byKey[b.req.Key]--; q.byKey[b.req.Key] == 0 {
		delete(q.byKey, b.req.Key)
	}
}

// length is how many calls of this sidecar wait for a key.
func (q *queue) length(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.byKey[key]
}

// on returns the bids that stand in line under a lease.
func (q *queue) on(l *renewed) []*bid {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*bid
	for _, b := range q.bids {
		if b.lease == l {
			out = append(out, b)
		}
	}
	return out
}

// news brings a grant to its bid. A grant id that is not here is of a bid whose
// end is known; a bid whose call has left stays here until then.
func (q *queue) news(n store.News) {
	q.mu.Lock()
	b := q.bids[n.Grant]
	q.mu.Unlock()
	if b != nil {
		b.onNews(n.Answer)
	}
}

// nextCheck is when to look after a bid whose key is held like that.
func (q *queue) nextCheck(lock store.Lock) time.Time {
	now := q.m.clk.Now()
	wait := max(lock.Holder.ExpiresIn+checkSlack, checkPause)
	return now.Add(min(wait, jittered(q.every)))
}

// changed wakes watch if it would otherwise look later than at that time.
func (q *queue) changed(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !at.Before(q.wakeAt) {
		return
	}
	q.wakeAt = at
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// abandon leaves all bids alone.
func (q *queue) abandon() {
	q.mu.Lock()
	bids := slices.Collect(maps.Values(q.bids))
	q.mu.Unlock()
	for _, b := range bids {
		b.abandon()
	}
}

// watch checks the bids when they are due, until ctx ends.
func (q *queue) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := q.due()
		if len(due) > 0 {
			q.check(ctx, due)
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-q.wake:
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// due returns the bids to be checked now, the most urgent among them, or how
// long none is.
func (q *queue) due() (due []*bid, next time.Duration) {
	now := q.m.clk.Now()
	next = time.Hour
	var soon []*bid
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.bids {
		wait, isQueued := b.untilCheck(now)
		switch {
		case !isQueued:
			continue
		case wait <= checkSlack:
			due = append(due, b)
		case wait <= q.every/2:
			soon = append(soon, b)
		}
		next = min(next, wait)
	}
	q.wakeAt = now.Add(next)
	if len(due) > 0 {
		due = append(due, soon...)
	}
	return due[:min(len(due), q.m.cfg.BatchMax)], next
}

// check asks the store what became of bids.
func (q *queue) check(ctx context.Context, due []*bid) {
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
