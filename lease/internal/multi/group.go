// Package multi gets several keys, all or none, for one call. The call has a call and attempts of package
// attempt for each key. It gets the keys in the order of their bytes, and holds only keys before the
// one that it waits for. So two calls never wait for each other in a circle, and each is served in its
// turn. Until the call has all keys, the app sees none of them. Whatever ends the call hands back what
// it has. A member that is lost meanwhile is got again.
package multi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// MaxGroupAsks is the most questions to the store about several keys at a time.
// They have no lane: groups may have keys in common.
const MaxGroupAsks = 4

// Config is what groups need.
type Config struct {
	types.Config
	Acquirer *attempt.Acquirer
	Amends   *batcher.Lane[store.Change, store.Verdict]
	// Inline: the store answers at once, in the caller's goroutine.
	Inline bool
	// Granted hears for how long the store may keep a lock by itself.
	Granted func(now time.Time, lasts time.Duration, held bool)
	Spawn   func(func()) bool
}

// Groups gets locks for calls that name several keys.
type Groups struct {
	cfg      Config
	acquirer *attempt.Acquirer
	clk      clock.Clock
	tokens   chan struct{}   // one for each question that may be under way
	ctx      context.Context // ends with the sidecar
}

// New makes groups, which work until ctx ends.
func New(ctx context.Context, c Config) *Groups {
	gs := &Groups{cfg: c, acquirer: c.Acquirer, clk: c.Clock, tokens: make(chan struct{}, MaxGroupAsks), ctx: ctx}
	for range MaxGroupAsks {
		gs.tokens <- struct{}{}
	}
	return gs
}

// Acquire gets the locks of one call, all or none. The grants are in the order of the keys.
func (gs *Groups) Acquire(ctx context.Context, s *holdings.Session, keys []string, req *types.Request) ([]types.Grant, error) {
	if gs.acquirer.IsDraining() {
		return nil, types.ErrDraining
	}
	req.TTL = gs.acquirer.TTLOf(s, req)
	g := gs.NewGroup(ctx, s, keys, req)
	done, err := g.Admit()
	if err != nil {
		return nil, err
	}
	defer done()
	if g.repeated != nil {
		return inOrder(g.repeated, keys), nil
	}
	if lock, ok := g.heldInCache(); ok {
		return nil, &types.HeldError{Lock: lock, Cached: true}
	}
	if req.Wait != 0 { // one place among the waiting calls, whatever the number of keys
		if err := gs.acquirer.AddWaiter(); err != nil {
			return nil, err
		}
		defer gs.acquirer.WaiterLeft()
	}
	if err := g.Acquire(); err != nil {
		g.endWaits(err)
		g.handBack(0)
		return nil, err
	}
	return g.grants(keys), nil
}

// Group is one call for several keys. If a question to the store costs a round trip, it asks for all
// keys that it does not have at once, up to the first for which others came before. It hands back what
// it got behind the first key that is held.
//
// What its attempts win are members: they are the session's, so they end with it and with their lease,
// but the app does not see them until all are there: see [holdings.Session.Publish].
type Group struct {
	gs      *Groups
	ctx     context.Context
	s       *holdings.Session
	req     *types.Request
	began   time.Time
	calls   []*attempt.Call // one for each key
	members []groupMember   // of the first calls
	// stood: one of the calls has had a queue position.
	wasQueued bool

	// rounds is how often it has asked.
	rounds int
	// waited is reckoned before what is left of the parts: who adds both to the moment at
	// which it asked must not come to a later end, however long the process was stopped
	// in between.
	waited time.Duration

	// For a request with an id: repeats are those of each key, withdrawal ends all of it, and
	// repeated is what the session has got by it before.
	repeats    []*repeat.Request
	withdrawal *repeat.Withdrawal
	repeated   []types.Grant

	// For BindTTL: extendAt is when the parts must be extended if others are still missing.
	extendAt time.Time
}

