package locksidecar

import (
	"context"
	"errors"
	"time"
)

const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// forEver is a patience without limit.
const forEver = time.Duration(-1)

// patience limits how long a call goes on in an outage of the sidecar, such as its restart.
type patience struct {
	limit time.Duration
	until time.Time // zero: there is no outage
	next  time.Duration
}

var errImpatient = errors.New("the outage lasts too long")

// pause waits before the next try. If the limit is over, it returns cause. If ctx ends, it returns its cause.
func (p *patience) pause(ctx context.Context, cause error) error {
	now := time.Now()
	if p.until.IsZero() {
		p.until, p.next = now.Add(max(p.limit, 0)), firstPause
	}
	wait := p.next
	if p.limit != forEver {
		left := p.until.Sub(now)
		switch {
		case left <= 0 && cause != nil:
			return cause
		case left <= 0:
			return errImpatient
		}
		wait = min(wait, left)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.next = min(2*p.next, longestPause)
	return nil
}

// renew: the sidecar has answered.
func (p *patience) renew() { p.until = time.Time{} }
