package storetest

import (
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

type modelLock struct {
	key    string
	holder modelAsker
	lease  *modelLease // nil: released, or never held
	hold   time.Time   // until when the key is kept, whatever becomes of the lease
	token  int64       // zero: granted, but nobody told the token yet
	last   int64       // the highest token that was told
	line   []modelAsker
	// released: the last grant was; if a hold is pending, lease is not nil then.
	released bool
	// skips are waiters that were skipped, with the result.
	skips map[store.AttemptID]modelSkip
	// repeated: another instance than the first was told of the grant.
	repeated bool
	swept    bool // a sweep may have forgotten the last token
	stopping *modelStop
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
			key: key, skips: map[store.AttemptID]modelSkip{}, watchers: map[int]store.LeaseID{}, since: map[int]modelPast{}, expired: map[int]map[int64]bool{},
			again: map[int64][]*string{},
		}
	}
	return m.locks[key]
}

func (m *model) alive(l *modelLease) bool { return l != nil && !l.dead && l.expires.After(m.clock) }

// kept: a hold keeps the key, with a holder or without.
func (m *model) kept(k *modelLock) bool { return k.hold.After(m.clock) }

func (m *model) isHeld(k *modelLock) bool { return m.alive(k.lease) || m.kept(k) }

// end is until when the key is kept if nothing happens.
func (k *modelLock) end() time.Time {
	if k.hold.After(k.lease.expires) {
		return k.hold
	}
	return k.lease.expires
}

// revoke declares leases dead and lets that have all its consequences: all are dead
// before any lock changes hands.
func (m *model) revoke(leases ...*modelLease) {
	var kept []*modelLock
	for _, l := range leases {
		for _, k := range m.locks {
			switch {
			case k.lease != l || l.dead:
			case m.kept(k):
				kept = append(kept, k)
			default:
				k.hold = time.Time{}
			}
		}
		m.kill(l)
	}
	m.consequences()
	for _, k := range kept {
		m.hint(k)
	}
}

