package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// This is what ends a call before it has its lock. Each wait of the call sees it: for its attempt (Await), and for all else, as an open
// lease (Until). Both wait in firstOf.
//
//	what happens                         | to which calls                       | the call's error
//	the wait is over                     | wait > 0                             | Timeout
//	the store's time is over             | wait = 0; wait > 0: after the wait   | types.Silence
//	the caller leaves                    | all, by their context                | ErrCallerLeft
//	the session ends                     | calls in a session                   | ErrSessionEnded
//	a release by the call's request id   | calls with a request id              | ErrWithdrawn
//	the sidecar drains                   | all that wait                        | ErrDraining
//
// A call asks once, however short its wait is: see Until. The loss of a lease ends an attempt, but not its call: see MayGoOn.

var (
	// errTimeUp: the wait of the call is over. It also ends the call's attempt, if that has not won.
	errTimeUp = errors.New("waited in vain")
	// errStoreLate: the store's time is over.
	errStoreLate = errors.New("the store has not answered in time")
	// errMayEnter: the call should try to enter its owner's lock.
	errMayEnter = errors.New("the owner may have the lock")
)

// Await tells how a call waits for its attempt. If the call must end before, it leaves the attempt, which hands
// back what it still wins.
func (c *Call) Await(b *Attempt) (types.Grant, error) {
	if b.runInCaller && c.ctx.Err() != nil { // the caller left while this goroutine ran the statement, and could not see it
		b.Cancel()
		return types.Grant{}, types.Left(c.ctx)
	}
	if b.HasEnded() { // the frequent case; timer and channel would cost time
		return c.outcome(b)
	}
	c.startLimit()
	if c.limit.waitOver { // before the call could ask: see Until, UntilGivenUp
		b.timeIsUp()
	}
	done := b.Ends()
	for {
		err := c.firstOf(done, c.mayEnter)
		switch {
		case err == nil:
			return c.outcome(b)
		case errors.Is(err, errTimeUp):
			b.timeIsUp() // it is over when the store has said whether it was granted
			continue
		case errors.Is(err, errMayEnter):
			g, ok := c.enter()
			if !ok {
				continue
			}
			b.Cancel() // and its queue position
			return g, nil
		case errors.Is(err, errStoreLate):
			err = c.silence(true)
		}
		b.Cancel()
		return types.Grant{}, err
	}
}

// firstOf waits until something is closed, or has an element to receive. Otherwise it returns what came first: what ends the call, or
// errMayEnter. With errTimeUp and errMayEnter, the caller may go on to wait.
func (c *Call) firstOf(something, mayEnter <-chan struct{}) error {
	var sessionEnds, draining <-chan struct{}
	if c.S != nil {
		sessionEnds = c.S.Ending()
	}
	if c.req.Wait != 0 {
		draining = c.aq.draining
	}
	// A close of the connection also ends its session. If both are seen at once, either may come first: see blameCaller of package lease.
	select {
	case <-something:
		return nil
	case <-mayEnter:
		return errMayEnter
	case <-c.limit.fires():
		return c.timerFired()
	case <-c.limit.storeLate:
		return errStoreLate
	case <-c.ctx.Done():
		return types.Left(c.ctx)
	case <-sessionEnds:
		return types.ErrSessionEnded
	case <-c.withdrawn:
		return types.ErrWithdrawn
	case <-draining:
		return types.ErrDraining
	}
}

// limit is the time of a call. It begins with the call, but is started only when the call first waits for something: most calls never
// do, and need no timer.
//
//   - wait > 0: timer fires when the wait is over, and again when the store's time after it is over. The store has that time to say whether
//     the call was granted meanwhile.
//   - wait = 0: the call has only the store's time. Calls that begin about together share storeLate. One that has run for longer before has
//     a timer of its own. If it is queued to recall the key (see RecallOnce), its time goes on, and then it is refused: it was denied before.
//   - wait < 0: nothing fires.
//
// The store's time is [types.Patience], or where calls share a timer that of a [types.PatienceTimer], which is a little shorter.
type limit struct {
	timer     *time.Timer
	storeLate <-chan struct{}
	waitOver  bool
}

