package attempt

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// arrivals keeps, for each key, the waiting calls that are not in the store's queue yet, in their order. The
// first call asks for the key. The others are queued together when earlier calls can no longer be queued, and
// when their gathering ends: see MaxGather.
type arrivals struct {
	enqueue func([]*Arrival)
	gathers func(key string, ready int) time.Duration

	mu   sync.Mutex
	keys map[string]*crowd
}

type crowd struct {
	first, last *Arrival
	// moving: a goroutine takes arrivals from the front.
	moving bool
	// ready were taken from the front, and are gathered, unless one of them hurries.
	ready   []*Arrival
	hurries bool
	timer   *time.Timer // ends the gathering; nil: it has not begun
	until   time.Time   // when the timer ends it
}

// Arrival is the position of one attempt among those for the same key.
type Arrival struct {
	at  *arrivals
	key string
	// behind: an earlier attempt exists, so the key is hardly free, and this one does not ask.
	behind bool

	// The mutex of arrivals guards the following fields. attempt is to be queued, traced in ctx; nil: it leaves.
	decided bool
	attempt *Attempt
	ctx     context.Context
	next    *Arrival
}

// newArrivals makes arrivals. enqueue queues arrivals of one key in their order. gathers returns how long this
// number of arrivals waits for others before that. Neither may block.
func newArrivals(enqueue func([]*Arrival), gathers func(key string, ready int) time.Duration) *arrivals {
	return &arrivals{enqueue: enqueue, gathers: gathers, keys: make(map[string]*crowd)}
}

// join takes the last position for the key of a request that waits. The attempt then calls decide or Leave.
func (as *arrivals) join(req *types.Request) *Arrival {
	as.mu.Lock()
	defer as.mu.Unlock()
	a, k := &Arrival{at: as, key: req.Key}, as.keys[req.Key]
	if k == nil {
		as.keys[a.key] = &crowd{first: a, last: a}
		return a
	}
	a.behind = true
	if k.first == nil { // all others are just being queued
		k.first = a
	} else {
		k.last.next = a
	}
	k.last = a
	return a
}

// enqueue queues the attempt after all earlier ones. It does not block.
func (b *Attempt) enqueue(ctx context.Context) {
	b.mu.Lock()
	b.phase = arrived
	b.shared = 0 // another holder has the key, so the shared grant is over
	left := b.unwanted || b.timeUp
	b.mu.Unlock()
	if left {
		b.cancel()
		return
	}
	if err := waitsForItself(b.s, b.req); err != nil {
		b.Finish(err)
		return
	}
	b.arrival.decide(ctx, b)
}

// waitsForItself is the error of a request that would wait for a key of its own session, if only its own connection could
// release it. In an explicit session, another connection may.
func waitsForItself(s *holdings.Session, req *types.Request) error {
	if s == nil || s.Explicit() {
		return nil
	}
	held, share := s.Owns(req.Key)
	switch {
	case !held:
		return nil
	case share && !req.Shared:
		return types.Invalidf("field wait_ms", "lock %q: this session has a share of it, which cannot become exclusive; release it and acquire", req.Key)
	}
	return types.Invalidf("field wait_ms", "lock %q is held by this session, so the call would wait for itself; release the lock first", req.Key)
}

// Leave gives the position up, unless it was decided. A queued attempt must have left the queue before.
func (a *Arrival) Leave() {
	as := a.at
	as.mu.Lock()
	defer as.mu.Unlock()
	a.decided = true
	if k := as.keys[a.key]; k != nil {
		k.ready = slices.DeleteFunc(k.ready, func(other *Arrival) bool { return other == a })
		as.goOn(a.key, false)
	}
}

// decide lets b be queued after all earlier attempts. Only the first decision counts.
func (a *Arrival) decide(ctx context.Context, b *Attempt) {
	as := a.at
	as.mu.Lock()
	defer as.mu.Unlock()
	if a.decided {
		return
	}
	a.decided, a.ctx, a.attempt = true, ctx, b
	as.goOn(a.key, false)
}

// reconsider must be called when ready arrivals for a key may have to wait for less time.
func (as *arrivals) reconsider(key string) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.goOn(key, false)
}

