package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Start asks the store. If the key is known to be held, or another call has asked before, a waiting call is
// queued directly, because the store grants a free key there, too. If the call shares a grant with other calls,
// it asks, because it must find that grant instead of waiting behind it.
func (b *Attempt) Start(ctx context.Context, now time.Time) {
	if b.arrival == nil && b.req.Wait != 0 { // a key of a group, which was asked for with the others before: see answerAll
		b.arrival = b.aq.arrivals.join(b.req)
	}
	ask := b.beginAsk(now)
	if b.onlyRecalls || b.aq.queuesAtOnce(b.arrival, b.repeated) {
		b.waitInTurn(ctx)
		return
	}
	// The lane calls Acquire of the store, with all asks that wait. Do runs it in this goroutine if the lane is idle. The answer comes to onAcquire.
	submit := b.aq.lanes.Acquires.Submit
	if b.runInCaller {
		submit = b.aq.lanes.Acquires.Do
	}
	if err := submit(ctx, ask, b.onAcquire); err != nil {
		b.Finish(err)
	}
}

// queuesAtOnce reports whether a waiting attempt can skip asking for its key, because other calls came before, or the
// key is known to be held. An attempt that shares its grant with other calls must ask. a may be nil.
func (aq *Acquirer) queuesAtOnce(a *Arrival, repeated int64) bool {
	return a != nil && repeated == 0 && (a.behind || aq.knownHeld(a.key))
}

// knownHeld reports whether a session here holds the key, or a call here waits for it.
func (aq *Acquirer) knownHeld(key string) bool {
	h := aq.holdings.Get(key)
	return h != nil && h.Valid(clock.Read(aq.clk)) || aq.Queue.Length(key) > 0
}

// beginAsk returns the first question, which is sent now, and notes what its answer needs.
func (b *Attempt) beginAsk(now time.Time) store.Ask {
	b.cacheVersion, b.sent = b.aq.heldCache.Version(b.req.Key), now
	a := b.newAsk()
	a.Last = b.last()
	return a
}

// newAsk is the question of the attempt: to Acquire or to Enqueue of the store.
func (b *Attempt) newAsk() store.Ask {
	a := store.Ask{
		Attempt: b.Ref(), MinHold: b.req.MinHold, Skip: b.req.Skip, Shared: b.req.Shared, Limit: b.req.Limit,
		Data: b.req.Data, Traceparent: b.req.Traceparent, NoNews: b.onlyRecalls,
	}
	if b.Lease() != nil {
		a.Lease = b.Lease().ID()
	}
	if b.req.Bind == types.BindTTL {
		a.TTL = b.req.TTL
	} else {
		a.Session, a.Owner = b.s.Name(), b.req.Owner
	}
	return a
}

// onAcquire tells what the answer to the first question decides.
func (b *Attempt) onAcquire(ans store.Answer, err error) {
	// A grant, a failure, or a refusal that is final ends the attempt.
	if b.endBy("acquire", ans, err) {
		return
	}
	// In a quiet time nothing is granted, so a call that waits is queued as behind a holder.
	if ans.Outcome == store.Quiet {
		b.denied(types.Quiet(ans.QuietFor))
		return
	}
	// Another holder has the key. The caller learns who, and so do the next calls, from the cache. lock is a copy: otherwise each
	// answer would be on the heap, also those that grant.
	lock, sent := ans.Lock, b.lastSent()
	b.aq.learn(&lock)
	b.mu.Lock()
	b.seen, b.seenAt = &lock, sent
	b.mu.Unlock()
	b.rememberDenial(&lock, sent)
	b.denied(&types.HeldError{Lock: lock})
}

// lastSent is when the running question was sent.
func (b *Attempt) lastSent() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent
}

// endBy ends the attempt by an answer: it wins, fails or is skipped. It returns false if the answer means that the key is held.
func (b *Attempt) endBy(op string, ans store.Answer, err error) bool {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.win(&ans, b.lastSent())
	case ans.Outcome == store.Skipped:
		b.skipped(ans)
	case ans.Outcome == store.LeaseLost:
		b.storeLostLease()
	case ans.Outcome == store.RowLocked:
		b.fail(types.RowLocked(op))
	case ans.Outcome == store.LimitMismatch:
		b.Finish(&types.LimitMismatchError{Key: b.req.Key, Limit: ans.Lock.Limit, Given: b.req.Limit})
	case ans.Outcome == store.QueueFull:
		b.Finish(&types.LimitError{What: "waiters of this key", Limit: b.aq.longestQueue})
	default:
		return false
	}
	return true
}

// denied queues a call that waits. Otherwise it ends the attempt.
func (b *Attempt) denied(why error) {
	b.mu.Lock()
	leaving := b.leaving
	b.mu.Unlock()
	switch {
	case b.req.Wait != 0 && leaving == 0:
		b.waitInTurn(b.aq.ctx)
	case leaving&timeUp != 0:
		b.Finish(errTimeUp)
	default:
		b.Finish(why)
	}
}
