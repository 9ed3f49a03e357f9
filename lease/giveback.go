package lease

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// What nobody was told of is given back, for as long as the store may keep it. A lock
// that has a MinHold does not end with its lease, but stands: then it is undone.

// leaseLives reports whether the store keeps what the bid has. A session's lock
// lasts, if nobody frees it, as long as its lease is renewed, not only for a TTL.
func (b *bid) leaseLives() bool { return b.lease != nil && b.lease.alive(b.m.clk) }

// mayGet tells for how long the bid may have something: under the lease a
// session's lock or a place in line; and after that a bind:ttl lock for its TTL, and
// what stands for its MinHold.
func (b *bid) mayGet() func() bool {
	if b.req.Bind == BindSession && !b.lease.own() {
		return b.leaseLives
	}
	lasts := b.m.within(b.lasts())
	return func() bool {
		if b.leaseLives() {
			lasts = b.m.within(b.lasts())
		}
		return lasts()
	}
}

// lasts is for how long a lock that outlives the bid's lease keeps its key.
func (b *bid) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// loosen notes that something may change the store on the bid's behalf until the
// returned function is called. A lease of the bid's own is kept until then: its burial
// would make the lock stand for its MinHold, though nobody was told of it. The bid
// must not be over, or must have been closed but not ended.
func (b *bid) loosen() (settled func()) {
	b.loose.Add(1)
	if b.lease == nil || !b.lease.own() {
		return b.loose.Done
	}
	b.lease.riders.Add(1)
	return func() {
		b.lease.unpin()
		b.loose.Done()
	}
}

// giveBack releases what the bid has won, in the background. Nobody was told of it,
// so its MinHold keeps it from nobody.
func (b *bid) giveBack(token int64) {
	if token == b.shared {
		return
	}
	c, matters, settled := store.Claim{Key: b.req.Key, Token: token, AtOnce: true, Traceparent: b.req.Traceparent}, b.leaseLives, b.loose.Done
	if b.req.Bind == BindSession {
		c.Lease = b.lease.id
		settled = b.m.afterwards(b.tr.carry(context.Background()), b.attempt(), b.lease, b.req.MinHold, b.loosen())
	} else {
		c.Untold = true
		matters = b.m.within(b.lasts())
		b.loose.Add(1)
	}
	b.tellGivenBack(token)
	b.m.free(b.tr.carry(context.Background()), c, matters, settled)
}

// afterwards is for what is freed at once, hold or not, and rides on a lease of its own:
// if that died before the store heard of it, the lock stands, and is undone.
func (m *Manager) afterwards(ctx context.Context, a store.Attempt, l *renewed, hold time.Duration, settled func()) func() {
	return func() {
		if !l.own() || l.alive(m.clk) {
			settled()
			return
		}
		m.undoOnce(ctx, a, m.within(hold), settled)
	}
}

// within reports true for so long.
func (m *Manager) within(d time.Duration) func() bool {
	until := m.clk.Now().Add(d)
	return func() bool { return m.clk.Now().Before(until) }
}
