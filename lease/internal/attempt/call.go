package attempt

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Call contains what the attempts of one Acquire have in common.
type Call struct {
	aq       *Acquirer
	ctx      context.Context
	S        *holdings.Session // nil with BindTTL
	req      *types.Request
	began    time.Time
	tick     clock.Tick    // when the lease was found alive; the clock was not read since
	Slot     holdings.Slot // in the session
	ofGroup  bool          // it belongs to a group
	entry    *holdings.Entrance
	attempts []*Attempt
	one      [1]*Attempt // the array of attempts while there is one
	tr       *observe.Call
	// shared is the grant that other calls of the request have, or 0.
	shared int64
	// withdrawn is closed when a release by the request id ends the call; nil without an id.
	withdrawn <-chan struct{}

	// seen is the last known lock (nil: unknown). position is the call's queue position.
	seen     *store.Lock
	position int
	// WasQueued: the call has had a queue position. After that, it waits through an outage.
	WasQueued bool
	rest      time.Duration

	timer *time.Timer
	time  <-chan time.Time // fires at the end of the wait
	timed bool             // it has fired
}

// NewCall makes a call that asks for one lock. s is nil with BindTTL.
func (aq *Acquirer) NewCall(ctx context.Context, s *holdings.Session, req *types.Request) *Call {
	return &Call{aq: aq, ctx: ctx, S: s, req: req}
}

// NewMember makes the call for one key of a call for several keys that began at the given time.
func (aq *Acquirer) NewMember(ctx context.Context, s *holdings.Session, req *types.Request, began time.Time, w *repeat.Withdrawal) *Call {
	c := aq.NewCall(ctx, s, req)
	c.Slot.Key, c.ofGroup, c.began, c.tr = req.Key, true, began, aq.obs.Call(ctx, req.Key, req.Shared)
	if w != nil {
		c.withdrawn = w.Ended()
	}
	return c
}

// Key is the key that the call asks for.
func (c *Call) Key() string { return c.req.Key }

// Share records the grant that other calls of the same request have; 0: none.
func (c *Call) Share(token int64) { c.shared = token }

// Asked reports whether the call has made an attempt.
func (c *Call) Asked() bool { return len(c.attempts) > 0 }

// HeldInCache answers from the cache that the key is held.
func (c *Call) HeldInCache() (store.Lock, bool) { return c.aq.HeldInCache(nil, c.req) }

// Leave stops the call's timer and ends its trace.
func (c *Call) Leave() {
	c.stopTimer()
	c.tr.Leave()
}

// EndWait ends the span of the wait, if there is one.
func (c *Call) EndWait(result string) { c.tr.EndWait(result) }

func (c *Call) acquire() (types.Grant, error) {
	defer c.stopTimer()
	if c.req.Wait != 0 {
		c.entry = c.S.ExpectEntry(c.req)
		defer c.entry.Close()
	}
	for {
		if g, ok := c.enter(); ok {
			return g, nil
		}
		g, err := c.try()
		if err == nil {
			return g, nil
		}
		if c.mayEnterSoon(err) {
			err = c.awaitEntry()
		} else {
			err = c.MayGoOn(err)
		}
		if err != nil {
			return types.Grant{}, err
		}
	}
}

func (c *Call) try() (types.Grant, error) {
	if err := c.SettleLast(); err != nil {
		return types.Grant{}, err
	}
	var came *Arrival
	if c.req.Wait != 0 {
		came = c.aq.arrivals.join(c.req) // before the lease, which may take time
	}
	b, err := c.NewAttempt(came)
	if err != nil {
		return types.Grant{}, err
	}
	b.runInCaller = !c.aq.inline && !c.mayEndEarly()
	b.Start(c.ctx, c.tick.Now)
	return c.Await(b)
}

// Arrive takes the last position among the calls for the key, and reports [Acquirer.isLate].
func (c *Call) Arrive() (came *Arrival, late bool) {
	if c.req.Wait != 0 {
		came = c.aq.arrivals.join(c.req)
	}
	return came, c.aq.isLate(came, c.shared)
}

// mayEndEarly reports whether the call may have to end before the store answers: when the sidecar drains while
// the call waits, or when another connection ends its session. Other calls end after the store's timeout at the
// latest, even if the store does not answer during Stop.
func (c *Call) mayEndEarly() bool { return c.req.Wait != 0 || c.S != nil && c.S.Explicit() }

