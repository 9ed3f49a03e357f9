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

func (o *operation) release(s *Store, c *store.Claim) store.Verdict {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Standing: standing(r, c, now)}
	if v.Standing == store.Holds && c.Untold && !r.mayBeUntold(s) {
		v.Standing = store.OtherSession
	}
	if v.Standing == store.Holds {
		v.Lock = r.occupied(now)
		o.giveUp(r, now)
	}
	return v
}

// Amend confirms locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Amend"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	verdicts := make([]store.Verdict, len(changes))
	for i := range changes {
		verdicts[i] = o.amend(&changes[i])
	}
	o.finish()
	return verdicts, nil
}

func (o *operation) amend(c *store.Change) store.Verdict {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Standing: standing(r, &c.Claim, now)}
	if v.Standing != store.Holds {
		return v
	}
	if c.TTL > 0 && !r.lease.renewed {
		before := r.lease.remaining(now)
		if !r.lease.extend(now, c.TTL) {
			v.Standing = store.Expired // it was buried in this moment
			return v
		}
		if c.TTL < before {
			o.tellFirst(r, now)
		}
	}
	if c.SetData {
		r.data = bytes.Clone(c.Data)
	}
	v.Lock = r.occupied(now)
	return v
}

// tellFirst tells the first living waiter to look when the lock ends, which is
// earlier than it was told.
func (o *operation) tellFirst(r *row, now moment) {
	for _, w := range r.queue.line {
		if w.lease.alive(now) {
			o.news = append(o.news, delivery{w.by, store.News{
				Attempt: store.Attempt{Key: r.key, Grant: w.grant}, Lease: w.lease.id,
			}})
			return
		}
	}
}

// standing judges a claim on a row, which may be nil.
func standing(r *row, c *store.Claim, now moment) store.Standing {
	switch {
	case r == nil || r.token != c.Token:
		return store.UnknownToken
	case r.lease == nil:
		return store.Released
	case !r.lease.alive(now):
		return store.Expired
	case r.lease.renewed && r.lease.id != c.Lease:
		return store.OtherSession
	default:
		return store.Holds
	}
}
