package lease

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// What nobody was told of is handed back, for as long as the store may keep it. A lock
// that has a MinHold does not end with its lease, but stands: then it is withdrawn.

// leaseLives reports whether the store keeps what the attempt has. A session's lock
// lasts, if nobody frees it, as long as its lease is renewed, not only for a TTL.
func (b *attempt) leaseLives() bool { return b.lease != nil && b.lease.alive(clock.Read(b.m.clk)) }

// mayGet tells for how long the attempt may have something: under the lease a
// session's lock or a queue position; and after that a bind:ttl lock for its TTL, and
// what stands for its MinHold.
func (b *attempt) mayGet() func() bool {
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

// lasts is for how long a lock that outlives the attempt's lease keeps its key.
func (b *attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// beginCleanup notes that something may change the store on the attempt's behalf until the
// returned function is called. A lease of the attempt's own is kept until then: its revocation
// would make the lock stand for its MinHold, though nobody was told of it. The attempt
// must not be over, or must have been closed but not ended.
func (b *attempt) beginCleanup() (settled func()) {
	b.inFlight.Add(1)
	if b.lease == nil || !b.lease.own() {
		return b.inFlight.Done
	}
	b.lease.users.Add(1)
	return func() {
		b.lease.unpin()
		b.inFlight.Done()
	}
}

// onLateAnswer hears an answer that came when the attempt was over. If the attempt's own lease was
// lost, the store may have heard the question after the withdrawal and before the revocation.
// Then the lock would last for its MinHold, although nobody was told of it: it is withdrawn again.
func (b *attempt) onLateAnswer() {
	b.mu.Lock()
	won := b.err == nil
	b.mu.Unlock()
	if !won && b.lease != nil && b.lease.own() {
		b.m.withdrawOnce(b.tr.Carry(context.Background()), b.ref(), b.m.within(b.lasts()), func() {})
	}
}

// handBack releases what the attempt has won, in the background. Nobody was told of it,
// so its MinHold keeps it from nobody.
func (b *attempt) handBack(token int64) {
	if token == b.shared {
		return
	}
	c, matters, settled := store.Claim{Key: b.req.Key, Token: token, AtOnce: true, Traceparent: b.req.Traceparent}, b.leaseLives, b.inFlight.Done
	if b.req.Bind == BindSession {
		c.Lease = b.lease.id
		settled = b.m.afterwards(b.tr.Carry(context.Background()), b.ref(), b.lease, b.req.MinHold, b.beginCleanup())
	} else {
		c.Undelivered = true
		matters = b.m.within(b.lasts())
		b.inFlight.Add(1)
	}
	b.m.obs.HandedBack(b.req.Key, token, b.req.Traceparent)
	b.m.free(b.tr.Carry(context.Background()), c, matters, settled)
}

// afterwards is for what is freed at once, hold or not, and is held under a lease of its own:
// if that died before the store heard of it, the lock stands, and is withdrawn.
func (m *Manager) afterwards(ctx context.Context, a store.Attempt, l *lease, hold time.Duration, settled func()) func() {
	return func() {
		if !l.own() || l.alive(clock.Read(m.clk)) {
			settled()
			return
		}
		m.withdrawOnce(ctx, a, m.within(hold), settled)
	}
}

// within reports true for so long.
func (m *Manager) within(d time.Duration) func() bool {
	until := m.clk.Now().Add(d)
	return func() bool { return m.clk.Now().Before(until) }
}