// lease returns an open lease, pinned, or nil for a bind:ttl request that does not wait.
func (c *Call) lease() (*heartbeat.Lease, error) {
	c.tick = clock.Read(c.aq.clk)
	if c.began.IsZero() {
		c.began = c.tick.Now
	}
	ttl := c.req.TTL
	if c.req.Bind == types.BindTTL {
		if c.req.Wait == 0 {
			return nil, nil //nolint:nilnil // it needs no lease
		}
		ttl = c.aq.cfg.TTL // keeps the queue position
	}
	for {
		l := c.aq.leases.Pin(c.ctx, ttl)
		if err := c.opened(l); err != nil {
			l.Unpin()
			return nil, err
		}
		if l.Alive(c.tick) {
			return l, nil
		}
		l.Unpin()
		c.aq.leases.Expire(l) // it has expired, and the renewer has not noticed yet
		c.tick = clock.Read(c.aq.clk)
	}
}

func (c *Call) opened(l *heartbeat.Lease) error {
	select {
	case <-l.Opened(): // the usual case
		return l.Err()
	default:
	}
	c.StartTimer()
	err := c.Until(l.Opened())
	c.tick = clock.Read(c.aq.clk)
	if err != nil {
		return err
	}
	return l.Err()
}

// Until waits until something is closed, or returns why the call gives up before.
func (c *Call) Until(something <-chan struct{}) error {
	ending, draining := c.endings()
	select {
	case <-something:
		return nil
	case <-c.time:
		c.timed, c.time = true, nil
		return c.Timeout()
	case <-c.ctx.Done():
		return errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
	case <-ending:
		return types.ErrSessionEnded
	case <-c.withdrawn:
		return types.ErrWithdrawn
	case <-draining:
		return types.ErrDraining
	}
}

// endings are closed when the call's session ends, and for a waiting call when the sidecar drains.
func (c *Call) endings() (session, draining <-chan struct{}) {
	if c.S != nil {
		session = c.S.Ending()
	}
	if c.req.Wait != 0 {
		draining = c.aq.draining
	}
	return session, draining
}

// Await returns the attempt's outcome. If the call gives up, it leaves the attempt.
func (c *Call) Await(b *Attempt) (types.Grant, error) {
	if b.runInCaller && c.ctx.Err() != nil { // the caller left during the question
		b.CallerLeft()
		return types.Grant{}, errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
	}
	if b.IsOver() { // the frequent case; timer and channel would cost time
		return c.outcome(b)
	}
	c.StartTimer()
	ending, draining := c.endings()
	done := b.Ends()
	for {
		var err error
		select {
		case <-done:
			return c.outcome(b)
		case <-c.time:
			c.timed, c.time = true, nil
			b.timeIsUp()
			continue
		case <-c.entry.Opens():
			if g, ok := c.enter(); ok {
				b.CallerLeft() // and its queue position
				return g, nil
			}
			continue
		case <-c.ctx.Done():
			err = errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
		case <-ending:
			err = types.ErrSessionEnded
		case <-c.withdrawn:
			err = types.ErrWithdrawn
		case <-draining:
			err = types.ErrDraining
		}
		b.CallerLeft()
		return types.Grant{}, err
	}
}

func (c *Call) outcome(b *Attempt) (types.Grant, error) {
	b.mu.Lock()
	g, err := b.result, b.err
	c.learnLocked(b)
	b.mu.Unlock()
	switch {
	case err == nil:
		return c.deliver(b, g)
	case errors.Is(err, errTimeUp):
		return types.Grant{}, c.Timeout()
	case c.aq.ctx.Err() != nil:
		return types.Grant{}, types.ErrDraining // stopped; the attempt's own error does not matter
	default:
		return types.Grant{}, lanes.Refusal(c.ctx, err)
	}
}

// deliver returns what the attempt has won. It hands back a lock that was lost meanwhile.
func (c *Call) deliver(b *Attempt, g types.Grant) (types.Grant, error) {
	var told bool
	switch {
	case g.Bind == types.BindTTL:
		g.ExpiresIn -= c.aq.clk.Now().Sub(b.wonAt)
		told = g.ExpiresIn > 0
	case c.ofGroup:
		told = c.S.HasMember(&c.Slot)
	default:
		told = c.S.Publish(&c.Slot)
		g.ExpiresIn = c.Slot.Left
	}
	if told {
		return g, nil
	}
	b.CallerLeft() // even if the session has ended, because the lock may have been lost before
	if c.S != nil && c.S.HasEnded() {
		return types.Grant{}, types.ErrSessionEnded
	}
	return types.Grant{}, b.whyNotKept()
}

