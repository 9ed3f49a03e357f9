package batcher

import (
	"context"
	"time"
)

// Join lets the batches of two lanes share an operation, which flush carries out. It saves the cost of a second
// request. Its two errors are those of the two lanes. If only one lane has items, that lane's own operation runs. It must be
// called before the first item, for lanes that are not Inline.
func Join[T, R, U, S any](a *Lane[T, R], b *Lane[U, S], flush func(context.Context, []T, []U) ([]R, error, []S, error)) {
	j := &joined[T, R, U, S]{a, b, flush}
	a.gate = &gate{waiting: func() bool { return len(a.queue)+len(b.queue) > 0 }, run: j.runBatches}
	b.gate = a.gate
}

type joined[T, R, U, S any] struct {
	a     *Lane[T, R]
	b     *Lane[U, S]
	flush func(context.Context, []T, []U) ([]R, error, []S, error)
}

// runBatches runs batches of both lanes until both queues are empty.
func (j *joined[T, R, U, S]) runBatches() {
	for {
		j.a.mu.Lock()
		if !j.a.waiting() {
			j.a.running = false
			j.a.shrink()
			j.b.shrink()
			j.a.mu.Unlock()
			return
		}
		as, bs := j.a.next(), j.b.next()
		j.a.mu.Unlock()
		j.carryOut(as, bs)
		j.a.reuse(as)
		j.b.reuse(bs)
	}
}

func (j *joined[T, R, U, S]) carryOut(as []entry[T, R], bs []entry[U, S]) {
	if len(as) > 0 && len(bs) > 0 && j.a.ctx.Err() == nil && j.b.ctx.Err() == nil {
		sent := time.Now()
		rs, errA, ss, errB := j.operate(as, bs)
		j.a.answer(as, rs, errA, sent)
		j.b.answer(bs, ss, errB, sent)
		return
	}
	if len(as) > 0 {
		j.a.carryOut(as)
	}
	if len(bs) > 0 {
		j.b.carryOut(bs)
	}
}

// operate runs an operation for both lanes. It ends when one of them runs out of time.
func (j *joined[T, R, U, S]) operate(as []entry[T, R], bs []entry[U, S]) (rs []R, errA error, ss []S, errB error) {
	ctx, cancel := context.WithTimeout(j.a.ctx, min(j.a.cfg.Timeout, j.b.cfg.Timeout))
	defer cancel()
	defer context.AfterFunc(j.b.ctx, cancel)()
	operation := ctx
	if calls := j.b.callsOf(bs); len(calls) > 0 {
		traced, end := j.b.cfg.Trace(ctx, calls)
		operation = traced
		defer func() { end(errB) }()
	}
	if calls := j.a.callsOf(as); len(calls) > 0 {
		traced, end := j.a.cfg.Trace(ctx, calls)
		operation = traced
		defer func() { end(errA) }()
	}
	rs, errA, ss, errB = j.flush(operation, j.a.itemsOf(as), j.b.itemsOf(bs))
	return rs, counted(rs, len(as), errA), ss, counted(ss, len(bs), errB)
}
