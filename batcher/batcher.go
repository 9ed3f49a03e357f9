// Package batcher combines calls of many goroutines into few operations.
//
// A [Lane] runs at most one operation at a time. Items that arrive meanwhile form the next batch. So a lone
// call starts at once and many calls share a statement, without a timer. As many items
// of a key share a batch as the lane allows (PerKey). The next ones wait for a later batch, so none overtakes an
// earlier item of its key.
//
// An accepted item is answered exactly once. The operation runs under a context of the lane with a time
// limit, which callers cannot cancel. So if a caller gives up, the outcome of the operation is not lost:
// the caller's callback still receives it.
//
// Two lanes may be joined: then their batches share an operation.
//
// An answer may say that an item's row is locked at present. Such an item is tried again beside the
// batches, and later items of its key wait behind it. So it delays only its own key. See slow.go.
package batcher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// ErrStopped is returned for items that come after Stop, or that would wait for room after [Config].Refuse
// is closed.
var ErrStopped = errors.New("batcher: stopped")

// Config describes a lane.
type Config struct {
	// Max limits the items in one operation.
	Max int
	// Room limits the items that wait or run; further ones wait in Submit. 0 means no limit, for items that
	// are limited elsewhere.
	Room int
	// Refuse, if set, is closed when items may no longer wait for room. Items for which there is room are
	// accepted until Stop.
	Refuse <-chan struct{}
	// Timeout limits one operation.
	Timeout time.Duration
	// PerKey limits the items with the same key in one batch; 0 means one. They are in their order, and items behind
	// one with a locked row still wait. The limit keeps a frequent key from filling the batches.
	PerKey int
	// Inline runs each item at once, alone, in the caller's goroutine. It is for operations that take
	// microseconds and never block.
	Inline bool
	// Trace, if set, begins the trace of each operation that is not Inline. ctx is the lane's, calls are the
	// contexts of the items, in their order. The operation runs under the returned context, which must be
	// derived from ctx; then end is called. If Trace is nil, the lane does not keep contexts.
	Trace func(ctx context.Context, calls []context.Context) (traced context.Context, end func(error))
}

// Lane combines items of one kind.
type Lane[T, R any] struct {
	cfg    Config
	key    func(T) string
	flush  func(context.Context, []T) ([]R, error)
	locked func(R) bool
	one    func(context.Context, T) (R, error) // set by Alone, otherwise nil
	room   chan struct{}
	ones   sync.Pool // of *[1]T, for Inline

	// ctx ends when Stop runs out of time.
	ctx    context.Context
	giveUp context.CancelFunc

	*gate
	// queue has at most PerKey entries of each key, and keys has the others. Otherwise every batch would read all
	// entries of a frequent key.
	queue   []entry[T, R]
	keys    map[string]keyed[T, R]
	crowded bool // a burst came since the lane was idle
	stopped bool
	slow    slowPath[T, R]
	work    sync.WaitGroup

	// spare and items are the arrays of the previous batch, which the next one uses again.
	spare []entry[T, R]
	items []T
}

// gate lets one operation run at a time. Its mutex guards its lanes: one, or two that are joined.
type gate struct {
	mu      sync.Mutex
	running bool
	waiting func() bool // whether a lane has items
	run     func()      // runs batches until no lane has items
}

// keyed are the entries of a key.
type keyed[T, R any] struct {
	queued int           // in the lane's queue
	later  []entry[T, R] // behind them
}

type entry[T, R any] struct {
	item T
	done func(R, error)
	// since is when the item was first sent, or began to wait behind an item with a locked row.
	since time.Time
	// ctx is that of the Submit, for Trace; otherwise nil.
	ctx context.Context
}

// New makes a lane. key says which items must not share a batch. flush runs a batch. It returns one answer
// for each item in the same order, or an error for all, and does not keep the slice of items. locked
// reports answers that mean that the row was locked and nothing was done. Such an item is tried again until
// the lane's timeout, and then gets this answer. locked may be nil; Inline lanes do not use it.
func New[T, R any](cfg Config, key func(T) string, flush func(context.Context, []T) ([]R, error), locked func(R) bool) *Lane[T, R] {
	l := &Lane[T, R]{cfg: cfg, key: key, flush: flush, locked: locked, keys: make(map[string]keyed[T, R])}
	l.cfg.PerKey = max(1, cfg.PerKey)
	l.gate = &gate{waiting: func() bool { return len(l.queue) > 0 }, run: l.runBatches}
	l.slow.init()
	l.ones.New = func() any { return new([1]T) }
	l.ctx, l.giveUp = context.WithCancel(context.Background()) //nolint:gosec // Stop calls it
	if cfg.Room > 0 && !cfg.Inline {
		l.room = make(chan struct{}, cfg.Room)
	}
	return l
}