// learnLocked copies what an attempt knows. The caller holds b.mu.
func (c *Call) learnLocked(b *Attempt) {
	c.shared = b.shared
	if b.seen != nil && b.seen.Key != "" {
		c.seen = b.seen
	}
	if b.wasQueued {
		c.WasQueued, c.position = true, b.position
	}
}

// Timeout is the error if the wait ends without the lock.
func (c *Call) Timeout() error {
	// Time may be up before the call was queued. Then position is where it would have been queued.
	lock, position := store.Lock{Key: c.req.Key}, c.position
	if c.seen != nil {
		lock = *c.seen
	}
	if position == 0 {
		position = lock.QueueLength + 1
	}
	return &types.TimeoutError{Lock: lock, Position: position, Waited: c.aq.clk.Now().Sub(c.began)}
}

// StartTimer starts the timer for the end of the wait.
func (c *Call) StartTimer() {
	if c.timer == nil && c.req.Wait > 0 {
		c.timer = time.NewTimer(c.req.Wait - c.aq.clk.Now().Sub(c.began))
		c.time = c.timer.C
	}
}

func (c *Call) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// enter enters the lock if the call's owner has got it since the call began.
func (c *Call) enter() (types.Grant, bool) {
	if !c.req.Reentrant {
		return types.Grant{}, false
	}
	waited := c.aq.clk.Now().Sub(c.began) // before the lock's remaining time is read
	g, ok := c.S.Enter(c.req)
	g.Waited = waited
	return g, ok
}

// mayEnterSoon reports whether a call was denied because its own owner holds the lock in the same session. The
// store may just have granted it to another call, which does not know that yet.
func (c *Call) mayEnterSoon(err error) bool {
	held, denied := errors.AsType[*types.HeldError](err)
	return denied && len(c.attempts) < MaxAttempts && c.S.Expects(&held.Lock, c.req)
}

// awaitEntry returns nil when the call may enter, or after [RestMax] to ask once more.
func (c *Call) awaitEntry() error {
	e := c.S.ExpectEntry(c.req)
	defer e.Close()
	defer time.AfterFunc(RestMax, e.Wake).Stop()
	c.aq.queue.hint(c.aq.queue.those(func(b *Attempt) bool { return b.s == c.S && b.req.Key == c.req.Key }))
	return c.Until(e.Opens())
}

// MaxAttempts limits the attempts of a call that does not wait. Each follows a loss of the lease.
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
	if !errors.Is(err, ErrAttemptLost) && (!outage || c.timed) {
		return err
	}
	switch {
	case c.ctx.Err() != nil:
		return types.ErrCallerLeft
	case c.S != nil && c.S.HasEnded():
		return types.ErrSessionEnded
	case c.aq.IsDraining():
		return types.ErrDraining
	case c.timed:
		return c.Timeout()
	case c.req.Wait == 0 && len(c.attempts) >= MaxAttempts:
		return &store.Error{Op: "acquire", Err: errors.New("the lease under the lock was lost")}
	case outage:
		return c.waitOut()
	case c.req.Wait != 0 && len(c.attempts) > 1: // not the first loss
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
	c.StartTimer()
	c.rest = max(c.rest, restMin)
	rested := make(chan struct{})
	timer := time.AfterFunc(clock.Jittered(c.rest), func() { close(rested) })
	defer timer.Stop()
	c.rest = min(2*c.rest, RestMax)
	return c.Until(rested)
}

// SettleLast waits until the last attempt can no longer change the store. With a request id, the next attempt
// has the same id, and a late hand-back would free its grant.
func (c *Call) SettleLast() error {
	if len(c.attempts) == 0 || !c.req.SharesGrant() {
		return nil
	}
	c.StartTimer()
	return c.Until(c.attempts[len(c.attempts)-1].cleanedUp())
}

// ownKeyPause is after what time the log warns that a call waits for a key of its own session.
const ownKeyPause = 10 * time.Second

// warnOfOwnKey logs once, if the call still waits after a while, that its own session holds the key. Another
// thread of the session may release it, so the call is not refused.
func (c *Call) warnOfOwnKey() (stop func()) {
	if held, _ := c.S.Owns(c.req.Key); !held {
		return func() {}
	}
	timer := time.AfterFunc(ownKeyPause, func() {
		if held, _ := c.S.Owns(c.req.Key); held {
			c.aq.obs.WaitsForItself(c.req.Key, c.S.Name(), c.req.Traceparent)
		}
	})
	return func() { timer.Stop() }
}
