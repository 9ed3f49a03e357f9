package lease

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// maxGroupAsks is the most questions to the store about several keys at a time.
// They have no lane: groups may have keys in common.
const maxGroupAsks = 4

// groups gets locks for calls that name several keys.
type groups struct {
	acquirer *acquirer
	cfg      types.Config
	clk      clock.Clock
	obs      *observe.Observer
	amends   *batcher.Lane[store.Change, store.Verdict]
	inline   bool
	// ask asks the store for several locks with one question.
	ask    func(ctx context.Context, asks []store.Ask) ([]store.Answer, error)
	tokens chan struct{} // one for each question that may be under way
	// granted hears of each grant: see acquirer.
	granted func(now time.Time, lasts time.Duration, held bool)
	spawn   func(func()) bool
	ctx     context.Context // ends with the manager
}

func newGroups(ctx context.Context, aq *acquirer, st store.Store, spawn func(func()) bool) *groups {
	gs := &groups{
		acquirer: aq, cfg: aq.cfg, clk: aq.clk, obs: aq.obs, amends: aq.lanes.Amends, inline: aq.inline, ask: st.Acquire,
		tokens: make(chan struct{}, maxGroupAsks), granted: aq.granted, spawn: spawn, ctx: ctx,
	}
	for range maxGroupAsks {
		gs.tokens <- struct{}{}
	}
	return gs
}

// acquire gets the locks of one call: see [Manager.AcquireAll].
func (gs *groups) acquire(ctx context.Context, s *holdings.Session, keys []string, req *types.Request) ([]types.Grant, error) {
	if gs.acquirer.isDraining() {
		return nil, types.ErrDraining
	}
	req.TTL = gs.acquirer.ttlOf(s, req)
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
	if req.Wait != 0 { // one place among the waiting calls, whatever the number of keys
		if err := gs.acquirer.addWaiter(); err != nil {
			return nil, err
		}
		defer gs.acquirer.waiters.Add(-1)
	}
	if err := g.acquire(); err != nil {
		g.endWaits(err)
		g.handBack(0)
		return nil, err
	}
	return g.grants(keys), nil
}