// revisit revokes a dead lease once more. A store that reads the keys of the lease from its tables
// hands on those that a hold kept at the first revocation.
func (m *model) revisit(l *modelLease) {
	for _, k := range m.locks {
		if k.lease == l && !m.kept(k) {
			k.hold = time.Time{}
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
	for _, k := range m.locks {
		if k.lease == l && !k.released {
			k.expire()
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
			if k.lease != nil && k.lease.dead && k.hold.IsZero() && len(k.line) > 0 {
				m.handOff(k)
				changed = true
			}
		}
	}
}

// hint tells those who wait for a key that a hold alone keeps it.
func (m *model) hint(k *modelLock) {
	for _, w := range k.line {
		if m.alive(m.leases[w.Lease]) {
			m.hinted = append(m.hinted, w)
		}
	}
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
		if !m.has(k, w.ID) {
			m.skipped = append(m.skipped, w.modelAsker)
		}
	}
}

// handOff gives a lock to the first in line, or reaps that one if it is expired.
func (m *model) handOff(k *modelLock) {
	first := m.leases[k.line[0].Lease]
	if !m.alive(first) {
		m.revoke(first)
		return
	}
	m.handedOff = append(m.handedOff, k.line[0])
	m.grant(k, k.line[0])
	k.line = k.line[1:]
}

func (m *model) grant(k *modelLock, a modelAsker) {
	k.holder, k.token, k.lease, k.swept, k.repeated = a, 0, m.leases[a.Lease], false, false
	if a.TTL > 0 {
		k.lease = &modelLease{ttl: a.TTL, expires: m.clock.Add(max(a.TTL, a.MinHold))}
	}
	k.released, k.stopping, k.hold = false, nil, time.Time{}
	m.tell(k, store.Event{Kind: store.EventAcquired})
	if a.MinHold > 0 {
		k.hold = m.clock.Add(a.MinHold)
	}
}

// giveUp ends a grant; the first living waiter gets the lock, at once or when the hold
// is over.
func (m *model) giveUp(k *modelLock, atOnce bool) {
	k.released = true
	for kind := range 3 {
		delete(k.lease.signals, modelSignal{k.holder.Key, store.SignalKind(kind)})
	}
	if atOnce || !m.kept(k) {
		m.pass(k)
		return
	}
	k.stopping = nil
	m.leave(k)
	m.hint(k)
}

// leave takes a lock from its lease, which others may be held under.
func (m *model) leave(k *modelLock) {
	if !k.lease.renewed {
		m.kill(k.lease)
	}
	k.lease = &modelLease{dead: true}
}

// pass takes a lock from its holder, and gives it to the first living waiter.
func (m *model) pass(k *modelLock) {
	m.leave(k)
	k.lease, k.hold = nil, time.Time{}
	for k.lease == nil && len(k.line) > 0 {
		m.handOff(k)
	}
}

// lapse ends a grant whose lease has ended: it was not released.
func (m *model) lapse(k *modelLock) {
	k.expire()
	m.pass(k)
}

// meet ends the hold of a key if it is over, and reaps the holder if it has expired.
func (m *model) meet(k *modelLock) {
	switch {
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
	if m.has(k, a.ID) {
		k.repeatedBy(a.by)
		return store.Granted
	}
	if _, skipped := k.skips[a.ID]; skipped && wait {
		return store.Skipped
	}
	if (wait || a.TTL == 0) && !m.alive(m.leases[a.Lease]) {
		return store.LeaseLost
	}
	m.meet(k)
	switch {
	case m.has(k, a.ID):
		k.repeatedBy(a.by)
		return store.Granted
	case !m.isHeld(k):
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
	}
	return store.Queued
}

// has: the attempt has the lock, and nothing ended that.
func (m *model) has(k *modelLock, grant store.AttemptID) bool {
	return k.holder.ID == grant && !k.released && m.alive(k.lease)
}

// repeatedBy notes which instance may have told somebody of a lock.
func (k *modelLock) repeatedBy(instance int) {
	k.repeated = k.repeated || k.holder.by != instance
}

// mayBeUntold: only who alone has heard of a bind:ttl lock may say that nobody has.
func (m *model) mayBeUntold(k *modelLock, instance int) bool {
	if k.holder.TTL == 0 {
		return k.holder.by == instance || !m.kept(k)
	}
	return k.holder.by == instance && !k.repeated
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
	switch {
	case k.place(a.ID) > 0:
		return store.Queued
	case m.has(k, a.ID): // perhaps by an Acquire, though it was skipped
		if !a.Undelivered {
			k.repeatedBy(by)
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
		return store.Gone, k.leave(by, a.ID)
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
	k.leave(by, a.ID)
	switch {
	case k.holder.ID != a.ID || k.released || k.lease == nil || k.lease.dead && !m.kept(k) || !m.mayBeUntold(k, by):
	case m.alive(k.lease):
		m.tell(k, store.Event{Kind: store.EventReleased, Token: k.token})
		m.giveUp(k, true)
	default:
		m.lapse(k)
	}
}

func (m *model) release(by int, c store.Claim) store.ClaimStatus {
	k := m.lock(c.Key)
	standing := m.standing(by, c)
	switch {
	case standing == store.Holds:
		if c.Outcome == store.Success {
			m.skip(k, string(c.Result))
		}
		m.tell(k, store.Event{Kind: store.EventReleased, Token: k.token, Outcome: c.Outcome, Result: c.Result})
		m.giveUp(k, c.AtOnce)
	case standing == store.Expired && m.kept(k) && (!c.AtOnce || !k.lease.renewed || k.holder.Lease != c.Lease):
		if !k.lease.dead {
			k.expire()
			k.lease = &modelLease{dead: true} // nobody renews it for this lock
		}
	case standing == store.Expired && k.lease != nil && (m.kept(k) || !k.lease.dead || len(k.line) > 0):
		m.lapse(k)
	case c.Outcome == store.Success && c.Lease != store.LeaseID{} && (standing == store.Released || c.Token < k.token):
		m.tellSkipped(k)
	}
	return standing
}

func (m *model) standing(by int, c store.Claim) store.ClaimStatus {
	k := m.lock(c.Key)
	switch {
	case k.token == 0 || k.token != c.Token:
		return store.UnknownToken
	case k.released:
		return store.Released
	case k.lease == nil || k.lease.dead:
		return store.Expired
	case k.lease.renewed && k.holder.Lease != c.Lease && (k.lease.by != by || c.Lease == store.LeaseID{}):
		return store.OtherSession
	case !m.alive(k.lease):
		return store.Expired
	case c.Undelivered && !m.mayBeUntold(k, by):
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
	for _, l := range m.leases {
		if !l.dead && !m.alive(l) {
			m.revoke(l)
		}
	}
	for _, k := range m.locks {
		m.meet(k) // unrenewed leases are known by their locks only
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
