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

func (o *operation) release(s *Store, c *store.Claim) (v store.Verdict) {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	h, status := s.standing(r, c, now)
	v.Status = status
	if r != nil {
		r.dropServed(c.Served)
	}
	if v.Status == store.Holds && c.Undelivered && !h.mayBeUndelivered(s, now) {
		v.Status = store.OtherSession
	}
	if v.Status == store.Holds && c.Outcome != store.NoOutcome && c.Lease == (store.LeaseID{}) && len(r.shares) > 0 {
		return store.Verdict{Status: store.IsShare}
	}
	switch expired := v.Status == store.Expired && h != nil; {
	case v.Status == store.Holds:
		if v.Lock.Key, v.Lock.Token = c.Key, c.Token; c.Lease == (store.LeaseID{}) {
			v.Lock.Holder.HeldFor, v.Lock.Holder.Traceparent = h.heldFor(now), h.traceparent
		}
		if c.Outcome == store.Success {
			o.skipWaiters(r, c.Result)
		}
		o.released(r, h, c.Outcome, c.Result)
		o.giveUp(r, h, now, c)
	case expired && h.kept(now) && (!c.AtOnce || !h.lease.renewed || h.lease.id != c.Lease):
		if !h.lease.dead() {
			h.lease = deadLease // a renewal in flight must not keep the lock
		}
	case expired && (h.kept(now) || !h.lease.dead() || r.queue.len() > 0):
		o.lapse(r, h, now, c.Traceparent)
	case c.Outcome == store.Success && c.Lease != (store.LeaseID{}) && isPast(r, v.Status, c):
		o.tellSkipped(r, now) // a repeated release: the first notification of skipped waiters may be lost
	}
	return v
}

// isPast reports whether a claim names a grant that was released.
func isPast(r *row, s store.ClaimStatus, c *store.Claim) bool {
	return s == store.Released || s == store.UnknownToken && r != nil && c.Token < r.token
}

// giveUp ends a grant by release. A hold that is not over keeps the key, unless the claim says AtOnce.
func (o *operation) giveUp(r *row, h *holder, now moment, c *store.Claim) {
	if c.AtOnce || !h.kept(now) {
		o.free(r, h, now, c.Traceparent)
		return
	}
	o.leaveLease(h)
	h.grant = store.AttemptID{} // ended, unlike the grant of a dead owner
	h.released, h.stopping = true, nil
	o.tellAll(r, now)
}

// free ends a grant and its hold by a release. by is the release's trace context, or empty.
func (o *operation) free(r *row, h *holder, now moment, by string) {
	h.released = true
	o.end(r, h, now, by)
}

// lapse ends a grant that was not released. Later claims are answered Expired.
func (o *operation) lapse(r *row, h *holder, now moment, by string) {
	o.expired(r, h)
	o.end(r, h, now, by)
}

// end hands the key to the first waiters, or frees it. A stop request to this grant ends with it.
func (o *operation) end(r *row, h *holder, now moment, by string) {
	o.leaveLease(h)
	r.drop(h)
	if !o.handOff(r, now, by) && len(r.shares) == 0 {
		r.vacate(now)
	}
}

// leaveLease removes the lease of a bind:ttl grant, and signals to this grant.
func (o *operation) leaveLease(h *holder) {
	if l := h.lease; !l.renewed && l.kill() {
		o.ns.leases.remove(l.id)
	}
	h.lease = deadLease
}

// Amend checks locks, and changes their data and remaining time.
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
	h, status := s.standing(r, &c.Claim, now)
	if status != store.Holds {
		return store.Verdict{Status: status}
	}
	r.dropServed(c.Served)
	o.adopt(r, c)
	if c.TTL > 0 && !h.lease.renewed {
		before := h.lease.remaining(now)
		if extended, _ := h.lease.extend(now, max(now.at+int64(c.TTL), h.holdUntil)); !extended {
			return store.Verdict{Status: store.Expired} // reaped at this moment
		}
		if h.lease.remaining(now) < before {
			o.tellFirst(r, now)
		}
	}
	if c.SetData {
		h.data = bytes.Clone(c.Data)
	}
	if c.Share {
		if h == &r.holder {
			h = r.downgrade(now)
		}
		o.letIn(r, now)
	}
	return store.Verdict{Status: store.Holds, Lock: r.alone(h, now)}
}

// adopt makes the last served waiter of a cohort the exclusive holder that others see.
func (o *operation) adopt(r *row, c *store.Change) {
	if len(c.Served) == 0 || c.Token <= r.token {
		return
	}
	o.released(r, &r.holder, store.NoOutcome, nil)
	r.token, r.grant = c.Token, c.Served[len(c.Served)-1]
	r.session, r.owner, r.traceparent, r.data = c.Session, c.Owner, c.Traceparent, bytes.Clone(c.Data)
	if c.AcquiredAt.After(r.acquired) {
		r.acquired = c.AcquiredAt
	}
	o.event(r, r.token, store.Event{Kind: store.EventAcquired})
}

// tellFirst notifies the first living waiter to check again, because the lock ends earlier.
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

// standing decides a claim on a row, which may be nil, and returns the claimed grant. The grant is nil if
// the row no longer has it.
func (s *Store) standing(r *row, c *store.Claim, now moment) (*holder, store.ClaimStatus) {
	if r == nil {
		return nil, store.UnknownToken
	}
	if len(r.shares) == 0 {
		return &r.holder, s.judge(&r.holder, c, now)
	}
	if h := r.share(c.Token); h != nil {
		return h, s.judge(h, c, now)
	}
	return nil, r.past(c.Token)
}

// judge decides a claim on a grant. A session's lock may be under another lease of its instance: see Move.
func (s *Store) judge(h *holder, c *store.Claim, now moment) store.ClaimStatus {
	switch {
	case h.token == 0 || h.token != c.Token && (len(c.Served) == 0 || !store.OfGrant(h.token, c.Token)):
		return store.UnknownToken
	case h.released:
		return store.Released
	case h.lease.dead():
		return store.Expired
	case h.lease.renewed && h.lease.id != c.Lease && (h.lease.by != s || c.Lease == store.LeaseID{}):
		return store.OtherSession
	case !h.lease.alive(now):
		return store.Expired
	default:
		return store.Holds
	}
}