// group is one call for several keys. It gets them in the order of their bytes and
// waits in line for one at a time, while it holds only such that stand before it: so
// groups that want the same keys never wait for each other in a circle, and each
// is queued where it waits, behind those that came before. Where a question to
// the store costs a round trip, it asks for all that it does not have at once, up to
// the first for which others came before, and hands back what it got behind the first
// that is held.
//
// Each key has a call and attempts of its own, as if it were asked for alone. What the
// attempts win are parts: they are the session's, so that they end with it and with
// their lease, but the app does not see them until all are there (see
// [holdings.Session.Publish]).
type group struct {
	gs      *groups
	ctx     context.Context
	s       *holdings.Session
	req     *types.Request
	began   time.Time
	calls   []*call       // one for each key
	members []groupMember // of the first calls
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

func (gs *groups) newGroup(ctx context.Context, s *holdings.Session, keys []string, req *types.Request) *group {
	if req.Bind == types.BindTTL {
		s = nil
	}
	g := &group{gs: gs, ctx: ctx, s: s, req: req, began: gs.clk.Now()}
	for _, key := range keys {
		one := *req
		one.Key = key
		g.calls = append(g.calls, gs.acquirer.newMember(ctx, s, &one, g.began))
	}
	slices.SortFunc(g.calls, func(a, b *call) int { return strings.Compare(a.req.Key, b.req.Key) })
	if req.RequestID != uuid.Nil {
		g.withdrawal = repeat.NewWithdrawal()
		for _, c := range g.calls {
			c.withdrawn = g.withdrawal.Ended()
		}
	}
	return g
}

// slots are those of its calls in the session.
func (g *group) slots() []*holdings.Slot {
	slots := make([]*holdings.Slot, len(g.calls))
	for i, c := range g.calls {
		slots[i] = &c.slot
	}
	return slots
}

// again is what the session has got by the request id before, if it still holds all of it.
func (g *group) again() []types.Grant {
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

// requests are those among which the group has its turns.
func (g *group) requests() *repeat.Requests {
	if g.s != nil {
		return &g.s.Requests
	}
	return &g.gs.acquirer.requests
}

// admit counts the group in: with a request id, among the calls of the same request; and in
// its session, unless that has given it the locks before. done ends that.
func (g *group) admit() (done func(), err error) {
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
			c.stopTimer()
			c.tr.Leave()
			if g.s != nil {
				g.s.Leave(&c.slot)
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
func (g *group) takeTurns() error {
	all := make([]*repeat.Request, len(g.calls)) // before the first turn: a release by the id of any key ends the call
	for i, c := range g.calls {
		all[i] = g.requests().Use(repeat.AttemptID(c.req.RequestID, c.req.Key), g.withdrawal)
	}
	for i, c := range g.calls {
		wait := g.req.Wait
		if wait > 0 {
			wait = max(wait-g.gs.clk.Now().Sub(g.began), 0)
		}
		if err := g.gs.acquirer.takeTurn(g.ctx, g.s, all[i], wait, g.withdrawal); err != nil {
			for _, r := range all[i:] {
				g.requests().Done(r, g.withdrawal)
			}
			return err
		}
		g.repeats = append(g.repeats, all[i])
		c.shared = all[i].Shared()
	}
	return nil
}

// leave ends the turn of one of the keys: at once if the session has it, or if the store was
// not asked for it.
func (g *group) leave(r *repeat.Request, c *call) {
	if g.s != nil && (len(g.members) == len(g.calls) || len(c.attempts) == 0) {
		r.Leave()
	} else {
		g.gs.acquirer.leaveAfter(g.requests(), r, c.attempts)
	}
	g.requests().Done(r, g.withdrawal)
}

// heldInCache answers from what is known here that one of the keys is held.
func (g *group) heldInCache() (store.Lock, bool) {
	if g.req.SharesGrant() {
		return store.Lock{}, false
	}
	for _, c := range g.calls {
		if lock, ok := g.gs.acquirer.heldInCache(nil, c.req); ok {
			return lock, true
		}
	}
	return store.Lock{}, false
}

// acquire gets all keys, or says why not. Then what it has got is to be handed back.
func (g *group) acquire() error {
	for {
		if g.dropLost() {
			if err := g.mayGoOn(); err != nil {
				return err
			}
		}
		if len(g.members) < len(g.calls) {
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

// dropLost forgets the parts that are lost, and hands back those behind the first of
// them: they must not be held while that is waited for.
func (g *group) dropLost() bool {
	for i := range g.members {
		if !g.has(i) {
			g.handBack(i)
			return true
		}
	}
	return false
}

// mayGoOn says why it makes no sense to get again what was lost.
func (g *group) mayGoOn() error {
	c := g.calls[len(g.members)]
	if g.req.Wait > 0 && g.gs.clk.Now().Sub(g.began) >= g.req.Wait {
		return c.timeout()
	}
	return c.mayGoOn(errAttemptLost)
}

// advance gets the first key that is missing, and with it those behind it that are
// free in the same moment.
func (g *group) advance() error {
	first := len(g.members)
	c := g.calls[first]
	if g.wasQueued { // an outage is no reason to give up
		c.wasQueued = true
	}
	g.rounds++
	attempts, err := g.try(g.calls[first:])
	if err != nil {
		return c.mayGoOn(err)
	}
	for i, b := range attempts {
		if i > 0 && b.isUnwanted() {
			return nil // one before it had to wait
		}
		c := g.calls[first+i]
		grant, err := g.await(c, b)
		if err != nil {
			for _, later := range attempts[i+1:] {
				later.callerLeft()
			}
			return c.mayGoOn(err)
		}
		g.add(b, grant)
	}
	return nil
}

// try makes attempts for calls, the first and as many of the others as the store takes
// in one question.
func (g *group) try(calls []*call) ([]*attempt, error) {
	c, most := calls[0], 1
	c.startTimer()
	if !g.gs.inline {
		most = min(len(calls), g.gs.cfg.BatchMax)
	}
	attempts, err := g.newAttempts(calls[:most])
	switch len(attempts) {
	case 0:
		return nil, err
	case 1:
		attempts[0].start(g.ctx, g.gs.clk.Now())
	default: // the token last: what comes before it may take long
		if err := c.until(g.gs.tokens); err != nil {
			for _, b := range attempts {
				b.finish(err)
			}
			return nil, err
		}
		g.gs.askAll(attempts)
	}
	return attempts, nil
}

// newAttempts makes attempts until there is no lease for one, or until calls that wait came
// before for its key: then it is the only one, or is not made yet.
func (g *group) newAttempts(calls []*call) (attempts []*attempt, err error) {
	for _, c := range calls {
		if err := c.settleLast(); err != nil {
			return nil, err
		}
	}
	for _, c := range calls {
		came, late := c.arrive() // before the lease, as a single call
		if late && len(attempts) > 0 {
			came.leave()
			break
		}
		b, err := c.newAttempt(came)
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

// askAll asks for the locks of attempts with one question, and goes on when the call
// leaves. The caller has a token of groups, which is handed back.
func (gs *groups) askAll(attempts []*attempt) {
	asks := make([]store.Ask, len(attempts))
	for i, b := range attempts {
		asks[i] = b.firstAsk(gs.clk.Now())
	}
	asking := len(attempts) > 0 && gs.spawn(func() {
		defer func() { gs.tokens <- struct{}{} }()
		ctx, cancel := context.WithTimeout(gs.ctx, gs.cfg.StoreTimeout)
		defer cancel()
		ctx, end := gs.obs.Batch(ctx, "acquire", attempts[0].tr, len(attempts))
		answers, err := gs.ask(ctx, asks)
		end(err)
		gs.answerAll(attempts, answers, err)
	})
	if asking {
		return
	}
	gs.tokens <- struct{}{}
	for _, b := range attempts {
		b.finish(batcher.ErrStopped)
	}
}

// answerAll brings the answers to the attempts of a group. All behind the first that was
// not granted are unwanted; that is said first, for the group goes on with the next
// attempt as soon as one has won.
func (gs *groups) answerAll(attempts []*attempt, answers []store.Answer, err error) {
	granted := 0
	for err == nil && granted < len(attempts) && answers[granted].Outcome == store.Granted {
		granted++
	}
	for i := len(attempts) - 1; i > granted; i-- {
		attempts[i].unwant()
	}
	for i, b := range attempts {
		switch {
		case err != nil:
			b.onAcquire(store.Answer{}, err)
		case i == granted && answers[i].Outcome == store.RowLocked:
			b.start(b.tr.Carry(gs.ctx), gs.clk.Now()) // once more, alone, with the patience of a lane
		default:
			b.onAcquire(answers[i], nil)
		}
	}
}

// endWaits ends the spans of the waits of a group that failed.
func (g *group) endWaits(err error) {
	code := types.CodeOf(err)
	for _, c := range g.calls {
		c.tr.Leave()
		c.tr.EndWait(code)
	}
}

// await returns what an attempt has won, and sees to it that the parts last meanwhile.
func (g *group) await(c *call, b *attempt) (types.Grant, error) {
	if !b.isOver() {
		defer g.extending()()
	}
	grant, err := c.await(b)
	g.wasQueued = g.wasQueued || c.wasQueued
	return grant, err
}

// grants are what the group has got, in the order in which the keys were named.
func (g *group) grants(keys []string) []types.Grant {
	got := make([]types.Grant, len(g.members))
	for i, p := range g.members {
		p.g.Waited, p.g.ExpiresIn = g.waited, g.calls[i].slot.Left
		got[i] = p.g
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
