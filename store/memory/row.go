package memory

import (
	"bytes"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// asker is a waiter or holder of a key.
type asker struct {
	grant store.AttemptID
	// by is the instance that asked.
	by *Store
	// lease is the asker's renewed lease; in a row, the lease that holds the key.
	lease *lease
	// ttl above zero asks for a bind:ttl lock, hold above zero for a MinHold.
	ttl, hold time.Duration
	// skip: as a waiter it wants the result of a success, not the lock.
	skip                        bool
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
		session:     ask.Session,
		owner:       ask.Owner,
		traceparent: ask.Traceparent,
		data:        bytes.Clone(ask.Data),
	}
}

// row is the state of a key. Its shard's mutex guards all fields.
type row struct {
	key   string
	shard *shard
	// asker is the holder. Its lease is nil when the key is free after a release, and may be expired
	// or dead. Its grant is zero when a hold keeps the key after the release.
	asker
	// holdUntil is the end of a MinHold, in nanoseconds on the space's clock; zero: there is none.
	holdUntil int64
	// token and acquired are those of the last grant.
	token    int64
	acquired time.Time
	// handedBy is the trace context of the release that handed the key over, or empty.
	handedBy string
	// released: the last grant ended by a release, also if a hold keeps the key.
	released bool
	// stopping is set when the holder was asked to stop. It is only replaced as a whole.
	stopping *store.Stopping
	// repeated: the attempt was also granted at another instance.
	repeated bool
	// freed is the time since which nobody holds the key, zero if unknown.
	freed int64
	queue queue
	// skipped are waiters whose holder succeeded, until they are cancelled.
	skipped map[store.AttemptID]*skip
	// watchers are the instances that hear events, each under a lease.
	watchers map[*Store]*lease
}

// held reports whether a living lease holds the key, or a MinHold keeps it.
func (r *row) held(now moment) bool { return r.lease != nil && r.lease.alive(now) || r.kept(now) }

// kept reports whether a MinHold keeps the key, with or without a holder.
func (r *row) kept(now moment) bool { return r.holdUntil > now.at }

func (r *row) heldBy(grant store.AttemptID, now moment) bool {
	return r.grant == grant && r.lease != nil && r.lease.alive(now)
}

// grantTo gives the key to an asker. A bind:ttl lock lasts for its hold at least.
func (r *row) grantTo(a *asker, ns *namespace, now moment) {
	holder := a.lease
	if a.ttl > 0 {
		holder = ns.leases.openFor(r.key, max(a.ttl, a.hold), now)
	}
	r.asker = *a
	r.lease = holder
	if r.holdUntil = 0; a.hold > 0 {
		r.holdUntil = now.at + int64(a.hold)
	}
	r.token = ns.space.tokens.Add(1)
	r.acquired = now.wall
	r.released, r.stopping, r.repeated, r.freed, r.handedBy = false, nil, false, 0, ""
}

// cohort returns the waiters that the holder's sidecar may serve by itself: those directly behind it
// that wait under the same lease, and for nothing but the lock.
func (r *row) cohort(ns *namespace) (cohort []store.HalfID) {
	if !r.lease.renewed || r.holdUntil != 0 || len(r.watchers) > 0 {
		return nil
	}
	for _, w := range r.queue.line[:min(r.queue.len(), store.TokensPerGrant-1)] {
		if w.lease != r.lease || w.ttl > 0 || w.hold > 0 || w.skip {
			break
		}
		cohort = append(cohort, store.HalfOf(w.grant))
	}
	ns.space.tokens.Add(int64(len(cohort))) // theirs
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

// vacate removes the holder, not the token. If nobody released, a dead lease stays as the mark.
func (r *row) vacate(now moment) {
	ended := deadLease
	if r.released {
		ended = nil
	}
	r.asker = asker{lease: ended}
	r.stopping, r.holdUntil = nil, 0
	r.freed = now.at
}

func (r *row) granted(now moment) store.Answer {
	return store.Answer{
		Outcome:    store.Granted,
		Token:      r.token,
		AcquiredAt: r.acquired,
		ExpiresIn:  max(r.lease.remaining(now), time.Duration(r.holdUntil-now.at)),
		HandedBy:   r.handedBy,
		GrantedFor: max(0, now.wall.Sub(r.acquired)),
	}
}

// grantedAgain is the answer to a repetition by the holder. Two instances may then have delivered
// the same bind:ttl lock.
func (r *row) grantedAgain(s *Store, now moment) store.Answer {
	r.repeated = r.repeated || r.by != s
	return r.granted(now)
}

// mayBeUndelivered reports whether an instance may hand the lock back as undelivered. It may not if
// another instance may have delivered it.
func (r *row) mayBeUndelivered(s *Store, now moment) bool {
	if r.lease.renewed || r.lease.dead() {
		return r.by == s || !r.kept(now)
	}
	return r.by == s && !r.repeated
}

func (r *row) queued(w *waiter, now moment) store.Answer {
	return store.Answer{Outcome: store.Queued, Lock: r.occupied(now), Position: r.queue.position(w)}
}

// lock returns the state that others may see.
func (r *row) lock(now moment) store.Lock {
	if !r.held(now) {
		return store.Lock{
			Key: r.key, Token: r.token, QueueLength: r.queue.len(),
			Expired: r.token != 0 && !r.released,
		}
	}
	return r.occupied(now)
}

// occupied returns the holder, also if its lease has expired but is not reaped yet.
func (r *row) occupied(now moment) store.Lock {
	return store.Lock{
		Key:         r.key,
		Held:        true,
		Token:       r.token,
		QueueLength: r.queue.len(),
		Stopping:    r.stopping,
		Holder: store.Holder{
			Instance:    r.by.id.Instance,
			Pod:         r.by.id.Pod,
			Session:     r.session,
			Owner:       r.owner,
			Lease:       r.lease.id,
			Renewed:     r.lease.renewed,
			HoldPending: !r.lease.alive(now) && r.kept(now),
			AcquiredAt:  r.acquired,
			HeldFor:     max(0, now.wall.Sub(r.acquired)),
			ExpiresIn:   max(r.lease.remaining(now), time.Duration(r.holdUntil-now.at)),
			Data:        r.data, // never written to; replaced as a whole
			Traceparent: r.traceparent,
		},
	}
}

func (r *row) enqueue(a *asker) *waiter {
	r.shard.visited[r] = struct{}{}
	return r.queue.push(a)
}

func (r *row) dequeue(w *waiter) {
	r.queue.remove(w)
	r.tidy()
}

func (r *row) dropGone() {
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
}

// tidy frees empty containers, and drops the row from the reap list if it has nothing to reap.
func (r *row) tidy() {
	if r.queue.len() == 0 {
		r.queue = queue{}
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
