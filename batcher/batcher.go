// Package batcher coalesces calls of many goroutines into few operations.
//
// A [Lane] has at most one operation under way. What arrives meanwhile forms the
// next batch, so that a lone call goes out at once and a crowd shares a statement:
// there is no timer and no artificial delay. Two items with the same key never
// share a batch; the later one goes with a later batch, in the order of arrival.
//
// An item that was accepted is always answered, exactly once, whether or not
// anybody still wants the answer: the operation runs under a context of its own,
// limited in time, that no caller can cancel. So a caller that gives up neither
// loses nor leaks what the operation did; its callback decides what becomes of it.
package batcher

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStopped is returned for items that come after Stop.
var ErrStopped = errors.New("batcher: stopped")

// Config describes a lane.
type Config struct {
	// Max is the most items in one operation.
	Max int
	// Room is the most items that wait or are under way; more wait in Submit.
	// 0 means no limit, for items that are bounded elsewhere.
	Room int
	// Timeout limits one operation.
	Timeout time.Duration
	// Inline runs each item at once, alone, in the caller's goroutine. It is for
	// operations that take microseconds and never block.
	Inline bool
}

// Lane coalesces items of one kind.
type Lane[T, R any] struct {
	cfg   Config
	key   func(T) string
	flush func(context.Context, []T) ([]R, error)
	room  chan struct{}

	mu      sync.Mutex
	queue   []entry[T, R]
	running bool
	stopped bool
	work    sync.WaitGroup
}

type entry[T, R any] struct {
	item T
	done func(R, error)
}

// New makes a lane. key tells which items must not share a batch; flush carries
// a batch out and returns one answer for each item in the same order, or an error
// for all.
func New[T, R any](cfg Config, key func(T) string, flush func(context.Context, []T) ([]R, error)) *Lane[T, R] {
	l := &Lane[T, R]{cfg: cfg, key: key, flush: flush}
	if cfg.Room > 0 && !cfg.Inline {
		l.room = make(chan struct{}, cfg.Room)
	}
	return l
}

// Submit hands an item in. When it returns nil, done will be called exactly
// once, from another goroutine or (Inline) before Submit returns; so callers hold
// no lock that done takes. It waits while the lane is full, until ctx ends. It
// returns ctx's error or ErrStopped; done is not called then.
func (l *Lane[T, R]) Submit(ctx context.Context, item T, done func(R, error)) error {
	if l.room != nil {
		select {
		case l.room <- struct{}{}:
		default:
			select {
			case l.room <- struct{}{}:
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
		l.carryOut([]entry[T, R]{{item, done}})
		return nil
	}
	l.queue = append(l.queue, entry[T, R]{item, done})
	start := !l.running
	l.running = true
	l.mu.Unlock()
	if start {
		go l.run()
	}
	return nil
}

// Stop refuses new items and returns when all that were accepted are answered.
func (l *Lane[T, R]) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.work.Wait()
}

// run carries out batches until the queue is empty. It exists only while there
// is work, so an idle lane costs no goroutine.
func (l *Lane[T, R]) run() {
	for {
		l.mu.Lock()
		batch := l.next()
		if len(batch) == 0 {
			l.running = false
			l.queue = nil // a burst's array is not kept for ever
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.carryOut(batch)
	}
}

// next takes the first items with different keys off the queue. l.mu is held.
func (l *Lane[T, R]) next() []entry[T, R] {
	if len(l.queue) == 1 {
		batch := []entry[T, R]{l.queue[0]}
		l.queue[0] = entry[T, R]{}
		l.queue = l.queue[:0]
		return batch
	}
	var batch, rest []entry[T, R]
	seen := make(map[string]struct{}, min(len(l.queue), l.cfg.Max))
	for i, e := range l.queue {
		if len(batch) == l.cfg.Max {
			rest = append(rest, l.queue[i:]...)
			break
		}
		k := l.key(e.item)
		if _, twice := seen[k]; twice {
			rest = append(rest, e)
			continue
		}
		seen[k] = struct{}{}
		batch = append(batch, e)
	}
	l.queue = rest
	return batch
}

// carryOut runs one operation and answers its items.
func (l *Lane[T, R]) carryOut(batch []entry[T, R]) {
	items := make([]T, len(batch))
	for i, e := range batch {
		items[i] = e.item
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if !l.cfg.Inline {
		ctx, cancel = context.WithTimeout(ctx, l.cfg.Timeout)
	}
	answers, err := l.flush(ctx, items)
	cancel()
	if err == nil && len(answers) != len(items) {
		err = errors.New("batcher: an operation answered another number of items than it was asked")
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
}

// leave makes room for n items.
func (l *Lane[T, R]) leave(n int) {
	if l.room == nil {
		return
	}
	for range n {
		<-l.room
	}
}
