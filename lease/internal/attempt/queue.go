package attempt

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Queue contains the attempts that are queued, or may be. It passes them news. Because news is only a hint, it also
// checks them: just after the holder's expiry; as often as leases are renewed, because a sidecar that handed a lock
// off may have died before it sent the news; and every poll interval if news of other pods does not arrive. One
// statement checks all attempts that are due or due soon, except those that may reap their holder.
//
// Here are its set of attempts, and the news. What else it does stands with its topic: check.go, gather.go, enqueue.go (an attempt is queued), cohort.go
// (who is next).
type Queue struct {
	cfg   types.Config
	clk   clock.Clock
	obs   *observe.Observer
	store waitStore
	needs *hearing.Needs
	spawn func(func()) bool

	mu sync.Mutex
	// attempts are by the half that a hint names. Apps choose request ids, so several may have the same half.
	attempts map[store.HalfID][]*Attempt
	byKey    map[string]*keyQueue
	size     atomic.Int64 // number of attempts, for callers that rarely find one
	checks   int          // running checks
	wakeAt   time.Time    // the next look of checkWhenDue
	wake     chan struct{}
}

// waitStore is what attempts ask of the store without a lane: the checks of the queue, and AskAll.
type waitStore interface {
	Traits() store.Traits
	Ready() error
	Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error)
	Check(ctx context.Context, attempts []store.Attempt) ([]store.Answer, error)
}

// newQueue makes a queue. spawn runs a check in another goroutine.
func newQueue(cfg types.Config, obs *observe.Observer, st waitStore, needs *hearing.Needs, spawn func(func()) bool) *Queue {
	return &Queue{
		cfg: cfg, clk: cfg.Clock, obs: obs, store: st, needs: needs, spawn: spawn,
		attempts: make(map[store.HalfID][]*Attempt), byKey: make(map[string]*keyQueue), wake: make(chan struct{}, 1),
	}
}

// add begins to pass news to an attempt. It returns a [LimitError] at twice MaxWaiters, because as many
// attempts may remain of calls that have left.
func (q *Queue) add(b *Attempt) error {
	if limit := q.cfg.MaxWaiters; q.size.Load() >= 2*int64(limit) {
		return waiterLimit(limit)
	}
	q.mu.Lock()
	half := store.HalfOf(b.id)
	q.attempts[half] = append(q.attempts[half], b)
	q.enterKey(b)
	q.size.Add(1)
	if !b.onlyRecalls {
		q.needs.Begin(hearing.News) // before the store is asked
	}
	q.obs.Waits(b.req.Key, 1) // before another goroutine can find the attempt here and count it as left
	q.mu.Unlock()
	return nil
}

func (q *Queue) remove(b *Attempt) {
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
	if !b.onlyRecalls {
		q.needs.End(hearing.News)
	}
	q.obs.Waits(b.req.Key, -1)
	q.leaveKey(b, holds)
}

// has reports whether an attempt is queued, or is about to be. The caller holds q.mu.
func (q *Queue) has(b *Attempt) bool { return slices.Contains(q.attempts[store.HalfOf(b.id)], b) }

// each yields all attempts. The caller holds q.mu.
func (q *Queue) each(yield func(*Attempt) bool) {
	for _, attempts := range q.attempts {
		for _, b := range attempts {
			if !yield(b) {
				return
			}
		}
	}
}

// Empty reports whether no attempt is queued, or may be.
func (q *Queue) Empty() bool { return q.size.Load() == 0 }

// keys is the number of keys with attempts that are queued, or may be.
func (q *Queue) keys() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.byKey {
		if l.attempts > 0 {
			n++
		}
	}
	return n
}

// Length is the number of this sidecar's calls that wait for a key.
func (q *Queue) Length(key string) int {
	if q.Empty() {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byKey[key]; l != nil {
		return l.attempts
	}
	return 0
}

// those returns the matching attempts that are queued, or may be.
func (q *Queue) those(match func(*Attempt) bool) []*Attempt {
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

// WaitingUnder returns the attempts that wait under a lease.
func (q *Queue) WaitingUnder(l *heartbeat.Lease) []*Attempt {
	return q.those(func(b *Attempt) bool { return b.Lease() == l })
}

// Waiting returns the attempts that are queued, or may be.
func (q *Queue) Waiting() []*Attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(q.each)
}

// CancelAll makes all waiting attempts hand back what they win.
func (q *Queue) CancelAll() {
	for _, b := range q.Waiting() {
		b.Cancel()
	}
}

// News passes a grant or a hint of the store to its attempt. If there is none, its outcome is known already. It does not block.
func (q *Queue) News(n store.News) {
	q.mu.Lock()
	named := slices.Clone(q.attempts[store.HalfOf(n.ID)])
	q.mu.Unlock()
	if n.IsHint() {
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
	b.win(&ans, time.Time{})
}
