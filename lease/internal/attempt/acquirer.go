package attempt

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Config is the configuration of an Acquirer.
type Config struct {
	types.Config
	Observer   *observe.Observer
	Store      waitStore
	Lanes      *lanes.Set
	HeldCache  *heldcache.Cache
	Leases     *heartbeat.Leases
	Holdings   *holdings.Set
	Background *background.Runner
	// Granted is called with how long the store may keep a new grant without a renewal, and whether a session
	// holds it.
	Granted func(now time.Time, lasts time.Duration, held bool)
	// Draining is closed when waiting calls must end.
	Draining <-chan struct{}
}

// Acquirer gets locks for sessions, and bind:ttl locks. The methods of its queue are also its own.
type Acquirer struct {
	*queue

	lanes     *lanes.Set
	heldCache *heldcache.Cache
	leases    *heartbeat.Leases
	holdings  *holdings.Set
	later     *background.Runner
	arrivals  *arrivals
	requests  repeat.Requests // requests with BindTTL
	waiters   atomic.Int64    // calls that wait

	// shares: the store grants shares.
	shares bool
	// longestQueue is the store's limit; zero means none.
	longestQueue int
	// inline: the store answers at once, in the caller's goroutine (see its traits).
	inline   bool
	granted  func(now time.Time, lasts time.Duration, held bool)
	draining <-chan struct{}
	ctx      context.Context // ends with the sidecar
}

// New makes an acquirer, which works until ctx ends.
func New(ctx context.Context, c Config) (*Acquirer, error) {
	traits := c.Store.Traits()
	aq := &Acquirer{
		queue: newQueue(c.Config, c.Observer, c.Store, c.Background.Spawn),
		lanes: c.Lanes, heldCache: c.HeldCache, leases: c.Leases, holdings: c.Holdings, later: c.Background,
		shares: traits.Shared, longestQueue: traits.LongestQueue, inline: traits.Inline,
		granted: c.Granted, draining: c.Draining, ctx: ctx,
	}
	aq.arrivals = newArrivals(aq.enqueueAll, aq.gathers)
	return aq, aq.requests.Remember(holdings.Remembered)
}

// Run checks waiting attempts when they are due, until the sidecar stops.
func (aq *Acquirer) Run() { aq.queue.watch(aq.ctx) }

// LeaseLost makes the attempts that wait under a lease begin again under another one. It returns their number.
func (aq *Acquirer) LeaseLost(l *heartbeat.Lease) int {
	waiting := aq.WaitingUnder(l)
	for _, b := range waiting {
		b.leaseGone(l)
	}
	return len(waiting)
}

// Kept counts stored items. Without calls, all counts are zero.
func (aq *Acquirer) Kept() map[string]int {
	aq.arrivals.mu.Lock()
	defer aq.arrivals.mu.Unlock()
	return map[string]int{
		"waiters": int(aq.waiters.Load()), "keys with arrivals": len(aq.arrivals.keys), "attempts": int(aq.queue.size.Load()),
		"keys with attempts": aq.queue.keys(), "requests in use": aq.requests.Count(),
	}
}

// Acquire gets a lock for a session, or a BindTTL lock: see Acquire of package lease.
func (aq *Acquirer) Acquire(ctx context.Context, s *holdings.Session, req *types.Request) (types.Grant, error) {
	if err := aq.Refuses(req); err != nil {
		return types.Grant{}, err
	}
	req.TTL = aq.TTLOf(s, req)
	if req.Bind == types.BindTTL {
		return aq.acquireTTL(ctx, req)
	}
	c := aq.NewCall(ctx, s, req)
	if req.RequestID != uuid.Nil {
		return aq.acquireInTurn(c)
	}
	return aq.acquireIn(c)
}

// Refuses returns why a request can never be granted, or nil.
func (aq *Acquirer) Refuses(req *types.Request) error {
	switch {
	case aq.IsDraining():
		return types.ErrDraining
	case req.Shared && !aq.shares:
		return &store.UnsupportedError{Capability: store.FeatureShared}
	}
	return nil
}

// AskAll asks for the locks of attempts with one question, which continues if the call leaves. done is called
// when the answers have come, or when the sidecar stops.
func (aq *Acquirer) AskAll(attempts []*Attempt, done func()) {
	asks := make([]store.Ask, len(attempts))
	for i, b := range attempts {
		asks[i] = b.firstAsk(aq.clk.Now())
	}
	asking := len(attempts) > 0 && aq.later.Spawn(func() {
		defer done()
		ctx, cancel := context.WithTimeout(aq.ctx, aq.cfg.StoreTimeout)
		defer cancel()
		ctx, end := aq.obs.Batch(ctx, "acquire", attempts[0].tr, len(attempts))
		answers, err := aq.store.Acquire(ctx, asks)
		end(err)
		aq.answerAll(attempts, answers, err)
	})
	if asking {
		return
	}
	done()
	for _, b := range attempts {
		b.Finish(batcher.ErrStopped)
	}
}

