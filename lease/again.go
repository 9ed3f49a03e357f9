package lease

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// maxBids limits how often a call that does not wait tries again after its lease
// was lost under it.
const maxAttempts = 3

// The pauses of a call between its attempts grow from one to the other.
const (
	restMin = 50 * time.Millisecond
	restMax = time.Second
)

// mayGoOn decides whether another attempt makes sense after one ended like this, or
// could not even begin, and rests before it if the store is the reason, or if one attempt after
// the other ends like this.
func (c *call) mayGoOn(err error) error {
	outage := c.wasQueued && store.Unavailable(err)
	if !errors.Is(err, errAttemptLost) && (!outage || c.timed) {
		return err
	}
	switch {
	case c.ctx.Err() != nil:
		return types.ErrCallerLeft
	case c.s != nil && c.s.HasEnded():
		return types.ErrSessionEnded
	case c.aq.isDraining():
		return types.ErrDraining
	case c.timed:
		return c.timeout()
	case c.req.Wait == 0 && len(c.attempts) >= maxAttempts:
		return &store.Error{Op: "acquire", Err: errors.New("the lease under the lock was lost")}
	case outage:
		return c.waitOut()
	case c.req.Wait != 0 && len(c.attempts) > 1: // lost again
		return c.pause()
	default:
		return nil
	}
}

// waitOut rests until another attempt may have better luck.
func (c *call) waitOut() error {
	for {
		err := c.pause()
		if err != nil || c.aq.ready() == nil { // which asks nobody, as hardly anybody should now
			return err
		}
	}
}

// pause rests, longer each time.
func (c *call) pause() error {
	c.startTimer()
	c.rest = max(c.rest, restMin)
	rested := make(chan struct{})
	timer := time.AfterFunc(clock.Jittered(c.rest), func() { close(rested) })
	defer timer.Stop()
	c.rest = min(2*c.rest, restMax)
	return c.until(rested)
}

// settleLast waits until nothing can change the store on behalf of the last attempt of a request
// with an id: the next one has the same attempt id, and what hands the last one back would free it.
func (c *call) settleLast() error {
	if len(c.attempts) == 0 || !c.req.SharesGrant() {
		return nil
	}
	c.startTimer()
	return c.until(c.attempts[len(c.attempts)-1].cleanedUp())
}