// NewGroup makes the group of one call.
func (gs *Groups) NewGroup(ctx context.Context, s *holdings.Session, keys []string, req *types.Request) *Group {
	if req.Bind == types.BindTTL {
		s = nil
	}
	g := &Group{gs: gs, ctx: ctx, s: s, req: req, began: gs.clk.Now()}
	if req.RequestID != uuid.Nil {
		g.withdrawal = repeat.NewWithdrawal()
	}
	for _, key := range keys {
		one := *req
		one.Key = key
		g.calls = append(g.calls, gs.acquirer.NewMember(ctx, s, &one, g.began, g.withdrawal))
	}
	slices.SortFunc(g.calls, func(a, b *attempt.Call) int { return strings.Compare(a.Key(), b.Key()) })
	return g
}

// slots are those of its calls in the session.
func (g *Group) slots() []*holdings.Slot {
	slots := make([]*holdings.Slot, len(g.calls))
	for i, c := range g.calls {
		slots[i] = &c.Slot
	}
	return slots
}

// again is what the session has got by the request id before, if it still holds all of it.
func (g *Group) again() []types.Grant {
	if g.req.RequestID == uuid.Nil {
		return nil
	}
	waited := g.gs.clk.Now().Sub(g.began) // before what is left of the locks is reckoned
	grants := g.s.AgainAll(g.slots(), g.req.RequestID)
	for i := range grants {
		grants[i].Waited = waited
	}
	return grants
}

// Admit counts the group in: with a request id, among the calls of the same request; and in
// its session, unless that has given it the locks before. done ends that.
func (g *Group) Admit() (done func(), err error) {
	if g.req.RequestID != uuid.Nil {
		err = g.takeTurns()
	}
	if err == nil && g.s != nil {
		if g.repeated = g.again(); g.repeated == nil {
			err = g.s.AdmitAll(g.slots())
		}
	}
	done = func() {
		for i, c := range g.calls {
			c.Leave()
			if g.s != nil {
				g.s.Leave(&c.Slot)
			}
			if i < len(g.repeats) {
				g.leave(g.repeats[i], c)
			}
		}
	}
	if err != nil {
		done()
	}
	return done, err
}

// takeTurns waits for the turn of each key among the calls with the same request
// id; in the order of the keys, as everything here.
func (g *Group) takeTurns() error {
	all := make([]*repeat.Request, len(g.calls)) // before the first turn: a release by the id of any key ends the call
	for i, c := range g.calls {
		all[i] = g.gs.acquirer.RequestsOf(g.s).Use(repeat.AttemptID(g.req.RequestID, c.Key()), g.withdrawal)
	}
	for i, c := range g.calls {
		wait := g.req.Wait
		if wait > 0 {
			wait = max(wait-g.gs.clk.Now().Sub(g.began), 0)
		}
		if err := g.gs.acquirer.TakeTurn(g.ctx, g.s, all[i], wait, g.withdrawal); err != nil {
			for _, r := range all[i:] {
				g.gs.acquirer.RequestsOf(g.s).Done(r, g.withdrawal)
			}
			return err
		}
		g.repeats = append(g.repeats, all[i])
		c.Share(all[i].Shared())
	}
	return nil
}

// leave ends the turn of one of the keys: at once if the session has it, or if the store was
// not asked for it.
func (g *Group) leave(r *repeat.Request, c *attempt.Call) {
	if g.s != nil && (len(g.members) == len(g.calls) || !c.Asked()) {
		r.Leave()
	} else {
		g.gs.acquirer.LeaveAfter(g.gs.acquirer.RequestsOf(g.s), r, c)
	}
	g.gs.acquirer.RequestsOf(g.s).Done(r, g.withdrawal)
}

// heldInCache answers from what is known here that one of the keys is held.
func (g *Group) heldInCache() (store.Lock, bool) {
	if g.req.SharesGrant() {
		return store.Lock{}, false
	}
	for _, c := range g.calls {
		if lock, ok := c.HeldInCache(); ok {
			return lock, true
		}
	}
	return store.Lock{}, false
}

// Acquire gets all keys, or says why not. Then what it has got is to be handed back.
func (g *Group) Acquire() error {
	for {
		if g.dropLost() {
			if err := g.mayGoOn(); err != nil {
				return err
			}
		}
		if len(g.members) < len(g.calls) {
			if err := g.Advance(); err != nil {
				return err
			}
			continue
		}
		if g.Complete() {
			return nil
		}
	}
}

// Missing reports whether the group does not have all keys.
func (g *Group) Missing() bool { return len(g.members) < len(g.calls) }

