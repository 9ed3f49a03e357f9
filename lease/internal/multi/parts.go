package multi

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// part is a lock that the group has got, for one of its keys.
type part struct {
	b     *attempt.Attempt
	grant types.Grant
	// until is how long a BindTTL lock is valid.
	until time.Time
}

func (g *group) add(c *attempt.Call, b *attempt.Attempt, grant types.Grant) {
	now := g.gs.clk.Now()
	if len(g.parts) == 0 {
		g.extendAt = now.Add(g.req.TTL / 3)
	}
	c.EndWait(attempt.ResultOf(&grant, nil))
	g.parts = append(g.parts, part{b: b, grant: grant, until: now.Add(grant.ExpiresIn)})
}

// has reports whether the group still has a part.
func (g *group) has(i int) bool {
	if g.s != nil {
		return g.s.HasUndelivered(&g.calls[i].Admission)
	}
	return g.gs.clk.Now().Before(g.parts[i].until)
}

// complete delivers all parts at once. It returns false if one is lost.
func (g *group) complete() bool {
	if g.s == nil && (g.rounds > 1 || g.wasQueued) {
		g.extendOnce() // some are older than others
	}
	now := g.gs.clk.Now()
	g.waited = now.Sub(g.began)
	if g.s != nil {
		return g.s.Deliver(g.admissions()...)
	}
	for i, p := range g.parts {
		if g.calls[i].Admission.ExpiresIn = p.until.Sub(now); g.calls[i].Admission.ExpiresIn <= 0 {
			return false
		}
	}
	for i, r := range g.repeats {
		r.Give(g.parts[i].grant.Token)
		g.parts[i].grant.Repeats = r
	}
	return true
}

// handBack releases the parts from the given one on.
func (g *group) handBack(from int) {
	for _, p := range g.parts[from:] {
		p.b.Cancel()
	}
	g.parts = g.parts[:from]
}

// extending extends the parts of a BindTTL group until stop. Nothing else uses them meanwhile.
func (g *group) extending() (stop func()) {
	if g.req.Bind != types.BindTTL || len(g.parts) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(g.gs.ctx) // without a span, because it may take days
	over := make(chan struct{})
	running := g.gs.cfg.Background.Spawn(func() {
		defer close(over)
		for clock.Rest(ctx, g.extendAt.Sub(g.gs.clk.Now())) == nil {
			g.extend(ctx)
		}
	})
	if !running {
		close(over)
	}
	return func() {
		cancel()
		<-over
	}
}

// extendOnce extends the parts within the time that the call has left, or one statement has if the call waits. A part that is not extended
// lasts as long as before.
func (g *group) extendOnce() {
	left := g.gs.cfg.StoreTimeout
	if g.req.Wait == 0 {
		left -= g.gs.clk.Now().Sub(g.began)
	}
	ctx, cancel := context.WithTimeout(g.ctx, left)
	defer cancel()
	g.extend(ctx)
}

// extend extends the parts of a BindTTL group by their TTL from now on, and finds lost ones.
func (g *group) extend(ctx context.Context) {
	g.extendAt = g.gs.clk.Now().Add(g.req.TTL / 3)
	var all sync.WaitGroup
	for i := range g.parts {
		all.Go(func() { g.gs.extendPart(ctx, &g.parts[i], g.req.TTL) })
	}
	all.Wait()
}

func (gs *Groups) extendPart(ctx context.Context, p *part, ttl time.Duration) {
	sent := gs.clk.Now()
	v, err := lanes.SubmitOwn(ctx, gs.cfg.Amends, "amend", lanes.Amend(store.Change{Key: p.grant.Key, Token: p.grant.Token, TTL: ttl}))
	switch {
	case types.ClaimError("amend", v.Status, err) != nil: // the lock lasts as long as before
	case v.Status == store.Holds:
		p.until = sent.Add(heartbeat.Reliable(v.Lock.Holder.ExpiresIn))
		gs.acquirer.GrantLasts(gs.clk.Now(), ttl)
	default:
		p.until = time.Time{}
	}
}
