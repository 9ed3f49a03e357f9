package memory

import (
	"bytes"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// asker is who wants or has a key.
type asker struct {
	grant store.GrantID
	// by is the instance that asked.
	by *Store
	// lease is the asker's renewed lease; in a row, the lease that holds the key.
	lease *lease
	// ttl above zero asks for a bind:ttl lock.
	ttl                         time.Duration
	session, owner, traceparent string
	data                        []byte
}

// asker takes over what must be remembered of an ask.
func (s *Store) asker(ask *store.Ask, own *lease) asker {
	return asker{
		grant:       ask.Grant,
		by:          s,
		lease:       own,
		ttl:         ask.TTL,
		session:     ask.Session,
		owner:       ask.Owner,
		traceparent: ask.Traceparent,
		data:        bytes.Clone(ask.Data),
	}
}

// row is what is known of a key. Everything in it is guarded by its shard.
type row struct {
	key   string
	shard *shard
	// asker is the holder. Its lease is nil when the key is free after a release,
	// and may be an expired or dead one.
	asker
	// token and acquired are those of the last grant.
	token    int64
	acquired time.Time
	// repeated: another instance than the first was granted the lock, too, by a
	// repetition of the attempt.
	repeated bool
	// freed is since when nobody holds the key, zero when that is not known.
	freed int64
	queue queue
}

// held reports whether a living lease holds the key.
func (r *row) held(now moment) bool { return r.lease != nil && r.lease.alive(now) }

// grantTo gives the key to an asker.
func (r *row) grantTo(a *asker, ns *namespace, now moment) {
	r.asker = *a
	if a.ttl > 0 {
		r.lease = ns.leases.openFor(r.key, a.ttl, now)
	}
	r.token = ns.space.tokens.Add(1)
	r.acquired = now.wall
	r.repeated = false
	r.freed = 0
}

// vacate forgets a holder. What remains is the token, and with it the dead lease
// if that, not a release, was the end.
func (r *row) vacate(ended *lease, now moment) {
	r.asker = asker{lease: ended}
	r.freed = now.at
}

// granted is the answer to the holder.
func (r *row) granted(now moment) store.Answer {
	return store.Answer{
		Outcome:    store.Granted,
		Token:      r.token,
		AcquiredAt: r.acquired,
		ExpiresIn:  r.lease.remaining(now),
	}
}

// grantedAgain is the answer to the holder's repetition. Two instances may then have
// told somebody of a bind:ttl lock.
func (r *row) grantedAgain(s *Store, now moment) store.Answer {
	r.repeated = r.repeated || r.by != s
	return r.granted(now)
}

// mayBeUntold reports whether an instance may give the lock back because nobody has
// heard of it: not when another instance may have told somebody.
func (r *row) mayBeUntold(s *Store) bool { return r.lease.renewed || r.by == s && !r.repeated }

// queued is the answer to a waiter.
func (r *row) queued(w *waiter, now moment) store.Answer {
	return store.Answer{Outcome: store.Queued, Lock: r.occupied(now), Position: r.queue.position(w)}
}

// lock tells what others may know of the key.
func (r *row) lock(now moment) store.Lock {
	if !r.held(now) {
		return store.Lock{Key: r.key, QueueLength: r.queue.len()}
	}
	return r.occupied(now)
}

// occupied tells who has the key, also when the lease is at its end but not
// buried yet.
func (r *row) occupied(now moment) store.Lock {
	return store.Lock{
		Key:         r.key,
		Held:        true,
		Token:       r.token,
		QueueLength: r.queue.len(),
		Holder: store.Holder{
			Instance:    r.by.id.Instance,
			Pod:         r.by.id.Pod,
			Session:     r.session,
			Owner:       r.owner,
			Lease:       r.lease.id,
			Renewed:     r.lease.renewed,
			AcquiredAt:  r.acquired,
			HeldFor:     max(0, now.wall.Sub(r.acquired)),
			ExpiresIn:   r.lease.remaining(now),
			Data:        r.data, // never written to; replaced as a whole
			Traceparent: r.traceparent,
		},
	}
}

// enqueue puts an asker at the end of the line.
func (r *row) enqueue(a *asker) *waiter {
	if r.queue.len() == 0 {
		r.shard.contended[r] = struct{}{}
	}
	return r.queue.push(a)
}

// dequeue takes a waiter out of the line.
func (r *row) dequeue(w *waiter) {
	r.queue.remove(w)
	r.tidy()
}

// dequeueDead drops the waiters whose leases are dead.
func (r *row) dequeueDead() {
	r.queue.removeDead()
	r.tidy()
}

func (r *row) tidy() {
	if r.queue.len() == 0 {
		r.queue = queue{}
		delete(r.shard.contended, r)
	}
}