// answerAll passes the answers to the attempts of a group. First it makes all attempts after the first that was
// not granted unwanted, because the group continues as soon as one has won.
func (aq *Acquirer) answerAll(attempts []*Attempt, answers []store.Answer, err error) {
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
			b.Start(b.tr.Carry(aq.ctx), aq.clk.Now()) // once more, alone, in a lane, which tries for longer
		default:
			b.onAcquire(answers[i], nil)
		}
	}
}

// IsDraining reports whether acquires are refused.
func (aq *Acquirer) IsDraining() bool { return types.Closed(aq.draining) }

func (aq *Acquirer) acquireIn(c *Call) (types.Grant, error) {
	s, req := c.S, c.req
	if req.Reentrant {
		if g, ok := s.Enter(req); ok {
			aq.obs.Cached(observe.CachedEntry)
			return g, nil
		}
	}
	if err := s.Admit(&c.Slot); err != nil {
		return types.Grant{}, err
	}
	defer s.Leave(&c.Slot)
	if lock, ok := aq.HeldInCache(s, req); ok {
		return types.Grant{}, &types.HeldError{Lock: lock, Cached: true}
	}
	return aq.Perform(c)
}

// TTLOf is the TTL that a request asks for, or the default.
func (aq *Acquirer) TTLOf(s *holdings.Session, req *types.Request) time.Duration {
	switch {
	case req.TTL != 0:
		return req.TTL
	case s != nil && req.Bind == types.BindSession:
		return s.TTL()
	default:
		return aq.cfg.TTL
	}
}

// acquireTTL gets a bind:ttl lock. Calls with the same request id take turns.
func (aq *Acquirer) acquireTTL(ctx context.Context, req *types.Request) (types.Grant, error) {
	if req.RequestID == uuid.Nil {
		if lock, ok := aq.HeldInCache(nil, req); ok {
			return types.Grant{}, &types.HeldError{Lock: lock, Cached: true}
		}
		return aq.Perform(aq.NewCall(ctx, nil, req))
	}
	w := repeat.NewWithdrawal()
	c := aq.NewCall(ctx, nil, req)
	c.began, c.withdrawn = aq.clk.Now(), w.Ended()
	r := aq.requests.Use(repeat.AttemptID(req.RequestID, req.Key), w)
	defer aq.requests.Done(r, w)
	if err := aq.TakeTurn(ctx, nil, r, req.Wait, w); err != nil {
		return types.Grant{}, err
	}
	defer func() { aq.LeaveAfter(&aq.requests, r, c) }()
	c.shared = r.Shared()
	g, err := aq.Perform(c)
	if err == nil {
		g.Repeats = r
		r.Give(g.Token)
	}
	return g, err
}

// HeldInCache answers without the store that a key is held: by a session here, or by another holder a moment
// ago. If the request's owner has just got the lock and may enter it, the request is not denied. A share is
// denied only because of an exclusive holder.
func (aq *Acquirer) HeldInCache(s *holdings.Session, req *types.Request) (store.Lock, bool) {
	if req.Wait != 0 || req.NoCache {
		return store.Lock{}, false
	}
	if h := aq.holdings.Get(req.Key); h != nil && h.Valid(clock.Read(aq.clk)) {
		if h.Of(s) && h.Admits(req) || req.Shared && h.IsDowngraded() {
			return store.Lock{}, false
		}
		aq.obs.Cached(observe.CachedHeld)
		return h.State(), true
	}
	if req.Shared {
		return store.Lock{}, false
	}
	lock, ok := aq.heldCache.Get(req.Key)
	if !ok || s.Expects(&lock, req) {
		return store.Lock{}, false
	}
	aq.obs.Cached(observe.CachedDenied)
	return lock, true
}

// knownHeld reports whether a session here holds the key, or a call here waits for it.
func (aq *Acquirer) knownHeld(key string) bool {
	h := aq.holdings.Get(key)
	return h != nil && h.Valid(clock.Read(aq.clk)) || aq.QueueLength(key) > 0
}

// isLate reports whether a waiting attempt can skip asking for its key, because other calls came before, or the
// key is known to be held. An attempt that shares its grant with other calls must ask. a may be nil.
func (aq *Acquirer) isLate(a *Arrival, shared int64) bool {
	return a != nil && shared == 0 && (a.behind || aq.knownHeld(a.key))
}

// Perform gets a lock that was not denied from the cache.
func (aq *Acquirer) Perform(c *Call) (types.Grant, error) {
	if c.req.Wait != 0 {
		if err := aq.AddWaiter(); err != nil {
			return types.Grant{}, err
		}
		defer aq.WaiterLeft()
		if c.S != nil && c.S.Explicit() {
			defer c.warnOfOwnKey()()
		}
	}
	c.tr = aq.obs.Call(c.ctx, c.req.Key, c.req.Shared)
	if c.began.IsZero() && (c.req.Wait != 0 || c.req.Reentrant) { // the others begin with their first attempt
		c.began = aq.clk.Now()
	}
	g, err := c.acquire()
	c.tr.Leave()
	c.tr.EndWait(types.ResultOf(&g, err))
	return g, err
}

