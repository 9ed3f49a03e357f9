package storetest

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// model says, in the plainest way that could be found, what a store should do
// when it is asked one thing after the other: no shards, no atomics, no index.
// Tokens are not predicted; they are learned from the first who tells them, and
// must grow.
type model struct {
	clock  time.Time // moves only when the machine lets time go by
	leases map[store.LeaseID]*modelLease
	locks  map[string]*modelLock
	// The operation under way must send news of grants, of skipped waiters, hints, and
	// events of watched keys.
	handedOff []modelAsker
	skipped   []modelAsker
	hinted    []modelAsker
	hints     []*modelLock // whose waiters are to look
	events    []modelEvent
	// unsure are those whose watch ended with its lease in the middle of the operation.
	// lapsed are all whose watch ended so: it is to be ended or renewed by its owner, and
	// until then some stores tell it of its own doings.
	unsure, lapsed map[modelWatch]bool
	// results of those who were skipped.
	results map[store.AttemptID]string
	granted map[modelGrant]bool // all that ever were
}

type modelGrant struct {
	grant store.AttemptID
	token int64
}

type modelLease struct {
	renewed bool
	by      int // the instance that opened it
	ttl     time.Duration
	expires time.Time
	dead    bool
	// signals are those to the holders of now, by key and kind.
	signals map[modelSignal]*string
}

type modelAsker struct {
	store.Ask
	by int // which instance
}

// modelHold is a grant of a key.
type modelHold struct {
	holder modelAsker
	lease  *modelLease // nil: released, or never held
	hold   time.Time   // until when the key is kept, whatever becomes of the lease
	token  int64       // zero: granted, but nobody told the token yet
	after  int64       // the highest token that was told before
	slot   int
	// released: it was; if a hold is pending, lease is not nil then.
	released bool
	// repeated: another instance than the first was told of the grant.
	repeated bool
	stopping *modelStop
}

type modelLock struct {
	key string
	// modelHold is the last grant: an exclusive one, or the youngest share.
	*modelHold
	// shares are in the order of their grants. A dead one is in the way of nobody.
	shares []*modelHold
	last   int64 // the highest token that was told
	line   []modelAsker
	// skips are waiters that were skipped, with the result.
	skips map[store.AttemptID]modelSkip
	swept bool // a sweep may have forgotten the last token
	// settle: the lease of a share died, or that of a waiter for one.
	settle bool
	// ends say how shares ended. A store need not remember that.
	ends map[int64]store.ClaimStatus
	// watchers are instances, each under a lease.
	watchers map[int]store.LeaseID
	// since is what had happened when they began to watch: that may still be on its way.
	since map[int]modelPast
	// expired are the grants that ended with their lease, until that is told, by instance.
	expired map[int]map[int64]bool
	// again are the reasons for which grants were asked to stop once more.
	again map[int64][]*string
}

type modelSkip struct {
	modelAsker
	result string
}

func newModel() *model {
	return &model{
		clock: time.Unix(1<<30, 0), leases: map[store.LeaseID]*modelLease{}, locks: map[string]*modelLock{},
		unsure: map[modelWatch]bool{}, lapsed: map[modelWatch]bool{}, results: map[store.AttemptID]string{}, granted: map[modelGrant]bool{},
	}
}

func (m *model) lock(key string) *modelLock {
	if m.locks[key] == nil {
		m.locks[key] = &modelLock{
			key: key, modelHold: &modelHold{}, ends: map[int64]store.ClaimStatus{}, skips: map[store.AttemptID]modelSkip{}, watchers: map[int]store.LeaseID{}, since: map[int]modelPast{}, expired: map[int]map[int64]bool{},
			again: map[int64][]*string{},
		}
	}
	return m.locks[key]
}

func (m *model) alive(l *modelLease) bool { return l != nil && !l.dead && l.expires.After(m.clock) }

// kept: a hold keeps the key, with a holder or without.
func (m *model) kept(h *modelHold) bool { return h.hold.After(m.clock) }

