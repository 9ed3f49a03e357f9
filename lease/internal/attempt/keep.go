package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Package keep has the words, and the states of a key. Here are the flows; keepable.go has what a lock knows of them. If the
// sidecar keeps no keys, aq.keeps is nil.

// keep tells how a release keeps a key: the app has released the lock, and the store is not told. It returns false if the store
// must be told. byApp: the app has released the lock, and its session goes on.
func (aq *Acquirer) keep(r *holdings.Release, byApp bool) bool {
	// The store let the sidecar keep this grant. If handOn met calls that ended just then, it has added them to Claim.Served:
	// the store must take them out of its queue, so the key is released.
	h, k := r.Lock, keepableOf(r.Lock)
	if k == nil || len(r.Claim.Served) > len(h.Member().Served()) {
		return false
	}
	// If the store was told of this lock, it is released under its own token. Otherwise the store knows only the grant.
	if !k.leavesUnseen() {
		return false
	}
	r.Claim.Token, r.Claim.Served = k.grant.Visible, nil
	// An outcome, a request to stop and a lock that is undelivered or shared are for the store.
	if !byApp || r.Claim.Outcome != store.NoOutcome || r.Claim.AtOnce || r.ToStore {
		return false
	}
	// The sidecar answers for the key as long as it trusts the lease of the grant, and hears when another one wants the key.
	g, l, t := k.grant, h.Lease(), clock.Read(aq.clk)
	if l != g.Lease || !l.Alive(t) || !aq.mayKeepUnder(l) {
		return false
	}
	// The next call takes the key from here on. If a call is here already, or the key was recalled, the key is released.
	l.Pin() // until the key is given up, or its taker has pinned it
	g.Traceparent = r.Claim.Traceparent
	if !aq.keeps.Keep(g, t.Now) {
		l.Unpin()
		return false
	}
	aq.heldCache.Drop(h.Key)
	// What ends all kept keys may have missed this one.
	if !aq.mayKeepUnder(l) {
		aq.GiveUp(h.Key)
	}
	return true
}

// mayKeepUnder reports whether keys may be kept under a lease now.
func (aq *Acquirer) mayKeepUnder(l *heartbeat.Lease) bool {
	return !aq.IsDraining() && !l.Lost() && !aq.leases.Retired(l) && aq.hears()
}

func (aq *Acquirer) hears() bool { return aq.store.Traits().Hears }

// takeKept tells how a call takes a key that is kept here. decided: the attempt has the key, or is over. Otherwise the store must be asked. A call that
// cannot take the key gives it up first, and waits until the store has it back.
func (c *Call) takeKept(b *Attempt) (decided bool, err error) {
	aq := c.aq
	if aq.keeps == nil || b.arrival != nil && b.arrival.behind { // the first in the line decides about the key
		return false, nil
	}
	for {
		var under *heartbeat.Lease
		if b.mayBeKept() && b.Lease().Alive(c.tick) {
			under = b.Lease()
		}
		how, g, token := aq.keeps.Take(c.req.Key, under, c.tick.Now)
		if how == keep.Got {
			if b.take(g, token, c.tick) {
				return true, nil
			}
			// The lock is handed back. When the store has confirmed it, Await finds that, and the call makes another attempt (MayGoOn).
			// The call may end before, with its wait or the store's time.
			return true, c.Until(c.CleanedUp())
		}
		if how == keep.MustGiveUp {
			aq.giveUp(g, false)
		}
		if how == keep.NotKept {
			return false, nil
		}
		if err := c.UntilGivenUp(g); err != nil {
			return true, err
		}
		c.tick = clock.Read(aq.clk)
	}
}

// take makes a key that was kept the attempt's. It returns false if the lock is handed back after that.
func (b *Attempt) take(g *keep.Grant, token int64, t clock.Tick) (stays bool) {
	aq := b.aq
	grant := store.Answer{Outcome: store.Granted, Token: token, AcquiredAt: g.AcquiredAt(t.Now), ExpiresIn: b.Lease().Remaining(t)}
	b.mu.Lock()
	got := b.receiveLocked(&grant, t.Now, t, takenMember(g, b.id, t.Now))
	b.mu.Unlock()
	b.noteReceived(&grant, &got, t.Now)
	if !got.won {
		aq.keeps.Return(g) // nobody wants it any more, or the session or the lease has just ended
		aq.giveUp(g, false)
		b.end()
		return true
	}
	g.Lease.Unpin() // the lock has pinned it
	aq.keeper.takes.Add(1)
	aq.obs.Took(b.tr.Carry(context.Background()))
	// After a failover, locks are verified that were here when the lease was retired. This one may have come later.
	if stays = !aq.leases.Retired(g.Lease); !stays {
		b.Cancel()
	}
	aq.tellIfRecalled(g, token)
	b.end()
	return stays
}

