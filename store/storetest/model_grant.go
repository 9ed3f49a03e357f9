package storetest

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// handOff grants a key to the first waiters that fit, and reaps expired ones.
func (m *model) handOff(k *modelLock) {
	m.dropDead(k)
	for len(k.line) > 0 && (len(k.shares) > 0 || !m.keeps(k.modelHold)) {
		first := k.line[0]
		if lease := m.leases[first.Lease]; !m.alive(lease) {
			m.revoke(lease)
			continue
		}
		if !m.fits(k, first) {
			return
		}
		k.line = k.line[1:]
		m.handedOff = append(m.handedOff, first)
		m.grant(k, first)
	}
}

// dropDead forgets dead shares without a hold.
func (m *model) dropDead(k *modelLock) {
	k.shares = slices.DeleteFunc(k.shares, func(h *modelHold) bool { return h.lease.dead && !m.onHold(h) })
}

// fits reports whether only the queue can block an ask.
func (m *model) fits(k *modelLock, a modelAsker) bool {
	if len(k.shares) == 0 {
		return !m.keeps(k.modelHold)
	}
	its := func(h *modelHold) bool { return h.holder.ID == a.ID && !h.released } // a hold keeps it after the death of its lease
	return a.Shared && (k.limit() == 0 || len(k.shares) < k.limit()) && !slices.ContainsFunc(k.shares, its)
}

// limit returns the limit of the shares or of the shared waiters: the last that was named. A downgrade makes a share without
// a limit beside shared waiters that have expired, whatever these name.
func (k *modelLock) limit() int {
	if len(k.shares) > 0 || slices.ContainsFunc(k.line, func(w modelAsker) bool { return w.Shared }) {
		return k.named
	}
	return 0
}

// limits returns the limits that a key may show. A store that is not exact may show that of expired waiters if no others are
// shared.
func (m *model) limits(k *modelLock) []int {
	shown := []int{k.limit()}
	for _, w := range k.line {
		switch {
		case len(k.shares) > 0 || w.Shared && m.alive(m.leases[w.Lease]):
			return shown[:1]
		case w.Shared && !m.exact:
			shown = append(shown, w.Limit)
		}
	}
	return shown
}

func (m *model) grant(k *modelLock, a modelAsker) {
	h := &modelHold{holder: a, lease: m.leases[a.Lease], after: k.last}
	if a.TTL > 0 {
		h.lease = &modelLease{ttl: a.TTL, expires: m.clock.Add(max(a.TTL, a.MinHold))}
	}
	if a.MinHold > 0 {
		h.hold = m.clock.Add(a.MinHold)
	}
	if a.Shared {
		for a.Limit > 0 && slices.ContainsFunc(k.shares, func(other *modelHold) bool { return other.slot == h.slot }) {
			h.slot++
		}
		k.shares, k.named = append(k.shares, h), a.Limit
	}
	k.modelHold, k.swept = h, false
	m.tell(k, h, store.Event{Kind: store.EventAcquired})
}

// giveUp ends a grant. The first living waiters get the lock, at once or after the hold.
func (m *model) giveUp(k *modelLock, h *modelHold, atOnce bool) {
	h.released = true
	k.ends[h.token] = store.Released
	if atOnce || !m.onHold(h) {
		m.pass(k, h)
		return
	}
	h.stopping = nil
	m.leave(h)
	m.hint(k)
}

// leave detaches a lock from its lease, which may have other locks.
func (m *model) leave(h *modelHold) {
	if !h.lease.renewed {
		m.kill(h.lease)
	}
	h.lease = &modelLease{dead: true}
}

// pass takes a lock from its holder and hands it to the first living waiters.
func (m *model) pass(k *modelLock, h *modelHold) {
	m.leave(h)
	h.hold = time.Time{}
	if len(k.shares) == 0 {
		k.lease = nil
	}
	k.shares = slices.DeleteFunc(k.shares, func(other *modelHold) bool { return other == h })
	m.handOff(k)
}

