package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// RecallWait is for how long a call that does not wait is queued behind another sidecar that may only keep the key, from the answer that it is queued.
const RecallWait = 20 * time.Millisecond

// recallChecks are when such a call is checked, also counted from there, if its sidecar does not hear what became of the recall. The other sidecar
// needs a few milliseconds for it.
var recallChecks = [...]time.Duration{3 * time.Millisecond, 6 * time.Millisecond, 12 * time.Millisecond}

// RecallOnce lets a call that does not wait ask once more, in the queue, if it was denied by another sidecar that may keep the key for nobody. The
// queue position is the recall: the other sidecar gives the key up, or says that a session has it. Then, or after [RecallWait], the call is
// refused as others are. If somebody waits already, the key was recalled before, and RecallOnce returns false. The call does not make this sidecar hear
// news, because a connection for them may take longer than RecallWait.
func (c *Call) RecallOnce(err error) bool {
	held, denied := errors.AsType[*types.HeldError](err)
	if !denied || c.onlyRecalls || c.req.Wait != 0 {
		return false
	}
	if l := &held.Lock; !l.Kept || l.QueueLength > 0 || l.Holder.Instance == c.aq.cfg.Instance {
		return false
	}
	own := *c.req
	own.Wait = c.aq.clk.Now().Sub(c.began) + RecallWait
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
	if !ans.Lock.Kept { // the next calls are denied as this one
		b.aq.heldCache.Put(ans.Lock, b.cacheVersion, sent)
	}
	b.leave(recallOver)
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