// giveUp tells how a key that was kept is given up: the release that was put off is sent, until the store confirms it, or the lease is dead. The key's
// entry in the table says so already, so that calls wait for that. awaited: somebody waits for the key, as far as the sidecar knows.
func (aq *Acquirer) giveUp(g *keep.Grant, awaited bool) {
	mayHave := aq.MayHave(g.Lease, 0)
	persist(context.Background(), aq.later, aq.lanes.Releases.Submit, claimOf(g, awaited), func(v store.Verdict, err error) bool {
		if types.ClaimError("release", v.Status, err) != nil && mayHave() {
			aq.tryFailed(g, err)
			return false
		}
		aq.gaveUp(g, err == nil && v.Status == store.Holds)
		return true
	}, func() { aq.gaveUp(g, false) }) // also if the sidecar stops
}

func claimOf(g *keep.Grant, awaited bool) store.Claim {
	return store.Claim{Key: g.Key, Token: g.Visible, Lease: g.Lease.ID(), Awaited: awaited, Traceparent: g.Traceparent}
}

// tryFailed tells the calls that do not wait of a try without an answer. They wait on if only the key's row is locked (err is nil), and when the sidecar stops,
// for that ends the give-up, too.
func (aq *Acquirer) tryFailed(g *keep.Grant, err error) {
	if err != nil && aq.ctx.Err() == nil {
		aq.keeps.Fails(g, err)
	}
}

// gaveUp ends a give-up. freed: the store has freed the key.
func (aq *Acquirer) gaveUp(g *keep.Grant, freed bool) {
	aq.heldCache.Drop(g.Key)
	if aq.keeps.GaveUp(g, freed) {
		g.Lease.Unpin()
	}
}

// hastened returns the try to give a key up that will end next. If the last one has failed, that is another one, which it begins: a call that does not wait
// for the key ends with that, as its own ask would.
func (aq *Acquirer) hastened(g *keep.Grant) *keep.Try {
	next, begin := aq.keeps.NextTry(g)
	if !begin {
		return next
	}
	answered := func(v store.Verdict, err error) {
		if types.ClaimError("release", v.Status, err) != nil {
			aq.tryFailed(g, err) // the usual tries go on
			return
		}
		aq.gaveUp(g, v.Status == store.Holds)
	}
	if err := aq.lanes.Releases.Submit(context.Background(), claimOf(g, false), answered); err != nil {
		answered(store.Verdict{}, err)
	}
	return next
}

// TryToGiveUp gives a key up if it is kept, and returns the try that will end next; nil: the key is not kept.
func (aq *Acquirer) TryToGiveUp(key string) *keep.Try {
	if g := aq.GiveUp(key); g != nil {
		return aq.hastened(g)
	}
	return nil
}

// GiveUp gives a key up if it is kept, and returns the grant; nil: the key is not kept.
func (aq *Acquirer) GiveUp(key string) *keep.Grant {
	if aq.keeps == nil {
		return nil
	}
	how, g := aq.keeps.GiveUp(key)
	if how == keep.NotKept {
		return nil
	}
	if how == keep.MustGiveUp {
		aq.giveUp(g, false)
	}
	return g
}

// GiveUpAll gives up all kept keys, or those under a lease if it is not nil.
func (aq *Acquirer) GiveUpAll(under *heartbeat.Lease) {
	if aq.keeps == nil {
		return
	}
	for _, g := range aq.keeps.GiveUpAll(under) {
		aq.giveUp(g, false)
	}
}

// GivingUp are closed when the keys that are being given up now have been.
func (aq *Acquirer) GivingUp() (all []<-chan struct{}) {
	if aq.keeps == nil {
		return nil
	}
	for _, g := range aq.keeps.GivenUp() {
		all = append(all, g.GivenUp())
	}
	return all
}

