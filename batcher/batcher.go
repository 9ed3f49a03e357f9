// Package batcher coalesces calls of many goroutines into few operations.
//
// A [Lane] has at most one operation under way. Items that arrive meanwhile form the next batch. So
// a lone call goes out at once and a crowd shares a statement, without a timer. Two items with the
// same key share a batch only if the lane says so (Together). Otherwise the later one goes with a
// later batch, and overtakes no earlier item of its key.
//
// An accepted item is always answered, exactly once. The operation runs under a context of the
// lane, limited in time, that no caller can cancel. So a caller that gives up neither loses nor
// leaks what the operation did: its callback decides what becomes of it.
//
// Some answers say only that somebody else is in an item's way for now. Such an item is asked again beside
// the batches, and later items of its key wait behind it, so it delays no other key. See slow.go.
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

// ErrStopped is returned for items that come after Stop, or that would wait for room after
// [Config].Refuse is closed.
var ErrStopped = errors.New("batcher: stopped")

// Config describes a lane.
type Config struct {
	// Max is the most items in one operation.
	Max int
	// Room is the most items that wait or are under way; more wait in Submit. 0: no limit, for
	// items that are bounded elsewhere.
	Room int
	// Refuse, if set, is closed when nobody may wait for room any more. Items for which there is
	// room are accepted until Stop.
	Refuse <-chan struct{}
	// Timeout limits one operation.
	Timeout time.Duration
	// Together: items with the same key may share a batch, in their order. Later ones still wait
	// behind a locked one.
	Together bool
	// Inline runs each item at once, alone, in the caller's goroutine, for operations that take
	// microseconds and never block.
	Inline bool
	// Trace, if set, begins the trace of each operation that is not Inline: ctx is the lane's,
	// calls are the contexts of its items, in their order. The operation runs under the returned
	// context, which must be made of ctx; then end is called. Nil: nobody's context is kept.
	Trace func(ctx context.Context, calls []context.Context) (traced context.Context, end func(error))
}

// Lane coalesces items of one kind.
type Lane[T, R any] struct {
	cfg    Config
	key    func(T) string
	flush  func(context.Context, []T) ([]R, error)
	locked func(R) bool
	one    func(context.Context, T) (R, error) // of Alone, nil without it
	room   chan struct{}
	ones   sync.Pool // of *[1]T, for Inline

	// ctx ends when Stop gives up.
	ctx    context.Context
	giveUp context.CancelFunc

	mu sync.Mutex
	// queue has at most one entry of a key, later the others: a hot key must not make every batch
	// look through all its entries. (Together: queue has all.)
	queue   []entry[T, R]
	later   map[string][]entry[T, R]
	running bool
	stopped bool
	slow    slowPath[T, R]
	work    sync.WaitGroup

	// The arrays of the batch before and of its items: who is running uses them again.
	spare []entry[T, R]
	items []T
}

type entry[T, R any] struct {
	item T
	done func(R, error)
	// since is when it first went out, or began to wait behind a locked one.
	since time.Time
	// ctx is the one of the Submit, for Trace; else nil.
	ctx context.Context
}

// New makes a lane. key tells which items must not share a batch. flush carries a batch out, returns
// one answer for each item in the same order, or an error for all, and does not keep the items' slice.
// locked tells which answers mean that nothing was done: the item is asked again for at most the lane's
// timeout, then that is its answer. locked may be nil; Inline lanes do not use it.
func New[T, R any](cfg Config, key func(T) string, flush func(context.Context, []T) ([]R, error), locked func(R) bool) *Lane[T, R] {
	l := &Lane[T, R]{cfg: cfg, key: key, flush: flush, locked: locked, later: make(map[string][]entry[T, R])}
	l.slow.init()
	l.ones.New = func() any { return new([1]T) }
	l.ctx, l.giveUp = context.WithCancel(context.Background()) //nolint:gosec // Stop calls it
	if cfg.Room > 0 && !cfg.Inline {
		l.room = make(chan struct{}, cfg.Room)
	}
	return l
}

// Alone gives an Inline lane an operation for a single item, carried out instead of flush without
// slices. Call it before the first item comes.
func (l *Lane[T, R]) Alone(one func(context.Context, T) (R, error)) { l.one = one }

// Submit hands an item in. If it returns nil, done will be called exactly once, from another goroutine
// or (Inline) before Submit returns, so callers hold no lock that done takes. It waits while the lane
// is full, until ctx ends. It returns ctx's error or ErrStopped; done is not called then.
func (l *Lane[T, R]) Submit(ctx context.Context, item T, done func(R, error)) error {
	return l.submit(ctx, item, done, false)
}