// dropLost forgets the parts that are lost, and hands back those behind the first of
// them: they must not be held while that is waited for.
func (g *Group) dropLost() bool {
	for i := range g.members {
		if !g.has(i) {
			g.handBack(i)
			return true
		}
	}
	return false
}

// mayGoOn says why it makes no sense to get again what was lost.
func (g *Group) mayGoOn() error {
	c := g.calls[len(g.members)]
	if g.req.Wait > 0 && g.gs.clk.Now().Sub(g.began) >= g.req.Wait {
		return c.Timeout()
	}
	return c.MayGoOn(attempt.ErrAttemptLost)
}

// Advance gets the first key that is missing, and with it those behind it that are
// free in the same moment.
func (g *Group) Advance() error {
	first := len(g.members)
	c := g.calls[first]
	if g.wasQueued { // an outage is no reason to give up
		c.WasQueued = true
	}
	g.rounds++
	attempts, err := g.try(g.calls[first:])
	if err != nil {
		return c.MayGoOn(err)
	}
	for i, b := range attempts {
		if i > 0 && b.IsUnwanted() {
			return nil // one before it had to wait
		}
		c := g.calls[first+i]
		grant, err := g.await(c, b)
		if err != nil {
			for _, later := range attempts[i+1:] {
				later.CallerLeft()
			}
			return c.MayGoOn(err)
		}
		g.add(c, b, grant)
	}
	return nil
}

// try makes attempts for calls, the first and as many of the others as the store takes
// in one question.
func (g *Group) try(calls []*attempt.Call) ([]*attempt.Attempt, error) {
	c, most := calls[0], 1
	c.StartTimer()
	if !g.gs.cfg.Inline {
		most = min(len(calls), g.gs.cfg.BatchMax)
	}
	attempts, err := g.newAttempts(calls[:most])
	switch len(attempts) {
	case 0:
		return nil, err
	case 1:
		attempts[0].Start(g.ctx, g.gs.clk.Now())
	default: // the token last: what comes before it may take long
		if err := c.Until(g.gs.tokens); err != nil {
			for _, b := range attempts {
				b.Finish(err)
			}
			return nil, err
		}
		g.gs.acquirer.AskAll(attempts, func() { g.gs.tokens <- struct{}{} })
	}
	return attempts, nil
}

// newAttempts makes attempts until there is no lease for one, or until calls that wait came
// before for its key: then it is the only one, or is not made yet.
func (g *Group) newAttempts(calls []*attempt.Call) (attempts []*attempt.Attempt, err error) {
	for _, c := range calls {
		if err := c.SettleLast(); err != nil {
			return nil, err
		}
	}
	for _, c := range calls {
		came, late := c.Arrive() // before the lease, as a single call
		if late && len(attempts) > 0 {
			came.Leave()
			break
		}
		b, err := c.NewAttempt(came)
		if err != nil {
			return attempts, err
		}
		attempts = append(attempts, b)
		if late {
			break
		}
	}
	return attempts, nil
}

// endWaits ends the spans of the waits of a group that failed.
func (g *Group) endWaits(err error) {
	code := types.CodeOf(err)
	for _, c := range g.calls {
		c.Leave()
		c.EndWait(code)
	}
}

// await returns what an attempt has won, and sees to it that the parts last meanwhile.
func (g *Group) await(c *attempt.Call, b *attempt.Attempt) (types.Grant, error) {
	if !b.IsOver() {
		defer g.extending()()
	}
	grant, err := c.Await(b)
	g.wasQueued = g.wasQueued || c.WasQueued
	return grant, err
}

// grants are what the group has got, in the order in which the keys were named.
func (g *Group) grants(keys []string) []types.Grant {
	got := make([]types.Grant, len(g.members))
	for i, p := range g.members {
		p.G.Waited, p.G.ExpiresIn = g.waited, g.calls[i].Slot.Left
		got[i] = p.G
	}
	return inOrder(got, keys)
}

// inOrder puts the grants of keys into their order.
func inOrder(grants []types.Grant, keys []string) []types.Grant {
	byKey := make(map[string]types.Grant, len(keys))
	for _, g := range grants {
		byKey[g.Key] = g
	}
	out := make([]types.Grant, len(keys))
	for i, key := range keys {
		out[i] = byKey[key]
	}
	return out
}