// startLimit starts the time of the call.
func (c *Call) startLimit() {
	l, wait, timeout := &c.limit, c.req.Wait, c.aq.cfg.StoreTimeout
	if l.timer != nil || l.storeLate != nil || wait < 0 {
		return
	}
	ran := c.aq.clk.Now().Sub(c.began)
	switch {
	case wait > 0:
		l.timer = time.NewTimer(wait - ran)
	case ran < timeout/20: // nearly always
		l.storeLate = c.aq.patience.Over()
	default:
		l.timer = time.NewTimer(types.Patience(timeout) - ran)
	}
}

// fires returns the channel of the timer, or nil.
func (l *limit) fires() <-chan time.Time {
	if l.timer == nil {
		return nil
	}
	return l.timer.C
}

// timerFired returns what the timer of the call means. After the wait, the store's time begins.
func (c *Call) timerFired() error {
	l := &c.limit
	if l.waitOver || c.req.Wait == 0 {
		return errStoreLate
	}
	l.waitOver = true
	left := types.Patience(c.aq.cfg.StoreTimeout)
	if c.onlyRecalls {
		left -= c.aq.clk.Now().Sub(c.began)
	}
	l.timer.Reset(left)
	return errTimeUp
}

// stop stops the timer.
func (l *limit) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// Until waits until something is closed, or has an element to receive. It returns why the call ends before. The end of its wait does not end a call that
// has not had its try: a call with a short wait would be refused a free key, because its sidecar was slow. It still asks the store, and the answer decides.
func (c *Call) Until(something <-chan struct{}) error {
	c.startLimit()
	err := c.firstOf(something, nil)
	if errors.Is(err, errTimeUp) && !c.hadItsTry() {
		err = c.firstOf(something, nil)
	}
	return c.whyEnded(err)
}

// hadItsTry reports whether the call has had as much as one that does not wait: the store has told it that another one has the key, or it has made that many
// attempts. A call behind others of its sidecar, which ask, has no try of its own.
func (c *Call) hadItsTry() bool {
	return c.behind || c.WasQueued || c.seen != nil || c.attempts >= MaxAttempts
}

// UntilGivenUp waits until a key is given up. Nobody has the key, so the end of the call's wait does not end that: the call still asks then, once. A call
// that does not wait ends if the store cannot be told, as its own ask would: otherwise each call for such a key would hang through an outage.
func (c *Call) UntilGivenUp(g *keep.Grant) error {
	c.startLimit()
	if c.req.Wait == 0 || c.onlyRecalls {
		try := c.aq.hastened(g)
		if err := c.firstOf(try.Ended(), nil); err != nil {
			return c.whyEnded(err)
		}
		return try.Err()
	}
	err := c.firstOf(g.GivenUp(), nil)
	if errors.Is(err, errTimeUp) {
		err = c.firstOf(g.GivenUp(), nil)
	}
	return c.whyEnded(err)
}

// whyEnded is the answer of a call that ends while it has no attempt that could still win.
func (c *Call) whyEnded(first error) error {
	switch {
	case errors.Is(first, errTimeUp):
		return c.Timeout()
	case errors.Is(first, errStoreLate):
		return c.silence(false)
	default:
		return first
	}
}

// Timeout is the error if the wait ends without the lock.
func (c *Call) Timeout() error {
	// Time may be up before the call was queued. Then position is where it would have been queued.
	now := c.aq.clk.Now()
	e := &types.TimeoutError{Lock: store.Lock{Key: c.req.Key}, Age: now.Sub(c.began), Position: c.position, Waited: now.Sub(c.began)}
	if c.seen != nil {
		e.Age = now.Sub(c.seenAt)
		e.Lock = c.seen.Aged(e.Age)
	}
	if e.Position == 0 {
		e.Position = e.Lock.QueueLength + 1
	}
	if c.onlyRecalls { // it did not wait
		return &types.HeldError{Lock: e.Lock}
	}
	return e
}

// silence is the error if the store's time is over. asked: the store was asked for the lock, so the outcome is unknown. A call that only recalls was denied
// before that.
func (c *Call) silence(asked bool) error {
	if c.onlyRecalls {
		return c.Timeout()
	}
	return types.Silence("acquire", c.aq.cfg.StoreTimeout, asked)
}