// Alone sets the operation of an Inline lane for a single item, which runs instead of flush, without
// slices. It must be called before the first item.
func (l *Lane[T, R]) Alone(one func(context.Context, T) (R, error)) { l.one = one }

// Submit adds an item. If it returns nil, done will be called exactly once, by another goroutine or
// (Inline) before Submit returns. So the caller must not hold a mutex that done locks. While the lane is
// full, Submit waits until ctx ends. It returns ctx's error or ErrStopped; then done is not called.
func (l *Lane[T, R]) Submit(ctx context.Context, item T, done func(R, error)) error {
	return l.submit(ctx, item, done, false)
}

// Do is Submit for a caller that only waits for its answer. If the lane is idle, the caller's goroutine runs the
// operation with this item alone, and done is called before Do returns (unless the row is locked). This avoids
// waking another goroutine, which is most of the cost of a lone call here. Other goroutines run the later items. A
// caller that may have to leave before the operation ends, after at most the lane's Timeout, must not use Do.
func (l *Lane[T, R]) Do(ctx context.Context, item T, done func(R, error)) error {
	return l.submit(ctx, item, done, true)
}

func (l *Lane[T, R]) submit(ctx context.Context, item T, done func(R, error), here bool) error {
	if l.room != nil {
		select {
		case l.room <- struct{}{}:
		default:
			select {
			case l.room <- struct{}{}:
			case <-l.cfg.Refuse:
				return ErrStopped
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		l.leave(1)
		return ErrStopped
	}
	l.work.Add(1)
	if l.cfg.Inline {
		l.mu.Unlock()
		l.alone(item, done)
		return nil
	}
	e := entry[T, R]{item: item, done: done}
	if l.cfg.Trace != nil {
		e.ctx = ctx
	}
	if here && !l.running && l.slow.lines[l.key(item)] == nil { // then no item waits
		l.running = true
		l.mu.Unlock()
		l.carryOutHere(e)
		l.mu.Lock()
		l.running = false
	} else {
		l.add(e)
	}
	l.goOn()
	l.mu.Unlock()
	return nil
}

// Submission is one of several items for SubmitAll.
type Submission[T, R any] struct {
	Ctx  context.Context // for Trace
	Item T
	Done func(R, error)
}

// SubmitAll is Submit for several items of a lane without Room. It keeps their order, and runs them in one
// operation if Max allows. After ErrStopped, none is accepted.
func (l *Lane[T, R]) SubmitAll(all []Submission[T, R]) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return ErrStopped
	}
	l.work.Add(len(all))
	if l.cfg.Inline {
		l.mu.Unlock()
		for _, s := range all {
			l.alone(s.Item, s.Done)
		}
		return nil
	}
	for _, s := range all {
		e := entry[T, R]{item: s.Item, done: s.Done}
		if l.cfg.Trace != nil {
			e.ctx = s.Ctx
		}
		l.add(e)
	}
	l.goOn()
	l.mu.Unlock()
	return nil
}

// goOn starts run if the queue needs it. The caller holds l.mu.
func (l *Lane[T, R]) goOn() {
	if !l.running && l.waiting() {
		l.running = true
		go l.run()
	}
}

// Stop refuses new items and returns when all accepted ones are answered. If ctx ends before, the running
// operation is cancelled, and waiting items get ErrStopped. So a store that does not answer delays Stop
// only by ctx, even with a long queue.
func (l *Lane[T, R]) Stop(ctx context.Context) {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	done := context.AfterFunc(ctx, l.giveUp)
	defer done()
	l.work.Wait()
}

// runBatches runs batches until the queue is empty. So an idle lane has no goroutine.
func (l *Lane[T, R]) runBatches() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.running = false
			l.shrink()
			l.mu.Unlock()
			return
		}
		batch := l.next()
		l.mu.Unlock()
		l.carryOut(batch)
		l.reuse(batch)
	}
}

// shrink frees the memory of a burst. The caller holds l.mu.
func (l *Lane[T, R]) shrink() {
	if l.crowded {
		l.queue, l.spare, l.items = nil, nil, nil
		l.keys = make(map[string]keyed[T, R])
		l.crowded = false
	}
}

// reuse keeps the array of a batch for the next one.
func (l *Lane[T, R]) reuse(batch []entry[T, R]) {
	clear(batch)
	l.spare = batch[:0]
}

// add queues an entry. The caller holds l.mu.
func (l *Lane[T, R]) add(e entry[T, R]) {
	k := l.key(e.item)
	if ln := l.slow.lines[k]; ln != nil {
		ln.join(e)
		return
	}
	of := l.keys[k]
	if of.queued < l.cfg.PerKey {
		of.queued++
		l.queue = append(l.queue, e)
	} else {
		of.later = append(of.later, e)
	}
	l.keys[k] = of
}

