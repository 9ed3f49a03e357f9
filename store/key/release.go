package key

import (
	"github.com/locksidecar/locksidecar/store"
)

// Release ends a grant, and hands the key to the first living waiters. PostgreSQL's function release (store/postgres/code/release.sql) does the same.
func (o *Op) Release(r *Row, c *store.Claim) (v store.Verdict) {
	h, status := o.claimed(r, c.Token, c.Lease, len(c.Served) > 0)
	v.Status = status
	r.dropServed(c.Served)
	if v.Status == store.Holds && c.Undelivered && !o.mayBeUndelivered(h) {
		v.Status = store.OtherSession
	}
	if v.Status == store.Holds && c.Outcome != store.NoOutcome && c.Lease == (store.LeaseID{}) && len(r.shares) > 0 {
		return store.Verdict{Status: store.IsShare}
	}
	switch expired := v.Status == store.Expired && h != nil; {
	case v.Status == store.Holds:
		if c.Lease == (store.LeaseID{}) {
			v.HeldFor, v.Traceparent = h.heldFor(o.Now), h.Traceparent
		}
		if c.Outcome == store.Success {
			o.skipWaiters(r, c.Result)
		}
		o.released(r, h, c.Outcome, c.Result)
		o.giveUp(r, h, c)
	case expired && h.onHold(o.Now) && (!c.AtOnce || !h.lease.Renewed() || h.lease.id != c.Lease):
		if !h.lease.Dead() {
			h.lease = endedLease // a renewal in flight must not keep the lock
		}
	case expired && (h.onHold(o.Now) || !h.lease.Dead() || r.queue.len() > 0):
		o.lapse(r, h, c.Traceparent)
	case c.Outcome == store.Success && c.Lease != (store.LeaseID{}) && isPast(r, v.Status, c):
		o.tellSkipped(r) // a repeated release: the first notification of skipped waiters may be lost
	}
	return v
}

// isPast reports whether a claim names a grant that was released.
func isPast(r *Row, s store.ClaimStatus, c *store.Claim) bool {
	return s == store.Released || s == store.UnknownToken && c.Token < r.Token
}

// giveUp ends a grant by release. A hold that is not over keeps the key, unless the claim says AtOnce.
func (o *Op) giveUp(r *Row, h *holder, c *store.Claim) {
	if c.AtOnce || !h.onHold(o.Now) {
		o.free(r, h, c.Traceparent)
		return
	}
	o.leaveLease(h)
	h.Attempt = store.AttemptID{} // ended, unlike the grant of a dead owner
	h.Released, h.Stopping = true, nil
	o.tellAll(r)
}

// free ends a grant and its hold by a release. by is the release's trace context, or empty.
func (o *Op) free(r *Row, h *holder, by string) {
	h.Released = true
	o.end(r, h, by)
}

// lapse ends a grant that was not released. Later claims are answered Expired.
func (o *Op) lapse(r *Row, h *holder, by string) {
	o.expired(r, h)
	o.end(r, h, by)
}

// end hands the key to the first waiters, or frees it. A stop request to this grant ends with it.
func (o *Op) end(r *Row, h *holder, by string) {
	o.leaveLease(h)
	r.drop(h)
	if !o.handOff(r, by) && len(r.shares) == 0 {
		r.vacate(o.Now)
	}
}

// leaveLease removes the lease of a bind:ttl grant, and signals to this grant.
func (o *Op) leaveLease(h *holder) {
	if l := h.lease; !l.Renewed() && l.kill() {
		o.Engine.Close(l)
	}
	h.lease = endedLease
}

// claimed returns the grant that a claim means, and what the claim is worth. The grant is nil if the row no longer has it. served: the claimed
// holder of an exclusive lock got it from its sidecar, so the row may still know an earlier holder of the cohort.
func (o *Op) claimed(r *Row, token int64, lease store.LeaseID, served bool) (*holder, store.ClaimStatus) {
	if len(r.shares) == 0 {
		known := r.Token
		if served && store.OfGrant(known, token) {
			token = known
		}
		return &r.holder, o.claimStatus(&r.holder, token, lease)
	}
	if h := r.share(token); h != nil {
		return h, o.claimStatus(h, token, lease)
	}
	return nil, r.past(token)
}

// claimStatus decides a claim on a grant, as the SQL function claim_status does. A session's lock may be under another lease of its instance: see Move.
func (o *Op) claimStatus(h *holder, token int64, lease store.LeaseID) store.ClaimStatus {
	switch {
	case h.Token == 0 || h.Token != token:
		return store.UnknownToken
	case h.Released:
		return store.Released
	case h.lease.Dead():
		return store.Expired
	case h.lease.Renewed() && h.lease.id != lease && (!h.lease.by.is(o.By) || lease == store.LeaseID{}):
		return store.OtherSession
	case !h.lease.Alive(o.Now):
		return store.Expired
	default:
		return store.Holds
	}
}
