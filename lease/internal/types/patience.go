package types

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Patience is how long a call waits for the store, counted from the call: for the statement under way, for its lease, and for its
// own statement together. timeout is that of one statement. Patience is a little longer, so that a statement that is sent
// at once ends with the error of the store, which says more.
func Patience(timeout time.Duration) time.Duration { return timeout + timeout/10 }

// PatienceTimer tells calls that their [Patience] is over. Calls that begin about together share a timer. A timer for each call, and a
// context for each release, took 5% of the pairs of 64 connections on PostgreSQL (go run ./bench -only turns).
type PatienceTimer struct {
	Timeout time.Duration // of one statement

	mu    sync.Mutex
	began time.Time // when the first of the calls with over began
	over  chan struct{}
}

// Over is closed when the patience of a call that begins now is over: after 1.025 to 1.05 of the timeout.
func (p *PatienceTimer) Over() <-chan struct{} {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := now.Sub(p.began); p.over == nil || since < 0 || since > p.Timeout/40 {
		over := make(chan struct{})
		p.began, p.over = now, over
		time.AfterFunc(p.Timeout+p.Timeout/20, func() { close(over) })
	}
	return p.over
}

// Silence is the error of a call whose [Patience] is over. asked: the store was asked, so the outcome is unknown.
func Silence(op string, timeout time.Duration, asked bool) error {
	return &store.Error{Op: op, Err: fmt.Errorf("%w: %w", NoAnswer(timeout), context.DeadlineExceeded), Unknown: asked}
}

// NoAnswer is the cause of the end of a context whose time for the store is over.
func NoAnswer(within time.Duration) error {
	return fmt.Errorf("the store has not answered for %s", within)
}

// WithCause adds to the error of a store why its context has ended. The driver of a database only says that a deadline was exceeded, and not whose.
func WithCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// Within limits a call to its [Patience]. The error is then that of [Left].
func Within(call context.Context, op string, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(call, Patience(timeout), Silence(op, timeout, true))
}

// Left is the error of a call whose context has ended: [ErrCallerLeft], or [Silence] if its time is over.
func Left(ctx context.Context) error {
	cause := context.Cause(ctx)
	if silence, ok := errors.AsType[*store.Error](cause); ok {
		return silence
	}
	return errors.Join(ErrCallerLeft, cause)
}
