package key

import (
	"bytes"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Amend checks a claim, and changes the lock's data and remaining time. It may turn the lock into a share.
func (o *Op) Amend(r *Row, c *store.Change) store.Verdict {
	h, status := o.standing(r, &c.Claim)
	if status != store.Holds {
		return store.Verdict{Status: status}
	}
	r.dropServed(c.Served)
	o.adopt(r, c)
	if c.TTL > 0 && !h.lease.Renewed() && !o.prolong(r, h, c) {
		return store.Verdict{Status: store.Expired} // reaped at this moment
	}
	if c.SetData {
		h.Data = bytes.Clone(c.Data)
	}
	if c.Share {
		if h == &r.holder {
			h = r.downgrade(o.Now)
		}
		o.letIn(r)
	}
	return store.Verdict{Status: store.Holds, Lock: r.alone(h, o.Now)}
}

// prolong sets the remaining time of a bind:ttl lock. It returns false if the lease has expired.
func (o *Op) prolong(r *Row, h *holder, c *store.Change) bool {
	before, ttl := h.lease.Remaining(o.Now), c.TTL
	if h.hold != nil {
		ttl = max(ttl, h.hold.Remaining(o.Now))
	}
	extended := o.Engine.Extend(h.lease, ttl, o.Now)
	if extended == nil {
		return false
	}
	if h.lease = extended; extended.Remaining(o.Now) < before {
		o.tellFirst(r)
	}
	return true
}

// adopt makes the last served waiter of a cohort the exclusive holder that others see.
func (o *Op) adopt(r *Row, c *store.Change) {
	if len(c.Served) == 0 || c.Token <= r.Token {
		return
	}
	o.released(r, &r.holder, store.NoOutcome, nil)
	r.Token, r.Attempt = c.Token, c.Served[len(c.Served)-1]
	r.Session, r.Owner, r.Traceparent, r.Data = c.Session, c.Owner, c.Traceparent, bytes.Clone(c.Data)
	if c.AcquiredAt.After(r.Acquired) {
		r.Acquired = c.AcquiredAt
	}
	o.event(r, r.Token, store.Event{Kind: store.EventAcquired})
}

// downgrade turns the exclusive holder into a share, with the limit of the living shared waiters.
func (r *Row) downgrade(now Moment) *holder {
	limit := 0
	if slices.ContainsFunc(r.queue.line, func(w *waiter) bool { return w.Shared && w.lease.Alive(now) }) {
		limit = r.limit
	}
	was := r.holder
	h := r.addShare(limit)
	*h = was
	h.Shared, r.Token = true, was.Token
	return h
}
