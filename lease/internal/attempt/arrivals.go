package attempt

import (
	"context"
	"sync"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// arrivals keeps, for each key, the calls of this sidecar that wait for it and do not stand in
// the store's line yet, in the order in which they came. The first asks for the key. Those
// that come meanwhile ask nothing: they go into the store's line together, in their order,
// as soon as nobody before them may still go there.
type arrivals struct {
	enqueue func([]*Arrival)

	mu   sync.Mutex
	keys map[string]*crowd
}

// crowd are the arrivals at one key.
type crowd struct {
	first, last *Arrival
	// moving: somebody takes arrivals off the front.
	moving bool
}

// Arrival is the place of one attempt among those that came for the same key.
type Arrival struct {
	at  *arrivals
	key string
	// behind: another attempt was there before. It need not ask: the key will hardly be free.
	behind bool

	// The mutex of arrivals guards the fields below. attempt is queued, with the trace in
	// ctx; nil: the attempt leaves.
	decided bool
	attempt *Attempt
	ctx     context.Context
	next    *Arrival
}

// newArrivals makes arrivals that are brought into line by enqueue: those of one key that can
// go now, in their order. It must not block.
func newArrivals(enqueue func([]*Arrival)) *arrivals {
	return &arrivals{enqueue: enqueue, keys: make(map[string]*crowd)}
}

// join takes the last place at the key of a request that waits; nil: it does not wait. The
// attempt must decide or leave.
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
	if k.first == nil { // all are on their way into line in this moment
		k.first = a
	} else {
		k.last.next = a
	}
	k.last = a
	return a
}

// Leave gives the place up, unless it was decided before. a may be nil.
func (a *Arrival) Leave() {
	if a != nil {
		a.decide(context.Background(), nil)
	}
}

// decide lets an attempt be queued when all that came before have gone or left, perhaps at once;
// nil: the attempt leaves. Only the first decision counts.
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
	// The key has its crowd until all of them are on their way: whoever comes meanwhile comes
	// behind them.
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

// ready takes those off the front that can go.
func (k *crowd) ready() (ready []*Arrival) {
	for ; k.first != nil && k.first.decided; k.first = k.first.next {
		if k.first.attempt != nil {
			ready = append(ready, k.first)
		}
	}
	return ready
}

// enqueueContext begins the span of the wait, unless an earlier attempt has begun it, and
// returns ctx with it. The holder is known from an answer, or because the key is held here.
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

// enqueue goes into the queue behind all who came before. It does not block.
func (b *Attempt) enqueue(ctx context.Context) {
	b.mu.Lock()
	b.phase = arrived
	b.shared = 0 // somebody else has the key: what other calls had is over
	left := b.unwanted || b.timeUp
	b.mu.Unlock()
	if left {
		b.cancel()
		return
	}
	b.arrival.decide(ctx, b)
}

// enqueueAll asks the store for queue positions, for attempts of one key in their order.
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

// beginEnqueue notes that the attempt is about to be queued. It reports false when it is over.
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
	if err == nil && b.Lease().Lost() { // whoever lost it may not have seen the attempt here
		err = ErrAttemptLost
	}
	if err != nil {
		b.Finish(err)
	}
	return err == nil
}