// Recall gives a key up that another sidecar wants, if it is kept. If a session here has it, the store is told, so that others see who
// holds it. If neither is so, the grant may be on its way: see tellIfRecalled.
func (aq *Acquirer) Recall(key string) {
	if aq.keeps == nil {
		return
	}
	if g := aq.keeps.Recall(key); g != nil {
		aq.obs.Recalled(aq.keeps.Judge(g))
		aq.giveUp(g, true)
		return
	}
	if h, g := aq.heldKeepable(key); h != nil {
		aq.obs.Recalled(aq.keeps.Judge(g))
		aq.later.Spawn(func() { aq.tell(h) }) // news must not wait for a lane
	}
}

// Expose makes others see who holds a key, if this sidecar keeps it or may keep it: it is given up, or the store is told of the holder. Here, somebody
// else than another sidecar's call wants to see that.
func (aq *Acquirer) Expose(key string) {
	if aq.keeps == nil {
		return
	}
	if g := aq.keeps.Recall(key); g != nil {
		aq.giveUp(g, false)
	} else if h, _ := aq.heldKeepable(key); h != nil {
		aq.later.Spawn(func() { aq.tell(h) })
	}
}

// CountCalls records that a call for these keys is present, until it has left.
func (aq *Acquirer) CountCalls(keys ...string) (left func()) {
	if aq.keeps == nil {
		return func() {}
	}
	for _, key := range keys {
		aq.keeps.CallCame(key)
	}
	return func() {
		for _, key := range keys {
			aq.keeps.CallLeft(key)
		}
	}
}

// last is the Last of the attempt's ask: see [store.Ask].
func (b *Attempt) last() int64 {
	if b.aq.keeps == nil || !b.mayBeKept() {
		return 0
	}
	last := b.aq.keeps.Last(b.req.Key, b.sent)
	if last == 0 {
		return 0
	}
	if told := b.aq.keeper.wants(b.sent, b.aq.hears()); !told || !b.aq.hears() {
		return 0
	}
	return last
}

// IsKept reports whether a key is kept here, or being given up: no session has it.
func (aq *Acquirer) IsKept(key string) bool { return aq.keeps != nil && aq.keeps.IsKept(key) }

// IsFree reports whether this sidecar knows without the store that nobody has a key, because it keeps the key.
func (aq *Acquirer) IsFree(key string) bool { return aq.keeps != nil && aq.keeps.IsFree(key) }

// KeptKeys is the number of keys that are kept, or being given up.
func (aq *Acquirer) KeptKeys() int {
	if aq.keeps == nil {
		return 0
	}
	return aq.keeps.Count()
}

// Keeps reports whether the sidecar keeps keys. Only then RunKeeps must run.
func (aq *Acquirer) Keeps() bool { return aq.keeps != nil }

// RunKeeps gives up keys that are not used, and tells the store of holders that took a key a while ago, until ctx ends.
func (aq *Acquirer) RunKeeps(ctx context.Context) {
	clock.Loop(ctx, aq.keeps.Wake, func() time.Duration {
		if aq.keeps.Count() > 0 && !aq.hears() {
			aq.GiveUpAll(nil)
		}
		giveUp, tell, next := aq.keeps.Due()
		for _, g := range giveUp {
			aq.giveUp(g, false)
		}
		for _, key := range tell {
			if h, g := aq.heldKeepable(key); h != nil {
				aq.keeps.Judge(g) // it is not kept any more
				aq.tell(h)
			} else if h := aq.holdings.Get(key); h != nil && h.IsServed() {
				aq.tell(h) // it was handed on since
			}
		}
		rest, ends := aq.keeper.rest(aq.clk.Now())
		if ends {
			aq.GiveUpAll(nil) // nor is a key kept whose grant was asked for before
		}
		return min(next, rest)
	})
}

// learn notes who holds a key, by an answer. A holder of this sidecar holds the key for a session: its Kept says nothing.
func (aq *Acquirer) learn(lock *store.Lock) {
	switch {
	case lock.Holder.Instance == aq.cfg.Instance:
		lock.Kept = false
	case aq.keeps != nil:
		aq.keeps.Elsewhere(lock.Key)
	}
}
