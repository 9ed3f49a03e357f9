package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/store"
)

// AskAll asks for the locks of attempts with one question, which continues if the call leaves. done is called
// when the answers have come, or when the sidecar stops.
func (aq *Acquirer) AskAll(attempts []*Attempt, done func()) {
	asks := make([]store.Ask, len(attempts))
	for i, b := range attempts {
		asks[i] = b.firstAsk(aq.clk.Now())
	}
	asking := len(attempts) > 0 && aq.later.Spawn(func() {
		defer done()
		ctx, cancel := context.WithTimeout(aq.ctx, aq.cfg.StoreTimeout)
		defer cancel()
		ctx, end := aq.obs.Batch(ctx, "acquire", attempts[0].tr, len(attempts))
		answers, err := aq.ask(ctx, asks)
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
		attempts[i].unwant()
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