// AddWaiter counts a waiting call. It returns a [LimitError] if there are too many.
func (aq *Acquirer) AddWaiter() error {
	if n := aq.waiters.Add(1); n > int64(aq.cfg.MaxWaiters) {
		aq.waiters.Add(-1)
		return waiterLimit(aq.cfg.MaxWaiters)
	}
	return nil
}

// WaiterLeft ends the counting.
func (aq *Acquirer) WaiterLeft() { aq.waiters.Add(-1) }

// RequestsOf returns the requests of a session, or with nil those with BindTTL.
func (aq *Acquirer) RequestsOf(s *holdings.Session) *repeat.Requests {
	if s != nil {
		return &s.Requests
	}
	return &aq.requests
}

func waiterLimit(limit int) error {
	return &types.LimitError{What: "waiting calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
}

// acquireInTurn gets a session's lock under a request id. A repeat gets the same lock while it is held.
func (aq *Acquirer) acquireInTurn(c *Call) (types.Grant, error) {
	w, rs, req := repeat.NewWithdrawal(), &c.S.Requests, c.req
	c.began, c.withdrawn = aq.clk.Now(), w.Ended()
	r := rs.Use(repeat.AttemptID(req.RequestID, req.Key), w)
	defer rs.Done(r, w)
	if err := aq.TakeTurn(c.ctx, c.S, r, req.Wait, w); err != nil {
		return types.Grant{}, err
	}
	waited := aq.clk.Now().Sub(c.began) // before the lock's remaining time is read
	if g, ok := c.S.Again(req.Key, req.RequestID); ok {
		r.Leave()
		aq.obs.Cached(observe.CachedRepeat)
		g.Waited = waited
		return g, nil
	}
	g, err := aq.acquireIn(c)
	aq.leaveInTurn(rs, r, c, err)
	return g, err
}

// leaveInTurn ends a call's turn: at once if it has the lock, or has not asked the store for it.
func (aq *Acquirer) leaveInTurn(rs *repeat.Requests, r *repeat.Request, c *Call, err error) {
	if err == nil || !c.Asked() {
		r.Leave()
		return
	}
	aq.LeaveAfter(rs, r, c)
}

// EndCalls ends the running calls of a request, and takes the turn until leave is called.
func (aq *Acquirer) EndCalls(ctx context.Context, s *holdings.Session, id store.AttemptID) (r *repeat.Request, leave func(), err error) {
	rs := aq.RequestsOf(s)
	r = rs.Use(id, nil)
	rs.Withdraw(r)
	if err := aq.TakeTurn(ctx, s, r, 0, nil); err != nil {
		rs.Done(r, nil)
		return nil, nil, err
	}
	return r, func() {
		r.Leave()
		rs.Done(r, nil)
	}, nil
}

// TakeTurn waits for the turn of a call in a session, or with BindTTL outside sessions. It waits at least for
// the store's timeout, because earlier calls may take long. A release by the id (w is nil) also continues
// during a drain.
func (aq *Acquirer) TakeTurn(ctx context.Context, s *holdings.Session, r *repeat.Request, wait time.Duration, w *repeat.Withdrawal) error {
	select {
	case <-r.Turns(): // the usual case
		return nil
	default:
	}
	var over <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(max(wait, aq.cfg.StoreTimeout))
		defer timer.Stop()
		over = timer.C
	}
	var ending, withdrawn, draining <-chan struct{}
	if s != nil {
		ending = s.Ending()
	}
	if w != nil {
		withdrawn, draining = w.Ended(), aq.draining
	}
	select {
	case <-r.Turns():
		return nil
	case <-over:
		return &store.Error{Op: "acquire", Err: errors.New("an earlier call with the same request_id is not decided yet")}
	case <-ending:
		return types.ErrSessionEnded
	case <-withdrawn:
		return types.ErrWithdrawn
	case <-draining:
		return types.ErrDraining
	case <-ctx.Done():
		return errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
}

// LeaveAfter ends the turn when the call's attempts are settled, because a late cleanup would free the next grant.
func (aq *Acquirer) LeaveAfter(rs *repeat.Requests, r *repeat.Request, c *Call) {
	rs.UseAgain(r)
	go func() {
		defer rs.Done(r, nil)
		for _, b := range c.attempts {
			b.inFlight.Wait()
		}
		r.Leave()
	}()
}

// HandBackTTL hands back an undelivered bind:ttl grant, unless another call got it: here, or at another
// sidecar, which only the store knows. The next call's turn begins when the store has answered.
func (aq *Acquirer) HandBackTTL(g types.Grant) {
	c, matters := store.Claim{Key: g.Key, Token: g.Token, Undelivered: true, AtOnce: true}, aq.Within(g.ExpiresIn)
	free := func(settled func()) { aq.Free(context.Background(), c, matters, settled) }
	r := g.Repeats
	if r == nil { // a request without an id is never repeated
		free(func() {})
		return
	}
	if !aq.requests.UseAgain(r) {
		return // a later call decides about the grant
	}
	go func() {
		<-r.Turns()
		settled := func() {
			r.Leave()
			aq.requests.Done(r, nil)
		}
		if !r.TakeBack(g.Token) {
			settled()
			return
		}
		free(settled)
	}()
}
