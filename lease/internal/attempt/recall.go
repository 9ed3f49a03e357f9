package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// RecallWait is for how long a call that does not wait is queued behind another sidecar that may only keep the key, from the answer that it is queued.
const RecallWait = 20 * time.Millisecond

// recallChecks are when such a call is checked, also counted from there, if its sidecar does not hear what became of the recall. The other sidecar
// needs a few milliseconds for it.
var recallChecks = [...]time.Duration{3 * time.Millisecond, 6 * time.Millisecond, 12 * time.Millisecond}

// giveUpTakes is how long a keeper may take to give a key up, or to tell the store of its holder, before it counts as one that does not answer.
const giveUpTakes = time.Second

// RecallOnce lets a call that does not wait ask once more, in the queue, if it was denied by another sidecar that may keep the key for nobody. The
// queue position is the recall: the other sidecar gives the key up, or says that a session has it. Then, or after [RecallWait], the call is
// refused as others are. If somebody waits already, the key was recalled before, and RecallOnce returns false. It returns false, too, if the call's time is
// nearly over: the call does not wait, so that time counts from its beginning (see limit). The call does not make this sidecar hear news, because a connection
// for them may take longer than RecallWait.
func (c *Call) RecallOnce(err error) bool {
	held, denied := errors.AsType[*types.HeldError](err)
	if !denied || c.onlyRecalls || c.req.Wait != 0 {
		return false
	}
	if l := &held.Lock; !l.Kept || l.QueueLength > 0 || l.Holder.Instance == c.aq.cfg.Instance {
		return false
	}
	queued := c.aq.clk.Now().Sub(c.began) + RecallWait
	if queued > types.Patience(c.aq.cfg.StoreTimeout) {
		return false
	}
	own := *c.req
	own.Wait = queued
	c.req, c.onlyRecalls = &own, true
	c.limit.stop()
	c.limit = limit{} // that of a call that waits
	return true
}

// refusedBy ends an attempt that only recalls the key, if the holder has it for a session, or if others wait. Its question was sent at
// the given time.
func (b *Attempt) refusedBy(ans *store.Answer, sent time.Time) {
	if !b.onlyRecalls || ans.Lock.Kept && ans.Position <= 1 {
		return
	}
	b.rememberDenial(&ans.Lock, sent)
	b.leave(recallOver)
}

// rememberDenial lets the next calls be denied as this one, from the cache, by an answer to a question that was sent at the given time. A key that is kept may
// become free at any time, and the next call finds that. But a keeper that lives gives it up at [keep.MaxAge]: one that has not done so is dead, frozen
// or cut off, and its key stays until its lease ends.
func (b *Attempt) rememberDenial(lock *store.Lock, sent time.Time) {
	if !lock.Kept || lock.Holder.HeldFor > keep.MaxAge+giveUpTakes {
		b.aq.heldCache.Put(*lock, b.cacheVersion, sent)
	}
}

// endRecall ends an attempt that only recalls, and has just been queued: only now the other sidecar can have heard of it. If this sidecar hears no news,
// the attempt is checked meanwhile. The cancel finds a grant of which no news has come.
func (b *Attempt) endRecall() {
	time.AfterFunc(RecallWait, func() { b.leave(recallOver) })
	if !b.aq.hears() {
		for _, after := range recallChecks {
			time.AfterFunc(after, b.checkNow)
		}
	}
}
