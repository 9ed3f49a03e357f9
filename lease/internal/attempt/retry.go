package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// MaxAttempts limits the attempts of a call that does not wait, or whose wait is over. Each follows a loss of the lease.
const MaxAttempts = 3

// The pauses of a call between its attempts grow from restMin to RestMax.
const (
	restMin = 50 * time.Millisecond
	RestMax = time.Second
)

// MayGoOn returns nil if another attempt may succeed after this error. It first pauses if the store is the
// cause, or if one attempt after another ends like this.
func (c *Call) MayGoOn(err error) error {
	outage := c.WasQueued && store.Unavailable(err)
	if !errors.Is(err, ErrAttemptLost) && (!outage || c.limit.waitOver) {
		return err
	}
	switch {
	case c.ctx.Err() != nil:
		return types.ErrCallerLeft
	case c.S != nil && c.S.HasEnded():
		return types.ErrSessionEnded
	case c.aq.IsDraining():
		return types.ErrDraining
	case c.limit.waitOver && c.hadItsTry():
		return c.Timeout()
	case c.req.Wait == 0 && c.attempts >= MaxAttempts:
		return &store.Error{Op: "acquire", Err: errors.New("the lease under the lock was lost")}
	case outage:
		return c.waitOut()
	case c.req.Wait != 0 && c.attempts > 1: // not the first loss
		return c.pause()
	default:
		return nil
	}
}

// waitOut pauses until another attempt may succeed.
func (c *Call) waitOut() error {
	for {
		err := c.pause()
		if err != nil || c.aq.store.Ready() == nil { // Ready sends no statement
			return err
		}
	}
}

func (c *Call) pause() error {
	c.rest = max(c.rest, restMin)
	rested := make(chan struct{})
	timer := time.AfterFunc(clock.Jittered(c.rest), func() { close(rested) })
	defer timer.Stop()
	c.rest = min(2*c.rest, RestMax)
	return c.Until(rested)
}

// mayEnterSoon reports whether a call was denied because its own owner holds the lock in the same session. The
// store may just have granted it to another call, which does not know that yet.
func (c *Call) mayEnterSoon(err error) bool {
	held, denied := errors.AsType[*types.HeldError](err)
	return denied && c.attempts < MaxAttempts && c.S.Expects(&held.Lock, c.req)
}

// awaitEntry returns nil when the call may enter, or after [RestMax] to ask once more.
func (c *Call) awaitEntry() error {
	e := c.S.ExpectEntry(c.req)
	defer e.Close()
	defer time.AfterFunc(RestMax, e.Wake).Stop()
	c.aq.Queue.hint(c.aq.Queue.those(func(b *Attempt) bool { return b.s == c.S && b.req.Key == c.req.Key }))
	return c.whyEnded(c.firstOf(e.Opens(), nil)) // it waits for its owner, not for the store: this does not start its time
}
