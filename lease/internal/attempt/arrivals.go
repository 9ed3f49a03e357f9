package attempt

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
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

	// The mutex of arrivals guards the following fields. decided: attempt is to be queued, traced in ctx; if it is nil, it has left.
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

// goOn queues the ready arrivals for a key, or leaves them to be gathered; gathered: that has ended. The caller holds as.mu, which is
// unlocked while arrivals are queued.
func (as *arrivals) goOn(key string, gathered bool) {
	k := as.keys[key]
	if k == nil || k.moving {
		return
	}
	// The crowd stays in the map until all of them are queued, because later arrivals must come after them.
	k.moving = true
	for k.takeReady() {
		if most := as.gathers(key, len(k.ready)); most > 0 && !gathered && !k.hurries {
			k.moving = false
			as.gather(key, k, most)
			return
		}
		ready := k.ready
		k.ready, k.hurries = nil, false
		k.stopTimer()
		as.mu.Unlock()
		as.enqueue(ready)
		as.mu.Lock()
	}
	k.moving = false
	k.stopTimer() // all that were gathered may have left
	if k.first == nil {
		delete(as.keys, key)
	}
}

// gather lets the ready arrivals wait for others, for at most this time from now. The caller holds as.mu.
func (as *arrivals) gather(key string, k *crowd, most time.Duration) {
	switch {
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