// next takes a batch from the queue. For each of its entries, one that waited for the same key is queued. The caller
// holds l.mu.
func (l *Lane[T, R]) next() []entry[T, R] {
	batch, spare := l.queue, l.spare
	l.spare, l.crowded = nil, l.crowded || len(batch) > l.cfg.Max
	if n := l.cfg.Max; len(batch) > n {
		batch = append(spare, batch[:n]...)
		clear(l.queue[:n])
		if l.queue = l.queue[n:]; len(l.queue) <= n {
			l.queue = slices.Clone(l.queue) // a lane that is always busy would keep a burst's array
		}
	} else {
		l.queue = spare
	}
	for _, e := range batch {
		k := l.key(e.item)
		of := l.keys[k]
		if len(of.later) > 0 {
			l.queue = append(l.queue, of.later[0])
			of.later[0] = entry[T, R]{}
			of.later = of.later[1:]
		} else {
			of.queued--
		}
		l.setKey(k, of)
	}
	return batch
}

// setKey records the entries of a key. The caller holds l.mu.
func (l *Lane[T, R]) setKey(k string, of keyed[T, R]) {
	if of.queued == 0 {
		delete(l.keys, k)
	} else {
		l.keys[k] = of
	}
}

func (l *Lane[T, R]) alone(item T, done func(R, error)) {
	defer l.work.Done()
	defer endProcess()
	done(l.answerTo(item))
}

func (l *Lane[T, R]) answerTo(item T) (r R, err error) {
	switch {
	case l.ctx.Err() != nil:
		return r, ErrStopped
	case l.one != nil:
		return l.one(l.ctx, item)
	}
	one := l.ones.Get().(*[1]T) //nolint:forcetypeassert // the pool contains nothing else
	one[0] = item
	answers, err := l.operate(one[:], nil)
	if err == nil {
		r = answers[0]
	}
	*one = [1]T{}
	l.ones.Put(one)
	return r, err
}

// endProcess, deferred, makes a panic in a caller's goroutine end the process. If the caller recovered, as
// servers do, the item would not get an answer, and other callers would wait for ever.
func endProcess() {
	if v := recover(); v != nil {
		go panic(fmt.Sprintf("%v\n\n%s", v, debug.Stack())) // in a goroutine without a recover
		select {}
	}
}

func (l *Lane[T, R]) carryOutHere(e entry[T, R]) {
	defer endProcess()
	l.carryOut([]entry[T, R]{e})
}

func (l *Lane[T, R]) carryOut(batch []entry[T, R]) {
	sent := time.Now()
	answers, err := l.operate(l.itemsOf(batch), l.callsOf(batch))
	l.answer(batch, answers, err, sent)
}

func (l *Lane[T, R]) itemsOf(batch []entry[T, R]) []T {
	for _, e := range batch {
		l.items = append(l.items, e.item)
	}
	return l.items
}

// answer answers the items of an operation, of which sent is the time.
func (l *Lane[T, R]) answer(batch []entry[T, R], answers []R, err error, sent time.Time) {
	if err == nil {
		batch, answers = l.setAside(batch, answers, sent)
	}
	l.leave(len(batch))
	for i, e := range batch {
		var r R
		if err == nil {
			r = answers[i]
		}
		e.done(r, err)
		l.work.Done()
	}
	clear(l.items) // answers may have pointers into it
	l.items = l.items[:0]
}

func (l *Lane[T, R]) callsOf(batch []entry[T, R]) []context.Context {
	if l.cfg.Trace == nil {
		return nil
	}
	calls := make([]context.Context, len(batch))
	for i, e := range batch {
		calls[i] = e.ctx //nolint:fatcontext // each is the context of another caller
	}
	return calls
}

func (l *Lane[T, R]) operate(items []T, calls []context.Context) (answers []R, err error) {
	if l.ctx.Err() != nil {
		return nil, ErrStopped
	}
	ctx, cancel := l.ctx, context.CancelFunc(func() {})
	if !l.cfg.Inline {
		ctx, cancel = context.WithTimeout(ctx, l.cfg.Timeout)
	}
	defer cancel()
	if len(calls) > 0 {
		var end func(error)
		ctx, end = l.cfg.Trace(ctx, calls)
		defer func() { end(err) }()
	}
	answers, err = l.flush(ctx, items)
	return answers, counted(answers, len(items), err)
}

// counted checks the number of answers.
func counted[R any](answers []R, items int, err error) error {
	if err == nil && len(answers) != items {
		return errors.New("batcher: an operation answered another number of items than it was asked")
	}
	return err
}

func (l *Lane[T, R]) leave(n int) {
	if l.room == nil {
		return
	}
	for range n {
		<-l.room
	}
}