// Do is Submit by a caller that has nothing to do before its answer. If the lane is idle, the
// caller carries its item out itself, alone, and done is called before Do returns (unless the item
// is locked). This saves waking another goroutine, which is most of what a lone call costs here.
// Others carry out the items that come meanwhile, afterwards. A caller that may have to leave
// before the operation ends, after at most the lane's Timeout, must not use it.
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
	if here && !l.running && l.slow.lines[l.key(item)] == nil { // then the queue is empty, too
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

// Submission is one of several items that are handed in together.
type Submission[T, R any] struct {
	Ctx  context.Context // for Trace
	Item T
	Done func(R, error)
}

// SubmitAll is Submit for several items of a lane without Room, in their order and in one
// operation, as far as Max allows. ErrStopped: none is accepted.
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

// goOn starts run if the queue needs it. l.mu is held.
func (l *Lane[T, R]) goOn() {
	if len(l.queue) > 0 && !l.running {
		l.running = true
		go l.run()
	}
}

// Stop refuses new items and returns when all accepted ones are answered. If ctx ends before, the
// operation under way is cancelled, and what has not begun is answered with ErrStopped: a hanging
// store must not hold Stop up for a long queue.
func (l *Lane[T, R]) Stop(ctx context.Context) {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	done := context.AfterFunc(ctx, l.giveUp)
	defer done()
	l.work.Wait()
}

// run carries out batches until the queue is empty. So an idle lane costs no goroutine.
func (l *Lane[T, R]) run() {
	crowded := false
	for {
		l.mu.Lock()
		crowded = crowded || len(l.queue) > l.cfg.Max
		if len(l.queue) == 0 {
			l.running = false
			if crowded { // what a burst needed is not kept for ever
				l.queue, l.spare, l.items = nil, nil, nil
				l.later = make(map[string][]entry[T, R])
			}
			l.mu.Unlock()
			return
		}
		batch := l.next()
		l.mu.Unlock()
		l.carryOut(batch)
		clear(batch)
		l.spare = batch[:0]
	}
}

// add queues an entry. l.mu is held.
func (l *Lane[T, R]) add(e entry[T, R]) {
	k := l.key(e.item)
	if ln := l.slow.lines[k]; ln != nil {
		ln.join(e)
		return
	}
	if later, twice := l.later[k]; twice {
		l.later[k] = append(later, e)
		return
	}
	if !l.cfg.Together {
		l.later[k] = nil
	}
	l.queue = append(l.queue, e)
}

// next takes a batch off the queue. An entry that waited for one of its keys is queued. l.mu is held.
func (l *Lane[T, R]) next() []entry[T, R] {
	batch, spare := l.queue, l.spare
	l.spare = nil
	if n := l.cfg.Max; len(batch) > n {
		batch = append(spare, batch[:n]...)
		clear(l.queue[:n])
		if l.queue = l.queue[n:]; len(l.queue) <= n {
			l.queue = slices.Clone(l.queue) // a lane that never rests would use a burst's array on
		}
	} else {
		l.queue = spare
	}
	for _, e := range batch {
		k := l.key(e.item)
		if later := l.later[k]; len(later) > 0 {
			l.queue = append(l.queue, later[0])
			later[0] = entry[T, R]{}
			l.later[k] = later[1:]
		} else {
			delete(l.later, k)
		}
	}
	return batch
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
	one := l.ones.Get().(*[1]T) //nolint:forcetypeassert // nothing else is in there
	one[0] = item
	answers, err := l.operate(one[:], nil)
	if err == nil {
		r = answers[0]
	}
	*one = [1]T{}
	l.ones.Put(one)
	return r, err
}

// endProcess, deferred, makes a panic in a caller's goroutine end the process. If the caller
// recovered, as a server does, the item would have no answer, and others would wait for ever.
func endProcess() {
	if v := recover(); v != nil {
		go panic(fmt.Sprintf("%v\n\n%s", v, debug.Stack())) // where nobody recovers
		select {}
	}
}

func (l *Lane[T, R]) carryOutHere(e entry[T, R]) {
	defer endProcess()
	l.carryOut([]entry[T, R]{e})
}

func (l *Lane[T, R]) carryOut(batch []entry[T, R]) {
	for _, e := range batch {
		l.items = append(l.items, e.item)
	}
	sent := time.Now()
	answers, err := l.operate(l.items, l.callsOf(batch))
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
	clear(l.items) // answers may lie in it
	l.items = l.items[:0]
}

func (l *Lane[T, R]) callsOf(batch []entry[T, R]) []context.Context {
	if l.cfg.Trace == nil {
		return nil
	}
	calls := make([]context.Context, len(batch))
	for i, e := range batch {
		calls[i] = e.ctx //nolint:fatcontext // each is another's
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
	if err == nil && len(answers) != len(items) {
		err = errors.New("batcher: an operation answered another number of items than it was asked")
	}
	return answers, err
}

func (l *Lane[T, R]) leave(n int) {
	if l.room == nil {
		return
	}
	for range n {
		<-l.room
	}
}
