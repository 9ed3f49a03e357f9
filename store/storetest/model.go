package storetest

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// model is the simplest description of a store whose calls come one after the other. Tokens are not
// predicted. The model learns them from the answers, and they must grow.
type model struct {
	clock  time.Time // moves only by the machine's ageing
	leases map[store.LeaseID]*modelLease
	locks  map[string]*modelLock
	// The current operation must send news of these grants, skips, hints and events.
	handedOff []modelAsker
	skipped   []modelAsker
	hinted    []modelAsker
	hints     []modelAsker // whose waiters need a hint
	events    []modelEvent
	// unsure contains the watches that ended with their lease during the current operation. lapsed
	// contains all such watches, until their owner ends or renews them. Until then, some stores
	// still report the owner's own operations.
	unsure, lapsed map[modelWatch]bool
	// results of skipped waiters.
	results map[store.AttemptID]string
	granted map[modelGrant]bool // of all time
	// keep is about the present ask. recalled are the keys that the current operation must recall.
	keep     modelKeep
	recalled []modelWatch
	// alone is the key whose operation decides its answer. Deaths have consequences for other keys only after that,
	// and these may end more waiters of this one. seen is what the answer shows.
	alone *modelLock
	seen  modelSeen
	exact bool // of the store
}

type modelSeen struct {
	place  int
	limits []int
}

// answer decides the answer to an attempt, and then applies the consequences of deaths for all keys.
func (m *model) answer(k *modelLock, id store.AttemptID, decide func() store.Outcome) store.Outcome {
	m.alone = k
	outcome := decide()
	m.seen = modelSeen{k.place(id), m.limits(k)}
	m.alone = nil
	m.consequences()
	return outcome
}

type modelGrant struct {
	attempt store.AttemptID
	token   int64
}

type modelLease struct {
	renewed bool
	by      int // the instance that opened it
	ttl     time.Duration
	expires time.Time
	dead    bool
	// signals to the current holders, by key and kind.
	signals map[modelSignal]*string
}

type modelAsker struct {
	store.Ask
	by int // the instance
}

// modelHold is a grant of a key.
type modelHold struct {
	holder modelAsker
	lease  *modelLease // nil if released or never held
	hold   time.Time   // end of the hold, which outlasts the lease
	token  int64       // 0 if the token of this grant is not known yet
	after  int64       // the highest token known before
	slot   int
	// released is set by a release. If a hold is pending, lease is not nil then.
	released bool
	// repeated: the grant was also returned to an instance other than the first.
	repeated bool
	keepable bool
	stopping *modelStop
}

