package locksidecar

import (
	"context"
	"errors"
	"time"
)

// campaignPause is the pause between two campaigns in an outage, if the sidecar does not name one.
const campaignPause = time.Second

// Lead waits until it is the leader, and runs a function for the term. The function's context ends when the lock is lost, somebody
// asks to stop, or ctx ends; its cause says which. At the end of a term Lead campaigns again. If the function returns while
// its term lasts, Lead gives up the leadership and returns its error. Another error of the function than that of its context ends Lead,
// too. A campaign goes on through an outage of the sidecar or its store, if the client has reached them before.
//
// While the sidecar answers, the function hears at once of a loss, or that somebody asks to stop. If the sidecar hangs, the lock is lost when its lease has ended by
// this process's clock, 0.3 s later at most. A process that was suspended hears of it when it goes on. So pass the token to what the leader changes.
//
// The errors are those of the function, as above; that of ctx, if it ends a campaign (if it ends a term, Lead returns what the function returns); [ErrClosed] after
// Close; and each error of [Client.Acquire] that will not pass, such as [ErrInvalidRequest] and [ErrForbidden]. As long as the client has not reached a sidecar, these
// are also [ErrUnavailable], [ErrLimitReached] and [ErrSessionEnded].
//
// Use options such as [Data], which [Client.Leader] returns to others.
func (c *Client) Lead(ctx context.Context, key string, run func(ctx context.Context, lock *Lock) error, opts ...Option) error {
	for {
		lock, err := c.Acquire(ctx, key, opts...)
		if err != nil {
			if !c.mayReturn(ctx, err) {
				return err
			}
			if err := c.rest(ctx, err); err != nil {
				return err
			}
			continue
		}
		over, err := c.term(ctx, lock, run)
		if over || ctx.Err() != nil {
			return err
		}
	}
}

// ErrStopRequested is the cause of the context of Lead's function when somebody has asked the leader to stop.
var ErrStopRequested = errors.New("locksidecar: the holder was asked to stop")

// term runs the function for one term. over: Lead ends with the error.
func (c *Client) term(ctx context.Context, lock *Lock, run func(context.Context, *Lock) error) (over bool, err error) {
	var ended error
	err = doUnder(ctx, Locks{lock}, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-lock.Stopping():
				cancel(ErrStopRequested)
			case <-ctx.Done():
			}
		}()
		err := run(ctx, lock)
		ended = context.Cause(ctx)
		cancel(nil)
		<-watched
		return err
	}, nil)
	if ended == nil && (err == nil || !errors.Is(err, ErrLockLost)) {
		return true, err
	}
	// The term has ended before the function, or by the release. Only other errors than the end's own are the function's.
	isEnd := err == nil || errors.Is(err, ErrLockLost) || errors.Is(err, ErrStopRequested) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return !isEnd, err
}

// mayReturn reports whether a sidecar that was there before may grant the lock later.
func (c *Client) mayReturn(ctx context.Context, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ctx.Err() == nil && c.connected && !c.closed &&
		(errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLimitReached) || errors.Is(err, ErrSessionEnded) || errors.Is(err, ErrLockLost))
}

// rest waits before the next try.
func (c *Client) rest(ctx context.Context, after error) error {
	wait := campaignPause
	var e *Error
	if errors.As(after, &e) && e.RetryAfter > 0 {
		wait = e.RetryAfter
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return c.t.failure(ctx, call{method: "PUT", path: "/v1/locks"}, ctx.Err())
	case <-c.t.life.Done():
		return closedError()
	}
}