// goOn queues the ready arrivals for a key. If must is false, it may leave them to be gathered. The caller
// holds as.mu, which is unlocked in between.
func (as *arrivals) goOn(key string, must bool) {
	k := as.keys[key]
	if k == nil || k.moving {
		return
	}
	// The crowd stays in the map until all of them are queued, because later arrivals must come after them.
	var most time.Duration
	for k.moving = true; k.takeReady(); {
		if most = as.gathers(key, len(k.ready)); most > 0 && !must && !k.hurries {
			break
		}
		ready := k.ready
		k.ready, k.hurries = nil, false
		k.stopTimer()
		as.mu.Unlock()
		as.enqueue(ready)
		as.mu.Lock()
	}
	k.moving = false
	switch {
	case len(k.ready) == 0:
		k.stopTimer() // all of them may have left
		if k.first == nil {
			delete(as.keys, key)
		}
	case k.timer == nil:
		k.until = time.Now().Add(most)
		k.timer = time.AfterFunc(most, func() {
			as.mu.Lock()
			defer as.mu.Unlock()
			as.goOn(key, true)
		})
	case time.Until(k.until) > most: // no call of the sidecar is in the queue or has the key any more
		k.until = time.Now().Add(most)
		k.timer.Reset(most)
	}
}

// takeReady takes the decided arrivals from the front, and reports whether any are ready.
func (k *crowd) takeReady() bool {
	for ; k.first != nil && k.first.decided; k.first = k.first.next {
		if b := k.first.attempt; b != nil {
			k.ready, k.hurries = append(k.ready, k.first), k.hurries || b.hurries()
		}
	}
	return len(k.ready) > 0
}

func (k *crowd) stopTimer() {
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}

func (aq *Acquirer) enqueueAll(all []*Arrival) {
	asks := make([]batcher.Submission[store.Ask, store.Answer], 0, len(all))
	attempts := make([]*Attempt, 0, len(all))
	for _, a := range all {
		if b := a.attempt; b.beginEnqueue() {
			asks = append(asks, batcher.Submission[store.Ask, store.Answer]{Ctx: b.enqueueContext(a.ctx), Item: b.askToWait(), Done: b.onEnqueue})
			attempts = append(attempts, b)
		}
	}
	if err := aq.lanes.Enqueues.SubmitAll(asks); err != nil {
		for _, b := range attempts {
			b.Finish(err)
		}
	}
}

// beginEnqueue records that the attempt is about to be queued. It returns false if the attempt is over.
func (b *Attempt) beginEnqueue() bool {
	b.mu.Lock()
	if b.phase != arrived {
		b.mu.Unlock()
		return false
	}
	b.phase, b.sent = enqueuing, b.aq.clk.Now()
	b.mu.Unlock()
	b.inQueue.Store(true)
	err := b.aq.queue.add(b)
	if err == nil && b.Lease().Lost() { // the lease may have been lost before the attempt was in the queue
		err = ErrAttemptLost
	}
	if err != nil {
		b.Finish(err)
	}
	return err == nil
}

func (b *Attempt) askToWait() store.Ask {
	a := b.ask()
	a.Wait = true
	return a
}

// enqueueContext returns ctx with the span of the wait. The holder is known from an answer or from this sidecar.
func (b *Attempt) enqueueContext(ctx context.Context) context.Context {
	if b.tr == nil {
		return ctx
	}
	var lock store.Lock
	b.mu.Lock()
	if b.seen != nil {
		lock = *b.seen
	}
	b.mu.Unlock()
	if h := b.aq.holdings.Get(b.req.Key); lock.Key == "" && h != nil {
		lock = h.State()
	}
	b.tr.Enqueue(&lock)
	return b.tr.Carry(ctx)
}

// The sidecar serves calls that are directly behind each other in the store's queue without a statement for each:
// see cohort.go. If the calls of several pods were queued one by one, they would alternate, and each grant would be
// a hand-off with a flush and news. So if calls of this sidecar have just left the queue, a new call is gathered
// with those that come after it, until as many came as left. They are queued together, in their order. While calls of
// the sidecar are still in the queue, this delays nobody, because the queue is not empty meanwhile.
//
// If no other sidecar has asked for the key for a while, nothing can alternate, and the present cohort serves each
// call that is queued. Then calls are not gathered.

