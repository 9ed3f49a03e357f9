package memory

import (
	"bytes"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// asker is a waiter or holder of a key.
type asker struct {
	grant store.AttemptID
	// by is the instance that made the attempt.
	by *Store
	// lease is the asker's renewed lease. In a row it is the lease that holds the key.
	lease *lease
	// ttl above zero asks for a bind:ttl lock, hold above zero for a MinHold.
	ttl, hold time.Duration
	// skip: after a success, this waiter wants the result instead of the lock.
	skip bool
	// shared asks for a share. limit above zero limits the number of shared holders.
	shared                      bool
	limit                       int
	session, owner, traceparent string
	data                        []byte
}

func (s *Store) asker(ask *store.Ask, own *lease) asker {
	return asker{
		grant:       ask.ID,
		by:          s,
		lease:       own,
		ttl:         ask.TTL,
		hold:        ask.MinHold,
		skip:        ask.Skip,
		shared:      ask.Shared,
		limit:       ask.Limit,
		session:     ask.Session,
		owner:       ask.Owner,
		traceparent: ask.Traceparent,
		data:        bytes.Clone(ask.Data),
	}
}

// holder is a grant of a key.
type holder struct {
	// asker is the attempt that was granted. Its lease may be expired or dead. Its grant is zero if the lock
	// was released and a hold keeps the key.
	asker
	// holdUntil is the end of a MinHold, in nanoseconds on the space's clock. Zero means no hold.
	holdUntil int64
	token     int64
	acquired  time.Time
	// handedBy is the trace context of the release that handed the key over, or empty.
	handedBy string
	// released: the grant ended by a release, even if a hold still keeps the key.
	released bool
	// stopping is set when the holder was asked to stop. It is only replaced as a whole.
	stopping *store.Stopping
	// repeated: another instance made the same attempt and was answered Granted, too.
	repeated bool
	// slot is the slot of a share; zero without a limit.
	slot int
}

// row is the state of a key. The shard's mutex guards all fields.
type row struct {
	key   string
	shard *shard
	// holder is the exclusive holder, or the last one, which shows how its grant ended. Its lease is nil when
	// the key is free after a release. While there are shares, its lease is dead, and its token is that of
	// the youngest share.
	holder
	// shares are the shared holders in token order. A dead one blocks no asker.
	shares []*holder
	// limit is the one that shares and shared waiters name, while there are any.
	limit int
	// freed is when the key became free; zero means held or unknown.
	freed int64
	queue queue
	// skipped are waiters whose holder released with success. They stay until they are cancelled.
	skipped map[store.AttemptID]*skip
	// watchers are the instances that receive the key's events, each under a lease.
	watchers map[*Store]*lease
}

// held reports whether a living lease holds the key, or a MinHold keeps it.
func (h *holder) held(now moment) bool { return h.lease != nil && h.lease.alive(now) || h.kept(now) }

// kept reports whether a MinHold keeps the key, with or without a holder.
func (h *holder) kept(now moment) bool { return h.holdUntil > now.at }

// attempt returns the grant of an attempt. nil means that it was not granted, or was released.
func (r *row) attempt(id store.AttemptID) *holder {
	if r.grant == id && r.lease != nil {
		return &r.holder
	}
	for _, h := range r.shares {
		if h.grant == id {
			return h
		}
	}
	return nil
}

// heldBy returns the grant that an attempt holds now, or nil.
func (r *row) heldBy(id store.AttemptID, now moment) *holder {
	if h := r.attempt(id); h != nil && h.lease.alive(now) {
		return h
	}
	return nil
}

// take makes an asker the holder. A bind:ttl lock lasts at least as long as its hold.
func (h *holder) take(a *asker, key string, ns *namespace, now moment) {
	under := a.lease
	if a.ttl > 0 {
		under = ns.leases.openFor(key, max(a.ttl, a.hold), now)
	}
	h.asker = *a
	h.lease = under
	if h.holdUntil = 0; a.hold > 0 {
		h.holdUntil = now.at + int64(a.hold)
	}
	h.token = ns.space.tokens.Add(1)
	h.acquired = now.wall
	h.released, h.stopping, h.repeated, h.handedBy = false, nil, false, ""
}

// cohort returns the waiters that the holder's sidecar may serve without the store. They are directly
// behind the holder, wait under the same lease, and are exclusive without skip.
func (r *row) cohort(ns *namespace) (cohort []store.HalfID) {
	if !r.lease.renewed || r.holdUntil != 0 || len(r.watchers) > 0 {
		return nil
	}
	for _, w := range r.queue.line[:min(r.queue.len(), store.TokensPerGrant-1)] {
		if w.lease != r.lease || w.ttl > 0 || w.hold > 0 || w.skip || w.shared {
			break
		}
		cohort = append(cohort, store.HalfOf(w.grant))
	}
	ns.space.tokens.Add(int64(len(cohort))) // reserves their tokens
	return cohort
}

// dropServed removes waiters that got the lock from their sidecar.
func (r *row) dropServed(served []store.AttemptID) {
	for _, grant := range served {
		if w := r.queue.find(grant); w != nil {
			r.dequeue(w)
		}
	}
}

// vacate removes the holder and keeps the token. If the lock was not released, a dead lease stays to mark this.
func (r *row) vacate(now moment) {
	ended := deadLease
	if r.released {
		ended = nil
	}
	r.asker = asker{lease: ended}
	r.stopping, r.holdUntil = nil, 0
	r.freed = now.at
}

func (h *holder) granted(answer *store.Answer, now moment) {
	answer.Outcome, answer.Token, answer.AcquiredAt, answer.Slot = store.Granted, h.token, h.acquired, h.slot
	answer.ExpiresIn, answer.GrantedFor, answer.HandedBy = h.endsIn(now), h.heldFor(now), h.handedBy
}

// endsIn is how long the grant keeps the key without further operations.
func (h *holder) endsIn(now moment) time.Duration {
	return max(h.lease.remaining(now), time.Duration(h.holdUntil-now.at))
}

// grantedAgain answers a repeated attempt of the holder. If another instance repeated it, two instances may
// have delivered the same bind:ttl lock.
func (h *holder) grantedAgain(answer *store.Answer, s *Store, now moment) {
	h.repeated = h.repeated || h.by != s
	h.granted(answer, now)
}

// mayBeUndelivered reports whether an instance may hand the lock back as undelivered. It may not if another
// instance may have delivered the lock.
func (h *holder) mayBeUndelivered(s *Store, now moment) bool {
	if h.lease.renewed || h.lease.dead() {
		return h.by == s || !h.kept(now)
	}
	return h.by == s && !h.repeated
}

func (r *row) queued(answer *store.Answer, w *waiter, now moment) {
	answer.Outcome, answer.Position = store.Queued, r.queue.position(w)
	r.blockers(&answer.Lock, now)
}

func (r *row) enqueue(a *asker, now moment) *waiter {
	r.shard.visited[r] = struct{}{}
	if a.shared {
		r.limit = a.limit
	}
	return r.queue.push(a, now)
}

func (r *row) dequeue(w *waiter) {
	r.queue.remove(w)
	r.tidy()
}

// dropGone removes waiters and watchers under dead leases, and reports whether it removed a waiter.
func (r *row) dropGone() (left bool) {
	waiting := r.queue.len()
	r.queue.removeAll(func(w *waiter) bool { return w.lease.dead() })
	for grant, k := range r.skipped {
		if k.lease.dead() {
			delete(r.skipped, grant)
		}
	}
	for s, lease := range r.watchers {
		if lease.dead() {
			delete(r.watchers, s)
		}
	}
	r.tidy()
	return r.queue.len() < waiting
}

// tidy frees empty containers, and removes the row from the reap list if a reap would find nothing there.
func (r *row) tidy() {
	if r.queue.len() == 0 {
		r.queue = queue{last: r.queue.last} // the order continues, because readers page by it
	}
	if len(r.skipped) == 0 {
		r.skipped = nil
	}
	if len(r.watchers) == 0 {
		r.watchers = nil
	}
	if !r.wanted() {
		delete(r.shard.visited, r)
	}
}

func (r *row) wanted() bool { return r.queue.len()+len(r.skipped)+len(r.watchers) > 0 }
