package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// NewPart makes the call for one key of a call for several keys that began at the given time.
func (aq *Acquirer) NewPart(ctx context.Context, s *holdings.Session, req *types.Request, began time.Time, w *repeat.Withdrawal) *Call {
	c := aq.NewCall(ctx, s, req)
	c.Admission.Key, c.ofGroup, c.began, c.tr = req.Key, true, began, aq.obs.Trace(ctx, req.Key, req.Shared)
	if w != nil {
		c.withdrawn = w.Ended()
	}
	return c
}

// Key is the key that the call asks for.
func (c *Call) Key() string { return c.req.Key }

// Repeat records the grant that other calls of the same request have; 0: none.
func (c *Call) Repeat(token int64) { c.repeated = token }

// Asked reports whether the call has made an attempt.
func (c *Call) Asked() bool { return c.attempts > 0 }

// HeldInCache answers from the cache that the key is held.
func (c *Call) HeldInCache() (store.Lock, bool) { return c.aq.HeldInCache(nil, c.req) }

// WaitsForItself is the error of a key of a group that would certainly wait for a key of its own session. A share may be granted beside
// the session's share.
func (c *Call) WaitsForItself() error {
	if c.req.Wait == 0 || c.req.Shared {
		return nil
	}
	return waitsForItself(c.S, c.req)
}

// Arrive takes the last position among the calls for the key, and reports [Acquirer.queuesAtOnce].
func (c *Call) Arrive() (came *Arrival, late bool) {
	if c.req.Wait != 0 {
		came = c.aq.arrivals.join(c.req)
	}
	return came, c.onlyRecalls || c.aq.queuesAtOnce(came, c.repeated)
}

// Leave stops the call's timer and ends its trace.
func (c *Call) Leave() {
	c.limit.stop()
	c.tr.Leave()
}

// EndWait ends the span of the wait, if there is one.
func (c *Call) EndWait(result string) { c.tr.EndWait(result) }

// AskAll asks for the locks of attempts with one question, which continues if the call leaves. done is called
// when the answers have come, or when the sidecar stops.
func (aq *Acquirer) AskAll(attempts []*Attempt, done func()) {
	asks := make([]store.Ask, len(attempts))
	for i, b := range attempts {
		asks[i] = b.beginAsk(aq.clk.Now())
	}
	asking := len(attempts) > 0 && aq.later.Spawn(func() {
		defer done()
		ctx, cancel := context.WithTimeout(aq.ctx, aq.cfg.StoreTimeout)
		defer cancel()
		ctx, end := aq.obs.Batch(ctx, "acquire", attempts[0].tr, len(attempts))
		answers, err := aq.store.Acquire(ctx, asks)
		end(err)
		aq.answerAll(attempts, answers, err)
	})
	if asking {
		return
	}
	done()
	for _, b := range attempts {
		b.Finish(batcher.ErrStopped)
	}
}

// answerAll passes the answers to the attempts of a group. First it makes all attempts after the first that was
// not granted unwanted, because the group continues as soon as one has won.
func (aq *Acquirer) answerAll(attempts []*Attempt, answers []store.Answer, err error) {
	granted := 0
	for err == nil && granted < len(attempts) && answers[granted].Outcome == store.Granted {
		granted++
	}
	for i := len(attempts) - 1; i > granted; i-- {
		attempts[i].Cancel()
	}
	for i, b := range attempts {
		switch {
		case err != nil:
			b.onAcquire(store.Answer{}, err)
		case i == granted && answers[i].Outcome == store.RowLocked:
			b.Start(b.tr.Carry(aq.ctx), aq.clk.Now()) // once more, alone, in a lane, which tries for longer
		default:
			b.onAcquire(answers[i], nil)
		}
	}
}
