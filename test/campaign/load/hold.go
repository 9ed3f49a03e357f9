package load

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// held chooses how long a client uses what it was given: mostly for a moment, sometimes
// for longer than a lease lives that nobody renews.
func (c *client) held(key string) time.Duration {
	switch p := c.rng.IntN(80); {
	case isShared(c.cfg.Keys, key) && p < 4: // longer than a hand-off may take
		return c.upTo(c.cfg.TTL)
	case isShared(c.cfg.Keys, key):
		return c.upTo(100 * time.Millisecond)
	case c.isHot(key) && p < 2: // longer than a sidecar hands on without the store
		return c.upTo(200 * time.Millisecond)
	case c.isHot(key):
		return c.upTo(2 * time.Millisecond)
	case isAffine(c.cfg.Keys, key) && p < 2: // longer than a sidecar leaves the store in the dark
		return c.upTo(300 * time.Millisecond)
	case isAffine(c.cfg.Keys, key):
		return c.upTo(time.Duration(p/20) * time.Millisecond)
	case p < 1, p < 20 && heldLong(key):
		return c.upTo(3 * c.cfg.TTL)
	case p < 4, heldLong(key):
		return c.upTo(c.cfg.TTL / 2)
	case p < 10:
		return 0
	default:
		return c.upTo(10 * time.Millisecond)
	}
}

func (c *client) isHot(key string) bool { return keyNumber(key) == hotKey(c.cfg.Keys) }

// hold uses locks and releases them. Now and then it shares a lock first.
func (c *client) hold(ctx context.Context, grips []grip) {
	c.keep(ctx, grips)
	if g := &grips[0]; isShared(c.cfg.Keys, g.key) && !g.shared && c.oneOf(2) && c.downgrade(ctx, g) {
		c.keep(ctx, grips)
	}
	c.giveUp(grips)
}

// keep uses locks for a while.
func (c *client) keep(ctx context.Context, grips []grip) {
	for end := history.Now() + int64(c.held(grips[0].key)); ; {
		for i := range grips {
			c.use(ctx, &grips[i])
		}
		left := time.Duration(end - history.Now())
		if left <= 0 || ctx.Err() != nil || !c.rests(ctx, min(left, c.cfg.TTL/8)) {
			break
		}
	}
}

func (c *client) giveUp(grips []grip) {
	for _, g := range grips {
		seldom := 6
		if isAffine(c.cfg.Keys, g.key) {
			seldom = 60 // a key is kept after a release only
		}
		if c.calls != nil && c.oneOf(seldom) {
			c.drop()
		}
		if g.session == "" && c.oneOf(8) {
			continue // its lease ends by itself
		}
		c.release(g)
	}
}

// rests lets time pass, and reports whether all that the session holds may still be held. The
// session loses its locks with its connection.
func (c *client) rests(ctx context.Context, d time.Duration) bool {
	switch {
	case c.calls == nil: // only bind:ttl locks are left
		rest(ctx, d)
		return true
	case c.own.explicit():
		select {
		case <-ctx.Done():
		case <-time.After(d):
		case <-c.own.over:
			c.drop()
			return false
		}
		return true
	case !c.calls.alive(ctx, d) && ctx.Err() == nil:
		c.drop()
		return false
	}
	return true
}

// use writes the token to what the lock protects, for as long as the client believes
// that it holds it, and asks again before that ends.
func (c *client) use(ctx context.Context, g *grip) {
	if g.session != "" && (c.own == nil || c.own.name != g.session || c.own.hasLost(g.token)) {
		return
	}
	op := c.note(history.Write, g.key)
	op.Session, op.Token, op.Call = g.session, g.token, history.Now()
	op.Slot = g.slot
	if cell, ok := cellOf(c.cfg.Keys, g); ok && op.Call < g.until {
		op = c.cfg.Recorder.Begin(op)
		op.Outcome = history.Stale
		if c.cfg.Fence.Write(cell, g.token) {
			op.Outcome = history.Done
		}
		c.cfg.Recorder.End(op)
	}
	if g.until-history.Now() < int64(c.cfg.TTL/2) {
		c.confirm(ctx, g)
	}
}

