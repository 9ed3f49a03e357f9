package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/store"
)

// waitInTurn tells how an attempt waits. It does not block: the steps follow when they can.
//
//  1. The calls of the sidecar for one key are queued in the order in which they came. Those that come back to a hot key are
//     gathered first: goOn, gathers.
//  2. The store queues them with one statement: enqueueAll. The answer comes to onEnqueue, and may bring the grant.
//  3. A hand-over comes by news (Queue.News), by a check (checkWhenDue, onCheck), or from a call of this sidecar (handOn). All of
//     them end in win.
//  4. If the call must leave before, the attempt is cancelled: see leave.
func (b *Attempt) waitInTurn(ctx context.Context) {
	if leaves := b.arrive(); leaves {
		b.leave(0)
		return
	}
	if err := waitsForItself(b.s, b.req); err != nil {
		b.Finish(err)
		return
	}
	b.arrival.decide(ctx, b)
}

func (aq *Acquirer) enqueueAll(all []*Arrival) {
	asks := make([]batcher.Submission[store.Ask, store.Answer], 0, len(all))
	attempts := make([]*Attempt, 0, len(all))
	for _, a := range all {
		if b := a.attempt; b.beginEnqueue() {
			asks = append(asks, batcher.Submission[store.Ask, store.Answer]{Ctx: b.enqueueContext(a.ctx), Item: b.newAsk(), Done: b.onEnqueue})
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
	if !b.startEnqueue() {
		return false
	}
	b.inQueue.Store(true)
	err := b.aq.Queue.add(b)
	if err == nil && b.Lease().Lost() { // the lease may have been lost before the attempt was in the queue
		err = ErrAttemptLost
	}
	if err != nil {
		b.Finish(err)
	}
	return err == nil
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
		lock = b.aq.StateOf(h)
	}
	b.tr.Enqueue(&lock)
	return b.tr.Carry(ctx)
}

func (b *Attempt) onEnqueue(ans store.Answer, err error) {
	if b.endBy("enqueue", ans, err) {
		return
	}
	if len(ans.Cohort) > 0 {
		b.aq.extendCohort(&ans)
	}
	b.mu.Lock()
	if !b.toQueuedLocked() {
		b.mu.Unlock()
		b.comesLate()
		return
	}
	b.note(ans, b.sent)
	leaves, at := b.leaving != 0, b.dueAt()
	b.mu.Unlock()
	if leaves {
		b.leave(0)
		return
	}
	b.aq.Queue.queued(b, ans.Alone, at)
	if b.onlyRecalls {
		b.endRecall()
		b.refusedBy(&ans, b.lastSent())
	}
	// The call ahead left without taking the key that is kept here. The store does not recall it for this sidecar's own waiter.
	if ans.Lock.Holder.Instance == b.aq.cfg.Instance {
		b.aq.GiveUp(b.req.Key)
	}
}

// note records the queue state of the answer to a question that was sent at the given time. The caller holds b.mu.
func (b *Attempt) note(ans store.Answer, sent time.Time) {
	lock := ans.Lock
	b.aq.learn(&lock)
	b.seen, b.seenAt = &lock, sent
	if ans.Position > 0 { // some answers lack it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(firstEnd(&ans.Lock))
	b.checkAt = b.aq.Queue.nextCheck(ans.Lock)
}

// queued records that the store has queued an attempt, whether alone (see [store.Answer]), and when it must be
// checked.
func (q *Queue) queued(b *Attempt, alone bool, checkAt time.Time) {
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