// keeps: a grant keeps the key.
func (m *model) keeps(h *modelHold) bool { return m.alive(h.lease) || m.kept(h) }

func (m *model) isHeld(k *modelLock) bool { return slices.ContainsFunc(k.holds(), m.keeps) }

// holds are the grants that may keep the key.
func (k *modelLock) holds() []*modelHold {
	if len(k.shares) > 0 {
		return slices.Clone(k.shares)
	}
	return []*modelHold{k.modelHold}
}

// first is the one that was granted first.
func (k *modelLock) first() *modelHold { return k.holds()[0] }

// end is until when the key is kept if nothing happens.
func (h *modelHold) end() time.Time {
	if h.lease.dead || h.hold.After(h.lease.expires) {
		return h.hold
	}
	return h.lease.expires
}

// revoke declares leases dead and lets that have all its consequences: all are dead
// before any lock changes hands.
func (m *model) revoke(leases ...*modelLease) {
	for _, l := range leases {
		for k, h := range m.under(l) {
			k.settle = k.settle || len(k.shares) > 0 && !l.dead
			switch {
			case l.dead:
			case m.kept(h):
				m.hint(k)
			default:
				h.hold = time.Time{}
			}
		}
		m.kill(l)
	}
	m.consequences()
}

// under are the grants under a lease.
func (m *model) under(l *modelLease) iter.Seq2[*modelLock, *modelHold] {
	return func(yield func(*modelLock, *modelHold) bool) {
		for _, k := range m.locks {
			for _, h := range k.holds() {
				if h.lease == l && !yield(k, h) {
					return
				}
			}
		}
	}
}

// revisit revokes a dead lease once more. A store that reads the keys of the lease from its tables
// hands on those that a hold kept at the first revocation.
func (m *model) revisit(l *modelLease) {
	for _, h := range m.under(l) {
		if !m.kept(h) {
			h.hold = time.Time{}
		}
	}
	m.consequences()
}

// kill declares a lease dead. The end of its grants is told when somebody finds it.
func (m *model) kill(l *modelLease) {
	if l.dead {
		return
	}
	l.dead, l.signals = true, nil
	for k, h := range m.under(l) {
		if !h.released {
			k.expire(h)
		}
	}
}

func (m *model) consequences() {
	for changed := true; changed; {
		changed = false
		for _, k := range m.locks {
			n := len(k.line)
			k.line = slices.DeleteFunc(k.line, func(w modelAsker) bool { return m.leases[w.Lease].dead })
			maps.DeleteFunc(k.watchers, func(by int, id store.LeaseID) bool {
				if m.leases[id].dead {
					m.unsure[modelWatch{by, k.key}], m.lapsed[modelWatch{by, k.key}] = true, true
				}
				return m.leases[id].dead
			})
			maps.DeleteFunc(k.skips, func(_ store.AttemptID, w modelSkip) bool { return m.leases[w.Lease].dead })
			changed = changed || len(k.line) != n
			if len(k.shares) > 0 {
				k.settle = k.settle || len(k.line) != n
			} else {
				k.settle = k.lease != nil && k.lease.dead && k.hold.IsZero() && len(k.line) > 0
			}
			if k.settle {
				k.settle, changed = false, true
				m.handOff(k)
			}
		}
	}
}

// hint tells those who wait for a key in the end that a hold alone keeps it.
func (m *model) hint(k *modelLock) { m.hints = append(m.hints, k) }

// hintAll finds those who are to look.
func (m *model) hintAll() {
	for _, k := range m.hints {
		for _, w := range k.line {
			same := func(hinted modelAsker) bool { return hinted.ID == w.ID }
			if m.alive(m.leases[w.Lease]) && !slices.ContainsFunc(m.hinted, same) {
				m.hinted = append(m.hinted, w)
			}
		}
	}
	m.hints = nil
	m.hinted = slices.DeleteFunc(m.hinted, func(hinted modelAsker) bool { // they hear more
		return slices.ContainsFunc(m.handedOff, func(w modelAsker) bool { return hinted.ID == w.ID })
	})
}

