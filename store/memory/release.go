package memory

import (
	"bytes"
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Release frees locks, or hands them to the first living waiter.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	verdicts := make([]store.Verdict, len(claims))
	for i := range claims {
		verdicts[i] = o.release(s, &claims[i])
	}
	o.finish()
	return verdicts, nil
}

// ReleaseOne is Release for one lock.
func (s *Store) ReleaseOne(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return store.Verdict{}, err
	}
	o := operation{ns: s.ns}
	verdict := o.release(s, &c)
	o.finish()
	return verdict, nil
}

func (o *operation) release(s *Store, c *store.Claim) store.Verdict {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Status: s.standing(r, c, now)}
	if r != nil {
		r.dropServed(c.Served)
	}
	if v.Status == store.Holds && c.Undelivered && !r.mayBeUndelivered(s, now) {
		v.Status = store.OtherSession
	}
	switch {
	case v.Status == store.Holds:
		if v.Lock = (store.Lock{Key: c.Key, Token: c.Token}); c.Lease == (store.LeaseID{}) {
			was := r.occupied(now).Holder
			v.Lock.Holder = store.Holder{HeldFor: was.HeldFor, Traceparent: was.Traceparent}
		}
		if c.Outcome == store.Success {
			o.skipWaiters(r, c.Result)
		}
		o.released(r, c.Outcome, c.Result)
		o.giveUp(r, now, c)
	case v.Status == store.Expired && r.kept(now) && (!c.AtOnce || !r.lease.renewed || r.lease.id != c.Lease):
		if !r.lease.dead() {
			r.lease = deadLease // a renewal that is under way must not keep it
		}
	case v.Status == store.Expired && (r.kept(now) || !r.lease.dead() || r.queue.len() > 0):
		o.lapse(r, now, c.Traceparent)
	case c.Outcome == store.Success && c.Lease != (store.LeaseID{}) && isPast(r, v.Status, c):
		o.tellSkipped(r, now) // a repetition: those who were skipped may not have heard
	}
	return v
}

// isPast reports whether a claim is of a grant that was released.
func isPast(r *row, s store.ClaimStatus, c *store.Claim) bool {
	return s == store.Released || s == store.UnknownToken && r != nil && c.Token < r.token
}

// giveUp ends a grant for its holder. Unless at once, a hold that is not over keeps the key.
func (o *operation) giveUp(r *row, now moment, c *store.Claim) {
	if c.AtOnce || !r.kept(now) {
		o.free(r, now, c.Traceparent)
		return
	}
	o.leaveLease(r)
	r.grant = store.AttemptID{} // ended, unlike that of an owner who is gone
	r.released, r.stopping = true, nil
	o.tellAll(r, now)
}

// free ends a grant and its hold, by a release with a trace context or an empty one.
func (o *operation) free(r *row, now moment, by string) {
	r.released = true
	o.end(r, now, by)
}

// lapse ends a grant that nobody gave up. Later claims are told that it expired.
func (o *operation) lapse(r *row, now moment, by string) {
	if !r.released {
		o.event(r, store.Event{Kind: store.EventExpired})
	}
	o.end(r, now, by)
}

// end hands the key to the first waiter, or frees it. Notes for this grant alone end with it.
func (o *operation) end(r *row, now moment, by string) {
	o.leaveLease(r)
	if !o.handOff(r, now, by) {
		r.vacate(now)
	}
}

// leaveLease ends what was only good for the grant of a row.
func (o *operation) leaveLease(r *row) {
	if l := r.lease; !l.renewed && l.kill() {
		o.ns.leases.remove(l.id)
	}
	r.lease = deadLease
}

// Amend confirms locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Amend"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	verdicts := make([]store.Verdict, len(changes))
	for i := range changes {
		verdicts[i] = o.amend(s, &changes[i])
	}
	o.finish()
	return verdicts, nil
}

func (o *operation) amend(s *Store, c *store.Change) store.Verdict {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Status: s.standing(r, &c.Claim, now)}
	if v.Status != store.Holds {
		return v
	}
	r.dropServed(c.Served)
	o.adopt(r, c)
	if c.TTL > 0 && !r.lease.renewed {
		before := r.lease.remaining(now)
		if extended, _ := r.lease.extend(now, max(now.at+int64(c.TTL), r.holdUntil)); !extended {
			v.Status = store.Expired // it was reaped in this moment
			return v
		}
		if r.lease.remaining(now) < before {
			o.tellFirst(r, now)
		}
	}
	if c.SetData {
		r.data = bytes.Clone(c.Data)
	}
	v.Lock = r.occupied(now)
	return v
}

// adopt makes the last served waiter the holder that others see.
func (o *operation) adopt(r *row, c *store.Change) {
	if len(c.Served) == 0 || c.Token <= r.token {
		return
	}
	o.released(r, store.NoOutcome, nil)
	r.token, r.grant = c.Token, c.Served[len(c.Served)-1]
	r.session, r.owner, r.traceparent, r.data = c.Session, c.Owner, c.Traceparent, bytes.Clone(c.Data)
	if c.AcquiredAt.After(r.acquired) {
		r.acquired = c.AcquiredAt
	}
	o.event(r, store.Event{Kind: store.EventAcquired})
}

// tellFirst tells the first living waiter to look again, because the lock ends earlier.
func (o *operation) tellFirst(r *row, now moment) {
	for _, w := range r.queue.line {
		if w.lease.alive(now) {
			o.tell(r, w, store.Answer{})
			return
		}
	}
}

func (o *operation) tellAll(r *row, now moment) {
	for _, w := range r.queue.line {
		if w.lease.alive(now) {
			o.tell(r, w, store.Answer{})
		}
	}
}

// standing judges a claim on a row or nil. A session's lock may be under another lease of its
// instance: see Move.
func (s *Store) standing(r *row, c *store.Claim, now moment) store.ClaimStatus {
	switch {
	case r == nil || r.token == 0 || r.token != c.Token && (len(c.Served) == 0 || !store.OfGrant(r.token, c.Token)):
		return store.UnknownToken
	case r.released:
		return store.Released
	case r.lease.dead():
		return store.Expired
	case r.lease.renewed && r.lease.id != c.Lease && (r.lease.by != s || c.Lease == store.LeaseID{}):
		return store.OtherSession
	case !r.lease.alive(now):
		return store.Expired
	default:
		return store.Holds
	}
}