const (
	// MaxGather limits how long a call is gathered. If it is less, the limit is half of the time that the last call
	// has waited. If no call left the queue for that time, the key changes hands slowly, and calls are not gathered.
	MaxGather = 50 * time.Millisecond
	// If no call of the sidecar is in the queue or has the key, the limits are a part of these, because the key may be
	// free soon: 2 ms, and a sixteenth of the time that the last call has waited.
	lastOnes, lastWaited = 25, 8
	// aloneAfter is for how long calls are gathered after one of another sidecar was ahead of them.
	aloneAfter = 2 * MaxGather
)

// gathers returns how long this number of ready arrivals waits for others before they are queued.
func (aq *Acquirer) gathers(key string, ready int) time.Duration {
	if aq.inline { // its statements cost no round trip
		return 0
	}
	aq.queue.mu.Lock()
	defer aq.queue.mu.Unlock()
	l, now := aq.queue.byKey[key], aq.clk.Now()
	if l == nil || ready >= l.left || l.alone != (time.Time{}) && now.Sub(l.alone) > aloneAfter {
		return 0
	}
	most := min(l.waited/2, MaxGather)
	if l.inStore == 0 && !l.holds {
		most = min(l.waited/2/lastWaited, MaxGather/lastOnes)
	}
	if now.Sub(l.moved) < most {
		return most
	}
	return 0
}

// hurries reports whether the call's wait ends soon. Such a call is not gathered, because it could time out
// while it might get the lock in the queue.
func (b *Attempt) hurries() bool {
	return b.req.Wait > 0 && b.req.Wait-b.aq.clk.Now().Sub(b.began) < 2*MaxGather
}

// line counts the attempts for one key that are queued, or may be. It stays for a while after the last one.
type line struct {
	attempts int
	// inStore is how many of them are certainly in the store's queue.
	inStore int
	// left is how many have left the store's queue since another one was queued.
	left int
	// moved is when the last one left, whose call had waited for the time waited, or when its release was confirmed.
	// moved is zero if another one was queued since, because the next one should follow directly.
	moved  time.Time
	waited time.Duration
	// holds: the last one that left got the key, and the store has not confirmed its release.
	holds bool
	// alone is since when no call of another sidecar was ahead of one that was queued; zero: of the last one.
	alone time.Time
}

// joinLine records that the attempt is about to be queued. The caller holds q.mu.
func (q *queue) joinLine(b *Attempt) {
	l := q.byKey[b.req.Key]
	if l == nil {
		l = &line{}
		q.byKey[b.req.Key] = l
	}
	l.attempts++
	l.moved, l.left = time.Time{}, 0
}

// leftLine records that the attempt has left the queue, and whether it holds the key now. The caller holds q.mu.
func (q *queue) leftLine(b *Attempt, holds bool) {
	key := b.req.Key
	l := q.byKey[key]
	if b.inStore {
		l.inStore--
		l.left++
		l.moved = q.clk.Now()
		l.waited = l.moved.Sub(b.began)
		l.holds = holds
	}
	if l.attempts--; l.attempts > 0 {
		return
	}
	time.AfterFunc(aloneAfter, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.attempts == 0 && q.byKey[key] == l {
			delete(q.byKey, key)
		}
	})
}

// holds reports whether a session got an exclusive lock by the attempt.
func (b *Attempt) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.phase == over && b.err == nil && b.req.Bind == types.BindSession && !b.req.Shared
}

// Freed must be called when the store has confirmed the release of an exclusive lock of a session that was in the queue.
// Only then can that session's call come back, so others wait for it a little longer.
func (aq *Acquirer) Freed(key string) {
	if aq.queue.freed(key) {
		aq.arrivals.reconsider(key)
	}
}

// freed reports whether calls are gathered differently now.
func (q *queue) freed(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil || !l.holds {
		return false
	}
	l.holds = false
	if !l.moved.IsZero() {
		l.moved = q.clk.Now()
	}
	return true
}