// letIn grants shares after a waiter before them has left.
func (m *model) letIn(k *modelLock) {
	if len(k.shares) > 0 {
		m.handOff(k)
	}
}

// due reports whether waiters may get a key, or a share of it, as soon as somebody meets the key: a grant's lease is
// dead, and its hold is over. The waiters know when that is, and their checks must hand the key on. Other operations may.
func (m *model) due(k *modelLock) bool {
	over := func(h *modelHold) bool { return h.lease != nil && h.lease.dead && !m.onHold(h) }
	return len(k.line) > 0 && slices.ContainsFunc(k.holds(), over)
}

// passDue hands a key on that is due.
func (m *model) passDue(k *modelLock) {
	if len(k.shares) > 0 {
		m.letIn(k)
		return
	}
	k.hold = time.Time{}
	m.consequences()
}

// lapse ends a grant that expired.
func (m *model) lapse(k *modelLock, h *modelHold) {
	k.expire(h)
	m.pass(k, h)
}

// meetShares reaps expired shares and ends holds that are over.
func (m *model) meetShares(k *modelLock) {
	var expired []*modelLease
	for _, h := range k.shares {
		if !m.keeps(h) && !h.lease.dead {
			expired = append(expired, h.lease)
		}
	}
	m.revoke(expired...)
	m.letIn(k)
}

// mismatch reports whether shares or shared waiters have another limit. Expired waiters are reaped
// first.
func (m *model) mismatch(k *modelLock, a modelAsker) bool {
	shared := func(w modelAsker) bool { return w.Shared }
	if !a.Shared || k.limit() == a.Limit || len(k.shares) == 0 && !slices.ContainsFunc(k.line, shared) {
		return false
	}
	if len(k.shares) > 0 {
		return true
	}
	var expired []*modelLease
	for _, w := range k.line {
		if l := m.leases[w.Lease]; w.Shared && !m.alive(l) {
			expired = append(expired, l)
		}
	}
	m.revoke(expired...)
	return slices.ContainsFunc(k.line, shared)
}

// downgrade turns an exclusive lock into a share, and lets waiters in. A repeated downgrade lets them in, too,
// because the first one may have ended before that.
func (m *model) downgrade(k *modelLock) {
	if len(k.shares) == 0 {
		k.holder.Shared, k.holder.Limit = true, 0
		if slices.ContainsFunc(k.line, func(w modelAsker) bool { return w.Shared && m.alive(m.leases[w.Lease]) }) {
			k.holder.Limit = k.limit()
		}
		k.shares, k.named = []*modelHold{k.modelHold}, k.holder.Limit
	}
	m.letIn(k)
}

// has returns the grant of an attempt if it has not ended.
func (m *model) has(k *modelLock, id store.AttemptID) *modelHold {
	if h := k.grantOf(id); h != nil && m.alive(h.lease) {
		return h
	}
	return nil
}

// grantOf returns the grant of an attempt if it was not released.
func (k *modelLock) grantOf(id store.AttemptID) *modelHold {
	for _, h := range k.holds() {
		if h.holder.ID == id && !h.released {
			return h
		}
	}
	return nil
}

// repeatedBy notes which instance may have delivered a grant.
func (h *modelHold) repeatedBy(instance int) {
	h.repeated = h.repeated || h.holder.by != instance
}

// mayBeUndelivered reports whether an instance may hand back a bind:ttl lock as undelivered. The lock
// must not have been returned to another instance.
func (m *model) mayBeUndelivered(h *modelHold, instance int) bool {
	if h.holder.TTL == 0 {
		return h.holder.by == instance || !m.onHold(h)
	}
	return h.holder.by == instance && !h.repeated
}

// held returns the held keys in order.
func (m *model) held() []string {
	var keys []string
	for key, k := range m.locks {
		if m.isHeld(k) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
