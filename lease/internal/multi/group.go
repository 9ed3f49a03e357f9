// Package multi gets several keys, all or none, for one call. It uses a call and attempts of package
// attempt for each key. It gets the keys in the order of their bytes, and holds only keys before the one
// that it waits for. So calls never wait for each other in a circle, and each gets its turn. The app sees
// the keys only when the call has all of them. If the call ends before that, it hands its keys back. If a
// part is lost meanwhile, the call gets it again.
package multi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// maxAsks limits the questions about several keys at a time. They do not use a lane, because groups
// may have common keys.
const maxAsks = 4

// Config is the configuration of groups.
type Config struct {
	types.Config
	Acquirer *attempt.Acquirer
	Amends   *batcher.Lane[lanes.Amendment, store.Amended]
	// Inline: the store answers at once, in the caller's goroutine.
	Inline     bool
	Background *background.Runner
}

// Groups gets locks for calls that name several keys.
type Groups struct {
	cfg      Config
	acquirer *attempt.Acquirer
	clk      clock.Clock
	tokens   chan struct{}   // one for each question under way
	ctx      context.Context // ends with the sidecar
}

// New makes groups, which work until ctx ends.
func New(ctx context.Context, c Config) *Groups {
	gs := &Groups{cfg: c, acquirer: c.Acquirer, clk: c.Clock, tokens: make(chan struct{}, maxAsks), ctx: ctx}
	for range maxAsks {
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
	g := gs.newGroup(ctx, s, keys, req)
	done, err := g.admit()
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
	// A key is kept only while no call for it is present.
	defer gs.acquirer.CountCalls(keys...)()
	if err := g.giveUpKept(); err != nil {
		return nil, err
	}
	if req.Wait != 0 { // a group counts as one waiter
		if err := gs.acquirer.AddWaiter(); err != nil {
			return nil, err
		}
		defer gs.acquirer.WaiterLeft()
		defer g.warnOfOwnKeys()()
	}
	if err := g.acquire(); err != nil {
		g.endWaits(err)
		g.handBack(0)
		return nil, err
	}
	return g.grants(keys), nil
}

// group is one call for several keys. If a question costs a round trip, it asks at once for all missing
// keys, up to the first for which other calls came before. It hands back the keys after the first held one.
//
// The session owns the parts: they end with the session and with their lease. [holdings.Session.Deliver]
// makes them visible to the app.
type group struct {
	gs    *Groups
	ctx   context.Context
	s     *holdings.Session
	req   *types.Request
	began time.Time
	calls []*attempt.Call // one for each key
	parts []part          // of the first calls
	// wasQueued: one of the calls has had a queue position.
	wasQueued bool

	rounds int
	// waited is read before the parts' remaining time. So their sum never gives the app an end that is too
	// late, even if the process is stopped in between.
	waited time.Duration

	// With a request id: repeats are per key. repeated are the grants that the session already has by the id.
	repeats    []*repeat.Request
	withdrawal *repeat.Withdrawal
	repeated   []types.Grant

	// For BindTTL: extendAt is when the parts must be extended if others are still missing.
	extendAt time.Time
}

// newGroup makes the group of one call.
func (gs *Groups) newGroup(ctx context.Context, s *holdings.Session, keys []string, req *types.Request) *group {
	if req.Bind == types.BindTTL {
		s = nil
	}
	g := &group{gs: gs, ctx: ctx, s: s, req: req, began: gs.clk.Now()}
	if req.RequestID != uuid.Nil {
		g.withdrawal = repeat.NewWithdrawal()
	}
	for _, key := range keys {
		one := *req
		one.Key = key
		g.calls = append(g.calls, gs.acquirer.NewPart(ctx, s, &one, g.began, g.withdrawal))
	}
	slices.SortFunc(g.calls, func(a, b *attempt.Call) int { return strings.Compare(a.Key(), b.Key()) })
	return g
}

func (g *group) admissions() []*holdings.Admission {
	admissions := make([]*holdings.Admission, len(g.calls))
	for i, c := range g.calls {
		admissions[i] = &c.Admission
	}
	return admissions
}

// again returns what the session has got by the request id before, if it still holds all of it.
func (g *group) again() []types.Grant {
	if g.req.RequestID == uuid.Nil {
		return nil
	}
	waited := g.gs.clk.Now().Sub(g.began) // before the locks' remaining time is read
	grants := g.s.AgainAll(g.admissions(), g.req.RequestID)
	for i := range grants {
		grants[i].Waited = waited
	}
	return grants
}

// admit counts the group among the calls with its request id, and in its session. It does not if the
// session already has the locks by that id. done ends the counting.
func (g *group) admit() (done func(), err error) {
	if g.req.RequestID != uuid.Nil {
		err = g.takeTurns()
	}
	if err == nil && g.s != nil {
		if g.repeated = g.again(); g.repeated == nil {
			err = g.admitToSession()
		}
	}
	done = func() {
		for i, c := range g.calls {
			c.Leave()
			if g.s != nil {
				g.s.Leave(&c.Admission)
			}
			if i < len(g.repeats) {
				g.gs.acquirer.EndTurn(c, g.repeats[i], !g.missing())
				g.gs.acquirer.RequestsOf(g.s).Done(g.repeats[i], g.withdrawal)
			}
		}
	}
	if err != nil {
		done()
	}
	return done, err
}

// admitToSession counts the group in its session. It refuses at once what an attempt would refuse later, after waiting for other keys.
func (g *group) admitToSession() error {
	for _, c := range g.calls {
		if err := c.WaitsForItself(); err != nil {
			return err
		}
	}
	return g.s.AdmitAll(g.admissions())
}

// takeTurns waits for the turn of each key, in the order of the keys, as this whole package does.
func (g *group) takeTurns() error {
	all := make([]*repeat.Request, len(g.calls)) // before the first turn, because a release by the id ends the call for any of its keys
	for i, c := range g.calls {
		all[i] = g.gs.acquirer.RequestsOf(g.s).Use(repeat.AttemptID(g.req.RequestID, c.Key()), g.withdrawal)
	}
	for i, c := range g.calls {
		if err := g.gs.acquirer.TakeTurn(g.ctx, g.s, all[i], g.began, g.req.Wait, g.withdrawal); err != nil {
			for _, r := range all[i:] {
				g.gs.acquirer.RequestsOf(g.s).Done(r, g.withdrawal)
			}
			return err
		}
		g.repeats = append(g.repeats, all[i])
		c.Repeat(all[i].Repeated())
	}
	return nil
}

// heldInCache answers from the cache that one of the keys is held.
func (g *group) heldInCache() (store.Lock, bool) {
	if attempt.FixesID(g.req) {
		return store.Lock{}, false
	}
	for _, c := range g.calls {
		if lock, ok := c.HeldInCache(); ok {
			return lock, true
		}
	}
	return store.Lock{}, false
}

// settled waits until the locks of calls are handed back, so that the next question does not find them held.
func (g *group) settled(calls []*attempt.Call) error {
	for _, c := range calls {
		if err := c.Until(c.CleanedUp()); err != nil {
			return err
		}
	}
	return nil
}

// giveUpKept gives up the keys that this sidecar keeps, and waits until the store has them back.
func (g *group) giveUpKept() error {
	for _, c := range g.calls {
		g.gs.acquirer.GiveUp(c.Key())
	}
	for _, c := range g.calls {
		if kept := g.gs.acquirer.GiveUp(c.Key()); kept != nil {
			if err := c.UntilGivenUp(kept); err != nil {
				return err
			}
		}
	}
	return nil
}

// acquire gets all keys. If it returns an error, the caller hands back the keys that the group has.
func (g *group) acquire() error {
	for {
		if g.dropLost() {
			if err := g.mayGoOn(); err != nil {
				return err
			}
		}
		if g.missing() {
			if err := g.advance(); err != nil {
				return err
			}
			continue
		}
		if g.complete() {
			return nil
		}
	}
}

// missing reports whether the group does not have all keys.
func (g *group) missing() bool { return len(g.parts) < len(g.calls) }

// dropLost hands back the parts from the first lost one on, because they must not be held while the group
// waits for that key.
func (g *group) dropLost() bool {
	for i := range g.parts {
		if !g.has(i) {
			g.handBack(i)
			return true
		}
	}
	return false
}

// mayGoOn returns an error if the group must not ask again.
func (g *group) mayGoOn() error {
	c := g.calls[len(g.parts)]
	if g.req.Wait > 0 && g.gs.clk.Now().Sub(g.began) >= g.req.Wait {
		return c.Timeout()
	}
	return c.MayGoOn(attempt.ErrAttemptLost)
}

// advance gets the first missing key, and the keys after it that are free at the same time.
func (g *group) advance() error {
	first := len(g.parts)
	c := g.calls[first]
	if g.wasQueued { // a call that was queued continues through an outage
		c.WasQueued = true
	}
	g.rounds++
	attempts, err := g.try(g.calls[first:])
	if err != nil {
		return c.MayGoOn(err)
	}
	for i, b := range attempts {
		if i > 0 && b.IsUnwanted() {
			return nil // an earlier key was not free
		}
		c := g.calls[first+i]
		grant, err := g.await(c, b)
		if err != nil {
			for _, later := range attempts[i+1:] {
				later.Cancel()
			}
			if c.RecallOnce(err) {
				if late := g.settled(g.calls[first+i+1 : first+len(attempts)]); !store.Unavailable(late) {
					return late
				}
			}
			return c.MayGoOn(err)
		}
		g.add(c, b, grant)
	}
	return nil
}

// try makes attempts for the first call, and for as many others as one question may contain.
func (g *group) try(calls []*attempt.Call) ([]*attempt.Attempt, error) {
	c, most := calls[0], 1
	if !g.gs.cfg.Inline {
		most = min(len(calls), g.gs.cfg.BatchMax)
	}
	attempts, err := g.newAttempts(calls[:most])
	switch len(attempts) {
	case 0:
		return nil, err
	case 1:
		attempts[0].Start(g.ctx, g.gs.clk.Now())
	default: // the token last, because the previous steps may take long
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

// newAttempts makes attempts for which there are leases. If other calls wait for a key already, its attempt
// must be the only one, or is made later.
func (g *group) newAttempts(calls []*attempt.Call) (attempts []*attempt.Attempt, err error) {
	for _, c := range calls {
		if err := c.SettleLast(); err != nil {
			return nil, err
		}
	}
	for _, c := range calls {
		came, late := c.Arrive() // before the lease, as in a call for one key
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

func (g *group) warnOfOwnKeys() (stop func()) {
	stops := make([]func(), len(g.calls))
	for i, c := range g.calls {
		stops[i] = c.WarnOfOwnKey()
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (g *group) endWaits(err error) {
	code := types.CodeOf(err)
	for _, c := range g.calls {
		c.Leave()
		c.EndWait(code)
	}
}

// await returns what an attempt has won, and extends the parts meanwhile.
func (g *group) await(c *attempt.Call, b *attempt.Attempt) (types.Grant, error) {
	if !b.HasEnded() {
		defer g.extending()()
	}
	grant, err := c.Await(b)
	g.wasQueued = g.wasQueued || c.WasQueued
	return grant, err
}

func (g *group) grants(keys []string) []types.Grant {
	got := make([]types.Grant, len(g.parts))
	for i, p := range g.parts {
		p.grant.Waited, p.grant.ExpiresIn = g.waited, g.calls[i].Admission.ExpiresIn
		got[i] = p.grant
	}
	return inOrder(got, keys)
}

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