type modelLock struct {
	key string
	// modelHold is the last grant: an exclusive one or the youngest share.
	*modelHold
	// shares are in the order of their grants. Dead shares do not block a grant.
	shares []*modelHold
	last   int64 // the highest known token
	line   []modelAsker
	named  int // the limit of the last share or shared waiter
	// skips contains the skipped waiters.
	skips map[store.AttemptID]modelSkip
	swept bool // a sweep may have forgotten the last token
	stale bool // a watch has ended with its lease
	// settle: waiters may be granted, because the lease of a share or of a shared waiter died.
	settle bool
	// ends contains how shares ended. A store may forget that.
	ends map[int64]store.ClaimStatus
	// watchers are instances, each under a lease.
	watchers map[int]store.LeaseID
	// since contains the state of the key when the watch began. Older events may still arrive.
	since map[int]modelPast
	// expired contains, by instance, the grants that expired and whose expiry is not yet reported.
	expired map[int]map[int64]bool
	// again contains the reasons of repeated stops.
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

// onHold reports whether a hold keeps the key.
func (m *model) onHold(h *modelHold) bool { return h.hold.After(m.clock) }

// keeps reports whether a grant keeps the key.
func (m *model) keeps(h *modelHold) bool { return m.alive(h.lease) || m.onHold(h) }

func (m *model) isHeld(k *modelLock) bool { return slices.ContainsFunc(k.holds(), m.keeps) }

// holds returns the grants that may keep the key.
func (k *modelLock) holds() []*modelHold {
	if len(k.shares) > 0 {
		return slices.Clone(k.shares)
	}
	return []*modelHold{k.modelHold}
}

// first returns the oldest grant.
func (k *modelLock) first() *modelHold { return k.holds()[0] }

// end returns when the grant ends without further operations.
func (h *modelHold) end() time.Time {
	if h.lease.dead || h.hold.After(h.lease.expires) {
		return h.hold
	}
	return h.lease.expires
}

// revoke ends leases and applies the consequences. All leases are dead before a lock changes hands.
func (m *model) revoke(leases ...*modelLease) {
	for _, l := range leases {
		for k, h := range m.under(l) {
			k.settle = k.settle || len(k.shares) > 0 && !l.dead
			switch {
			case l.dead:
			case m.onHold(h):
				m.hint(k)
			default:
				h.hold = time.Time{}
			}
		}
		m.kill(l)
	}
	m.consequences()
}

// under returns the grants under a lease.
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

// kill ends a lease. The expiry of its grants is reported when an operation finds it.
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
			if m.alone != nil && k != m.alone {
				continue
			}
			n := len(k.line)
			k.line = slices.DeleteFunc(k.line, func(w modelAsker) bool { return m.leases[w.Lease].dead })
			maps.DeleteFunc(k.watchers, func(by int, id store.LeaseID) bool {
				if m.leases[id].dead {
					m.unsure[modelWatch{by, k.key}], m.lapsed[modelWatch{by, k.key}] = true, true
					k.stale = true
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

// hint notes that the present waiters of a key need a hint, because only a hold keeps the key. A waiter that
// comes later learns of the hold when it asks.
func (m *model) hint(k *modelLock) { m.hints = append(m.hints, k.line...) }

// hintAll collects the waiters that need a hint, and still wait.
func (m *model) hintAll() {
	for _, w := range m.hints {
		same := func(hinted modelAsker) bool { return hinted.ID == w.ID }
		if m.lock(w.Key).place(w.ID) > 0 && m.alive(m.leases[w.Lease]) && !slices.ContainsFunc(m.hinted, same) {
			m.hinted = append(m.hinted, w)
		}
	}
	m.hints = nil
	m.hinted = slices.DeleteFunc(m.hinted, func(hinted modelAsker) bool { // the news of the grant replaces it
		return slices.ContainsFunc(m.handedOff, func(w modelAsker) bool { return hinted.ID == w.ID })
	})
}

// skip removes the skip-waiters from the queue.
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

// tellSkipped sends news to the skipped waiters again.
func (m *model) tellSkipped(k *modelLock) {
	for _, w := range k.skips {
		if m.has(k, w.ID) == nil {
			m.skipped = append(m.skipped, w.modelAsker)
		}
	}
}

// meet ends a hold that is over, and reaps an expired holder.
func (m *model) meet(k *modelLock) {
	switch {
	case len(k.shares) > 0:
		m.meetShares(k)
	case k.lease == nil || m.isHeld(k):
	case k.lease.dead:
		m.passDue(k)
	default:
		m.revoke(k.lease)
	}
}

func (m *model) ask(a modelAsker, wait bool) store.Outcome {
	k := m.lock(a.Key)
	return m.answer(k, a.ID, func() store.Outcome { return m.decide(k, a, wait) })
}

func (m *model) decide(k *modelLock, a modelAsker, wait bool) store.Outcome {
	m.keep = modelKeep{unsure: k.swept || k.stale || len(k.watchers) > 0}
	if h := m.has(k, a.ID); h != nil {
		h.repeatedBy(a.by)
		m.keep.want = m.isKept(k) && h.holder.by == a.by && !m.wanted(k)
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
		m.keep.want = m.comesAgain(k, a)
		m.grant(k, a)
		m.keep.fresh = k.modelHold
		return store.Granted
	case !wait:
		return store.Held
	}
	if i := k.place(a.ID); i > 0 && k.line[i-1].Lease != a.Lease {
		k.line = slices.Delete(k.line, i-1, i)
	}
	if k.place(a.ID) == 0 {
		if !m.awaitedElsewhere(k) {
			m.recall(k, a.by)
		}
		if k.line = append(k.line, a); a.Shared {
			k.named = a.Limit
		}
		m.letIn(k)
	}
	return store.Queued
}

// firstAlive returns the first waiter whose lease is alive, if any.
func (m *model) firstAlive(k *modelLock) []modelAsker {
	for _, w := range k.line {
		if m.alive(m.leases[w.Lease]) {
			return []modelAsker{w}
		}
	}
	return nil
}

// place returns a queue position. The first is 1, and 0 means that the attempt is not queued.
func (k *modelLock) place(id store.AttemptID) int {
	return 1 + slices.IndexFunc(k.line, func(w modelAsker) bool { return w.ID == id })
}

func (m *model) check(by int, a store.Attempt) store.Outcome {
	k := m.lock(a.Key)
	return m.answer(k, a.ID, func() store.Outcome { return m.became(k, by, a) })
}

func (m *model) became(k *modelLock, by int, a store.Attempt) store.Outcome {
	if k.place(a.ID) > 0 {
		m.meet(k)
	}
	_, skipped := k.skips[a.ID]
	h := m.has(k, a.ID)
	switch {
	case k.place(a.ID) > 0:
		return store.Queued
	case h != nil: // an Acquire may have granted it after the skip
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

// cancel also returns the queue position. If another instance repeated an attempt, the grant
// belongs to that instance.
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

// leave removes an instance's waiter and returns its position. leave also forgets a skip.
func (k *modelLock) leave(by int, id store.AttemptID) (place int) {
	if k.skips[id].by == by {
		delete(k.skips, id)
	}
	i := k.place(id)
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
	case h == nil || h.lease == nil || h.lease.dead && !m.onHold(h) || !m.mayBeUndelivered(h, by):
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
	if standing == store.Holds && c.Outcome != store.NoOutcome && c.Lease == (store.LeaseID{}) && len(k.shares) > 0 {
		return store.IsShare
	}
	switch expired := standing == store.Expired && h != nil && h.lease != nil; {
	case standing == store.Holds:
		if c.Outcome == store.Success {
			m.skip(k, string(c.Result))
		}
		m.tell(k, h, store.Event{Kind: store.EventReleased, Outcome: c.Outcome, Result: c.Result})
		m.giveUp(k, h, c.AtOnce)
	case expired && m.onHold(h) && (!c.AtOnce || !h.lease.renewed || h.holder.Lease != c.Lease):
		if !h.lease.dead {
			k.expire(h)
			h.lease = &modelLease{dead: true} // this lock is no longer renewed
		}
	case expired && (m.onHold(h) || !h.lease.dead || len(k.line) > 0):
		m.lapse(k, h)
	case c.Outcome == store.Success && c.Lease != store.LeaseID{} && (standing == store.Released || c.Token < k.token):
		m.tellSkipped(k)
	}
	return standing
}

// granted returns the grant with a token if it may keep the key.
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
	case c.Undelivered && !m.mayBeUndelivered(h, by):
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
	m.expire()
	for _, k := range m.locks {
		m.meet(k)
		k.swept = true
	}
}

// expire revokes the leases that have expired.
func (m *model) expire() {
	var expired []*modelLease
	for _, l := range m.leases {
		if !l.dead && !m.alive(l) {
			expired = append(expired, l)
		}
	}
	for _, k := range m.locks {
		for _, h := range k.holds() { // only the locks refer to unrenewed leases
			if l := h.lease; l != nil && !l.renewed && !l.dead && !m.alive(l) {
				expired = append(expired, l)
			}
		}
	}
	m.revoke(expired...)
}