// skip lets those wait no more who asked for it.
func (m *model) skip(k *modelLock, result string) {
	k.line = slices.DeleteFunc(k.line, func(w modelAsker) bool {
		if w.Skip {
			k.skips[w.ID] = modelSkip{w, result}
			m.results[w.ID] = result
			m.skipped = append(m.skipped, w)
		}
		return w.Skip
	})
}

// tellSkipped tells those again who were skipped.
func (m *model) tellSkipped(k *modelLock) {
	for _, w := range k.skips {
		if m.has(k, w.ID) == nil {
			m.skipped = append(m.skipped, w.modelAsker)
		}
	}
}

// meet ends the hold of a key if it is over, and reaps the holder if it has expired.
func (m *model) meet(k *modelLock) {
	switch {
	case len(k.shares) > 0:
		m.meetShares(k)
	case k.lease == nil || m.isHeld(k):
	case k.lease.dead:
		k.hold = time.Time{}
		m.consequences()
	default:
		m.revoke(k.lease)
	}
}

func (m *model) ask(a modelAsker, wait bool) store.Outcome {
	k := m.lock(a.Key)
	if h := m.has(k, a.ID); h != nil {
		h.repeatedBy(a.by)
		return store.Granted
	}
	if _, skipped := k.skips[a.ID]; skipped && wait {
		return store.Skipped
	}
	if (wait || a.TTL == 0) && !m.alive(m.leases[a.Lease]) {
		return store.LeaseLost
	}
	m.meet(k)
	h := m.has(k, a.ID)
	switch {
	case h != nil:
		h.repeatedBy(a.by)
		return store.Granted
	case m.mismatch(k, a):
		return store.LimitMismatch
	case m.fits(k, a) && len(k.line) == 0:
		m.grant(k, a)
		return store.Granted
	case !wait:
		return store.Held
	}
	if i := k.place(a.ID); i > 0 && k.line[i-1].Lease != a.Lease {
		k.line = slices.Delete(k.line, i-1, i)
	}
	if k.place(a.ID) == 0 {
		k.line = append(k.line, a)
		m.letIn(k)
	}
	return store.Queued
}

// firstAlive is the first in line whose lease lives, if there is one.
func (m *model) firstAlive(k *modelLock) []modelAsker {
	for _, w := range k.line {
		if m.alive(m.leases[w.Lease]) {
			return []modelAsker{w}
		}
	}
	return nil
}

// place is 1 for the first in line, zero for nobody.
func (k *modelLock) place(grant store.AttemptID) int {
	return 1 + slices.IndexFunc(k.line, func(w modelAsker) bool { return w.ID == grant })
}

func (m *model) check(by int, a store.Attempt) store.Outcome {
	k := m.lock(a.Key)
	if k.place(a.ID) > 0 {
		m.meet(k)
	}
	_, skipped := k.skips[a.ID]
	h := m.has(k, a.ID)
	switch {
	case k.place(a.ID) > 0:
		return store.Queued
	case h != nil: // perhaps by an Acquire, though it was skipped
		if !a.Undelivered {
			h.repeatedBy(by)
		}
		return store.Granted
	case skipped:
		return store.Skipped
	default:
		return store.Gone
	}
}

// cancel returns the place that was given up, too. A grant of an attempt that was repeated
// at another instance is that instance's.
func (m *model) cancel(by int, a store.Attempt) (outcome store.Outcome, place int) {
	k := m.lock(a.Key)
	if k.place(a.ID) > 0 {
		if place = k.leave(by, a.ID); place > 0 {
			m.letIn(k)
		}
		return store.Gone, place
	}
	if outcome = m.check(by, a); outcome == store.Skipped && k.skips[a.ID].by != by {
		outcome = store.Gone
	}
	return outcome, k.leave(by, a.ID)
}