// confirm asks whether the lock is still held; a bind:ttl lock is extended, or not.
func (c *client) confirm(ctx context.Context, g *grip) {
	if c.calls == nil && !c.connected(ctx) {
		return
	}
	body, headers := fmt.Sprintf(`{"token":%d}`, g.token), c.own.headers()
	if g.session == "" {
		if c.oneOf(2) {
			return
		}
		body, headers = fmt.Sprintf(`{"token":%d,"ttl_ms":%d}`, g.token, c.cfg.TTL.Milliseconds()), nil
	}
	op := c.note(history.Confirm, g.key)
	op.Session, op.Token = g.session, g.token
	op = c.cfg.Recorder.Begin(op)
	sent := history.Now()
	a, err := c.call(ctx, patience, "PATCH", lockPath(g.key), body, headers...)
	op.Note = a.note()
	switch {
	case err != nil:
		c.drop()
	case a.status == 200:
		op.Outcome, op.Until = history.Held, believe(sent, answer{ExpiresIn: a.ExpiresIn})
		g.until = max(g.until, op.Until)
	default:
		op.Outcome = gone(a)
		if op.Outcome == history.NotHeld {
			g.until = 0
		}
	}
	c.cfg.Recorder.End(op)
}

// gone is the outcome of a call under a token that was not carried out.
func gone(a answer) history.Outcome {
	switch {
	case a.Code == "not_holder" || a.Code == "lock_lost":
		return history.NotHeld
	case a.status < 500:
		return history.Refused
	}
	return history.Unknown
}

// release gives a lock up. The end of the campaign does not cut this short.
func (c *client) release(g grip) {
	ctx := context.Background()
	if g.session != "" && (c.own == nil || c.own.name != g.session) {
		return // it went with its session
	}
	if c.calls == nil && !c.connected(ctx) {
		return
	}
	var headers []string
	if g.session != "" {
		headers = c.own.headers()
	}
	op := c.note(history.Release, g.key)
	op.Session, op.Token = g.session, g.token
	op = c.cfg.Recorder.Begin(op)
	a, err := c.call(ctx, patience, "DELETE", fmt.Sprintf("%s?token=%d", lockPath(g.key), g.token), "", headers...)
	op.Note = a.note()
	switch {
	case err != nil:
	case a.status == 200:
		op.Outcome = history.Done
	default:
		op.Outcome = gone(a)
	}
	c.cfg.Recorder.End(op)
	if err != nil {
		c.drop()
	}
}

// look reads a lock from the store.
func (c *client) look(ctx context.Context) {
	op := c.cfg.Recorder.Begin(c.note(history.Get, c.anyKey()))
	a, err := c.call(ctx, patience, "GET", lockPath(op.Key), "", "Cache-Control: no-cache")
	switch {
	case err != nil:
		defer c.drop()
	case a.status == 200 && a.State == "free":
		op.Outcome = history.Free
	case a.status == 200:
		op.Outcome, op.Shared, op.Limit, op.Holders = history.Held, a.Mode == "shared", a.Limit, a.Holders
	}
	c.cfg.Recorder.End(op)
}

// ask asks the holder of a lock to stop, or breaks the lock.
func (c *client) ask(ctx context.Context, kind history.Kind) {
	op := c.cfg.Recorder.Begin(c.note(kind, c.anyKey()))
	method, path := "POST", lockPath(op.Key)+"/stop"
	if kind == history.Force {
		method, path = "DELETE", lockPath(op.Key)+"?force=true"
	}
	a, err := c.call(ctx, patience, method, path, "")
	op.Note = a.note()
	switch {
	case err != nil:
		defer c.drop()
	case a.status < 300:
		op.Outcome = history.Done
	case a.Code == "not_held":
		op.Outcome = history.NotHeld
	case a.status < 500:
		op.Outcome = history.Refused
	}
	c.cfg.Recorder.End(op)
}
