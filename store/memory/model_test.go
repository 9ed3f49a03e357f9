package memory_test

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// model says, in the plainest way that could be found, what a store should do
// when it is asked one thing after the other: no shards, no atomics, no index.
// Tokens are not predicted; they are learned from the first who tells them, and
// must grow.
type model struct {
	now    func() time.Time
	leases map[store.LeaseID]*modelLease
	locks  map[string]*modelLock
	// handedOff are the grants that the operation under way must send news of.
	handedOff []modelAsker
}

type modelLease struct {
	renewed bool
	ttl     time.Duration
	expires time.Time
	dead    bool
}

type modelAsker struct {
	store.Ask
	by int // which instance
}

type modelLock struct {
	holder modelAsker
	lease  *modelLease // nil: released, or never held
	token  int64       // zero: granted, but nobody told the token yet
	last   int64       // the highest token that was told
	line   []modelAsker
	// repeated: another instance than the first was told of the grant.
	repeated bool
	swept    bool // a sweep may have forgotten the last token
}

func newModel() *model {
	return &model{now: time.Now, leases: map[store.LeaseID]*modelLease{}, locks: map[string]*modelLock{}}
}

func (m *model) lock(key string) *modelLock {
	if m.locks[key] == nil {
		m.locks[key] = &modelLock{}
	}
	return m.locks[key]
}

func (m *model) alive(l *modelLease) bool { return l != nil && !l.dead && l.expires.After(m.now()) }

// bury declares leases dead and lets that have all its consequences: all are dead
// before any lock changes hands.
func (m *model) bury(leases ...*modelLease) {
	for _, l := range leases {
		l.dead = true
	}
	for changed := true; changed; {
		changed = false
		for _, k := range m.locks {
			n := len(k.line)
			k.line = slices.DeleteFunc(k.line, func(w modelAsker) bool { return m.leases[w.Lease].dead })
			changed = changed || len(k.line) != n
			if k.lease != nil && k.lease.dead && len(k.line) > 0 {
				m.handOff(k)
				changed = true
			}
		}
	}
}

// handOff gives a lock to the first in line, or buries that one if it is expired.
func (m *model) handOff(k *modelLock) {
	first := m.leases[k.line[0].Lease]
	if !m.alive(first) {
		m.bury(first)
		return
	}
	m.handedOff = append(m.handedOff, k.line[0])
	m.grant(k, k.line[0])
	k.line = k.line[1:]
}

func (m *model) grant(k *modelLock, a modelAsker) {
	k.holder, k.token, k.lease, k.swept, k.repeated = a, 0, m.leases[a.Lease], false, false
	if a.TTL > 0 {
		k.lease = &modelLease{ttl: a.TTL, expires: m.now().Add(a.TTL)}
	}
}

// giveUp ends a hold; the first living waiter gets it.
func (m *model) giveUp(k *modelLock) {
	k.lease = nil
	for k.lease == nil && len(k.line) > 0 {
		m.handOff(k)
	}
}

// meet buries the holder of a lock if it has expired.
func (m *model) meet(k *modelLock) {
	if k.lease != nil && !k.lease.dead && !m.alive(k.lease) {
		m.bury(k.lease)
	}
}

func (m *model) ask(a modelAsker, wait bool) store.Outcome {
	k := m.lock(a.Key)
	if k.holder.Grant == a.Grant && m.alive(k.lease) {
		k.repeatedBy(a.by)
		return store.Granted
	}
	if (wait || a.TTL == 0 || a.Lease != store.LeaseID{}) && !m.alive(m.leases[a.Lease]) {
		return store.LeaseLost
	}
	m.meet(k)
	switch {
	case m.alive(k.lease) && k.holder.Grant == a.Grant:
		k.repeatedBy(a.by)
		return store.Granted
	case !m.alive(k.lease):
		m.grant(k, a)
		return store.Granted
	case !wait:
		return store.Held
	}
	if i := k.place(a.Grant); i > 0 && k.line[i-1].Lease != a.Lease {
		k.line = slices.Delete(k.line, i-1, i)
	}
	if k.place(a.Grant) == 0 {
		k.line = append(k.line, a)
	}
	return store.Queued
}

// repeatedBy notes which instance may have told somebody of a lock.
func (k *modelLock) repeatedBy(instance int) {
	k.repeated = k.repeated || k.holder.by != instance
}

// mayBeUntold: only who alone has heard of a bind:ttl lock may say that nobody has.
func (k *modelLock) mayBeUntold(instance int) bool {
	return k.holder.TTL == 0 || k.holder.by == instance && !k.repeated
}

// firstAlive is the first in line whose lease lives, if there is one.
func (m *model) firstAlive(k *modelLock) []store.Attempt {
	for _, w := range k.line {
		if m.alive(m.leases[w.Lease]) {
			return []store.Attempt{w.Attempt}
		}
	}
	return nil
}

// place is 1 for the first in line, zero for nobody.
func (k *modelLock) place(grant store.GrantID) int {
	return 1 + slices.IndexFunc(k.line, func(w modelAsker) bool { return w.Grant == grant })
}

func (m *model) check(by int, a store.Attempt) store.Outcome {
	k := m.lock(a.Key)
	if k.place(a.Grant) > 0 {
		m.meet(k)
	}
	switch {
	case k.place(a.Grant) > 0:
		return store.Queued
	case k.holder.Grant == a.Grant && m.alive(k.lease):
		k.repeatedBy(by)
		return store.Granted
	default:
		return store.Gone
	}
}

// cancel returns the place that was given up, too. The place of an attempt that was
// repeated at another instance is that one's.
func (m *model) cancel(by int, a store.Attempt) (outcome store.Outcome, place int) {
	k := m.lock(a.Key)
	i := k.place(a.Grant)
	switch {
	case i == 0:
		return m.check(by, a), 0
	case k.line[i-1].by != by:
		return store.Gone, 0
	}
	k.line = slices.Delete(k.line, i-1, i)
	return store.Gone, i
}

func (m *model) undo(by int, a store.Attempt) {
	k := m.lock(a.Key)
	if k.place(a.Grant) > 0 {
		m.cancel(by, a)
	}
	if k.holder.Grant == a.Grant && k.lease != nil && !k.lease.dead && k.mayBeUntold(by) {
		m.giveUp(k)
	}
}

func (m *model) standing(by int, c store.Claim) store.Standing {
	k := m.lock(c.Key)
	switch {
	case k.token == 0 || k.token != c.Token:
		return store.UnknownToken
	case k.lease == nil:
		return store.Released
	case !m.alive(k.lease):
		return store.Expired
	case k.lease.renewed && k.holder.Lease != c.Lease:
		return store.OtherSession
	case c.Untold && !k.mayBeUntold(by):
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
	l.expires = m.now().Add(l.ttl)
	return true
}

func (m *model) sweep() {
	for _, l := range m.leases {
		if !l.dead && !m.alive(l) {
			m.bury(l)
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
		if m.alive(k.lease) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
