package attempt

import (
	"context"
	"sync"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// arrivals keeps, for each key, the waiting calls that are not in the store's queue yet, in their order.
// The first asks for the key. The others are queued together once nobody before them may still be queued.
type arrivals struct {
	enqueue func([]*Arrival)

	mu   sync.Mutex
	keys map[string]*crowd
}

type crowd struct {
	first, last *Arrival
	// moving: a goroutine takes arrivals off the front.
	moving bool
}

// Arrival is the position of one attempt among those that came for the same key.
type Arrival struct {
	at  *arrivals
	key string
	// behind: another attempt was there before, so this one does not ask: the key is hardly free.
	behind bool

	// The mutex of arrivals guards the fields below. attempt is queued, traced in ctx; nil: it leaves.
	decided bool
	attempt *Attempt
	ctx     context.Context
	next    *Arrival
}

// newArrivals makes arrivals. enqueue queues arrivals of one key in their order. It must not block.
func newArrivals(enqueue func([]*Arrival)) *arrivals {
	return &arrivals{enqueue: enqueue, keys: make(map[string]*crowd)}
}

// join takes the last position at the key; nil: the request does not wait. The attempt decides or leaves.
func (as *arrivals) join(req *types.Request) *Arrival {
	if req.Wait == 0 {
		return nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	a, k := &Arrival{at: as, key: req.Key}, as.keys[req.Key]
	if k == nil {
		as.keys[a.key] = &crowd{first: a, last: a}
		return a
	}
	a.behind = true
	if k.first == nil { // all are being queued in this moment
		k.first = a
	} else {
		k.last.next = a
	}
	k.last = a
	return a
}

// Leave gives the position up, unless it was decided before. a may be nil.
func (a *Arrival) Leave() {
	if a != nil {
		a.decide(context.Background(), nil)
	}
}

// decide lets b be queued after all that came before; nil: it leaves. Only the first decision counts.
func (a *Arrival) decide(ctx context.Context, b *Attempt) {
	as := a.at
	as.mu.Lock()
	defer as.mu.Unlock()
	if a.decided {
		return
	}
	a.decided, a.ctx, a.attempt = true, ctx, b
	k := as.keys[a.key]
	if k.moving {
		return
	}
	// The crowd stays until all of them are queued: later arrivals must come behind them.
	for k.moving = true; k.first != nil && k.first.decided; {
		if ready := k.ready(); len(ready) > 0 {
			as.mu.Unlock()
			as.enqueue(ready)
			as.mu.Lock()
		}
	}
	if k.moving = false; k.first == nil {
		delete(as.keys, a.key)
	}
}

func (k *crowd) ready() (ready []*Arrival) {
	for ; k.first != nil && k.first.decided; k.first = k.first.next {
		if k.first.attempt != nil {
			ready = append(ready, k.first)
		}
	}
	return ready
}

// enqueueContext returns ctx with the wait's span. The holder is known from an answer or from this
// sidecar.
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

// enqueue queues the attempt behind all that came before. It does not block.
func (b *Attempt) enqueue(ctx context.Context) {
	b.mu.Lock()
	b.phase = arrived
	b.shared = 0 // somebody else has the key: the shared grant is over
	left := b.unwanted || b.timeUp
	b.mu.Unlock()
	switch {
	case left:
		b.cancel()
		return
	case b.s != nil && !b.s.Explicit(): // nobody else could release what its session holds
		if held, share := b.s.Owns(b.req.Key); held {
			b.Finish(&types.OwnKeyError{Key: b.req.Key, Upgrade: share && !b.req.Shared})
			return
		}
	}
	b.arrival.decide(ctx, b)
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

// beginEnqueue notes that the attempt is about to be queued. It reports false if it is over.
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
	if err == nil && b.Lease().Lost() { // its loss may have come before the attempt was in the queue
		err = ErrAttemptLost
	}
	if err != nil {
		b.Finish(err)
	}
	return err == nil
}
