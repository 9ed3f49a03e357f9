// Package gather carries out what several callers ask for at about the same time by one request to a server.
//
// One request runs at a time, and what is asked for meanwhile goes with the next one. So a lone caller waits for nobody, and nothing is put
// off by more than the request before it, and the pause that the lane is told to make. Nobody's request depends on who else shares it: a
// caller that gives up leaves, and the request goes on for the others. When the last one has left, it is cancelled.
//
// Package batcher gathers in another way, because its items are answered one by one, keep the order of their keys, and are carried out even if their
// callers leave: a renewal needs none of that, and must be cancelled when nobody wants it.
package gather

import (
	"context"
	"sync"
	"time"
)

// Lane gathers requests for items T, whose answer R is for all of them.
type Lane[T, R any] struct {
	do    func(ctx context.Context, items []T) (R, error)
	pause func() time.Duration

	mu      sync.Mutex
	running bool
	next    *round[T, R] // not begun; nil: nobody waits
}

// round is one request.
type round[T, R any] struct {
	items []T
	// ctx ends when nobody waits for the answer any more.
	ctx     context.Context
	cancel  context.CancelFunc
	callers int
	begun   bool
	// answer and err are written before done is closed.
	done   chan struct{}
	answer R
	err    error
}

// New makes a lane. do carries a request out, and limits its time. Its context is in the trace of the first caller, has no deadline, and ends when nobody
// waits for the answer any more. pause is for how long the first caller waits for others, before each request.
func New[T, R any](pause func() time.Duration, do func(ctx context.Context, items []T) (R, error)) *Lane[T, R] {
	return &Lane[T, R]{do: do, pause: pause}
}

// LeftError says that a caller's context ended before the answer.
type LeftError struct {
	// Begun: the request may have been carried out, or may still be.
	Begun bool
	cause error
}

func (e *LeftError) Error() string { return e.cause.Error() }

func (e *LeftError) Unwrap() error { return e.cause }

// Ask adds items to the next request, and returns its answer, which all callers share and nobody may change. If ctx ends before, the
// error is a [LeftError].
func (l *Lane[T, R]) Ask(ctx context.Context, items []T) (R, error) {
	r := l.join(ctx, items)
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		var none R
		return none, &LeftError{Begun: l.leave(r), cause: ctx.Err()}
	}
}

func (l *Lane[T, R]) join(ctx context.Context, items []T) *round[T, R] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &round[T, R]{done: make(chan struct{})}
		l.next.ctx, l.next.cancel = context.WithCancel(context.WithoutCancel(ctx)) //nolint:gosec // leave and run cancel it
	}
	r := l.next
	r.items = append(r.items, items...)
	r.callers++
	if !l.running {
		l.running = true
		go l.run()
	}
	return r
}

// leave is for a caller that does not wait for the answer. It reports whether the request has begun.
func (l *Lane[T, R]) leave(r *round[T, R]) (begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.callers--; r.callers == 0 && r.begun { // before that, others may still join it
		r.cancel()
	}
	return r.begun
}

// run carries out requests until nobody waits.
func (l *Lane[T, R]) run() {
	for l.waits() {
		if pause := l.pause(); pause > 0 {
			time.Sleep(pause)
		}
		r, wanted := l.begin()
		if wanted {
			r.answer, r.err = l.do(r.ctx, r.items)
		}
		r.cancel()
		close(r.done)
	}
}

// waits reports whether there is a next request. If not, the lane is idle.
func (l *Lane[T, R]) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = l.next != nil
	return l.running
}

// begin takes the next request. wanted: somebody waits for its answer.
func (l *Lane[T, R]) begin() (r *round[T, R], wanted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, l.next = l.next, nil
	r.begun = r.callers > 0
	return r, r.begun
}