// leave takes an instance's waiter out of the line, and returns its place; or forgets
// that it was skipped.
func (k *modelLock) leave(by int, grant store.AttemptID) (place int) {
	if k.skips[grant].by == by {
		delete(k.skips, grant)
	}
	i := k.place(grant)
	if i == 0 || k.line[i-1].by != by {
		return 0
	}
	k.line = slices.Delete(k.line, i-1, i)
	return i
}

func (m *model) withdraw(by int, a store.Attempt) {
	k := m.lock(a.Key)
	if k.leave(by, a.ID) > 0 {
		m.letIn(k)
	}
	switch h := k.grantOf(a.ID); {
	case h == nil || h.lease == nil || h.lease.dead && !m.kept(h) || !m.mayBeUntold(h, by):
	case m.alive(h.lease):
		m.tell(k, h, store.Event{Kind: store.EventReleased})
		m.giveUp(k, h, true)
	default:
		m.lapse(k, h)
	}
}

func (m *model) release(by int, c store.Claim) store.ClaimStatus {
	k := m.lock(c.Key)
	h, standing := k.granted(c.Token), m.standing(by, c)
	switch expired := standing == store.Expired && h != nil && h.lease != nil; {
	case standing == store.Holds:
		if c.Outcome == store.Success {
			m.skip(k, string(c.Result))
		}
		m.tell(k, h, store.Event{Kind: store.EventReleased, Outcome: c.Outcome, Result: c.Result})
		m.giveUp(k, h, c.AtOnce)
	case expired && m.kept(h) && (!c.AtOnce || !h.lease.renewed || h.holder.Lease != c.Lease):
		if !h.lease.dead {
			k.expire(h)
			h.lease = &modelLease{dead: true} // nobody renews it for this lock
		}
	case expired && (m.kept(h) || !h.lease.dead || len(k.line) > 0):
		m.lapse(k, h)
	case c.Outcome == store.Success && c.Lease != store.LeaseID{} && (standing == store.Released || c.Token < k.token):
		m.tellSkipped(k)
	}
	return standing
}

// granted returns the grant under a token, if it may keep the key.
func (k *modelLock) granted(token int64) *modelHold {
	for _, h := range k.holds() {
		if h.token == token && token != 0 {
			return h
		}
	}
	return nil
}

func (m *model) standing(by int, c store.Claim) store.ClaimStatus {
	k := m.lock(c.Key)
	h := k.granted(c.Token)
	if h == nil && k.token == c.Token {
		h = k.modelHold // the youngest share, which has ended
	}
	switch {
	case h == nil || h.token == 0:
		return store.UnknownToken
	case h.released:
		return store.Released
	case h.lease == nil || h.lease.dead:
		return store.Expired
	case h.lease.renewed && h.holder.Lease != c.Lease && (h.lease.by != by || c.Lease == store.LeaseID{}):
		return store.OtherSession
	case !m.alive(h.lease):
		return store.Expired
	case c.Undelivered && !m.mayBeUntold(h, by):
		return store.OtherSession
	default:
		return store.Holds
	}
}

func (m *model) renew(id store.LeaseID) bool {
	l := m.leases[id]
	if !m.alive(l) {
		return false
	}
	l.expires = m.clock.Add(l.ttl)
	return true
}

func (m *model) sweep() {
	var expired []*modelLease
	for _, l := range m.leases {
		if !l.dead && !m.alive(l) {
			expired = append(expired, l)
		}
	}
	for _, k := range m.locks {
		for _, h := range k.holds() { // unrenewed leases are known by their locks only
			if l := h.lease; l != nil && !l.renewed && !l.dead && !m.alive(l) {
				expired = append(expired, l)
			}
		}
	}
	m.revoke(expired...)
	for _, k := range m.locks {
		m.meet(k)
		k.swept = true
	}
}

// held lists the keys that are held, in order.
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
