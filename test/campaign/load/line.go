package load

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// Observe notes who waits for what, as the store shows it, every so often and
// until ctx ends. It goes on when the store is gone for a while, as after a kill of the server. It also notes when
// the machine was slow: a look and its pause took much longer than they should.
func Observe(ctx context.Context, store stored.View, every time.Duration, rec *history.Recorder) {
	o := &observer{rec: rec, noted: make(map[string]history.Op)}
	defer store.Close()
	for ctx.Err() == nil {
		began := history.Now()
		if lines, err := store.Lines(ctx); err == nil {
			// They were seen at one moment between these times.
			answered := history.Now()
			for _, line := range lines {
				line.Call, line.Return = began, answered
				o.note(line)
			}
		}
		rest(ctx, every)
		if now := history.Now(); now-began > int64(every+slow) {
			rec.Add(history.Op{Kind: history.Slow, Sidecar: -1, Call: began, Return: now})
		}
	}
}

// slow is how much longer a look takes where nobody can rely on the machine.
const slow = 50 * time.Millisecond

type observer struct {
	rec   *history.Recorder
	noted map[string]history.Op // the last of each key; Before is when it was last seen so
}

// note notes a queue if it is news, or has not been noted for a second.
func (o *observer) note(op history.Op) {
	last := o.noted[op.Key]
	news := op.Attempt != last.Attempt || op.Holders != last.Holders || !slices.Equal(op.Line, last.Line)
	if !news && op.Call-last.Call < int64(time.Second) {
		last.Before = op.Call
		o.noted[op.Key] = last
		return
	}
	op.Before = last.Before
	o.rec.Add(op)
	op.Before = op.Call
	o.noted[op.Key] = op
}
