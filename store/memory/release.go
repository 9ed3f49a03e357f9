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
		verdicts[i] = o.release(&claims[i])
	}
	o.finish()
	return verdicts, nil
}

func (o *operation) release(c *store.Claim) store.Verdict {
	sh := o.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := o.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Standing: standing(r, c, now)}
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
	verdicts := make([]store.Verdict, len(changes))
	for i := range changes {
		verdicts[i] = s.amend(&changes[i])
	}
	return verdicts, nil
}

func (s *Store) amend(c *store.Change) store.Verdict {
	sh := s.ns.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.ns.space.now()
	r := sh.rows[c.Key]
	v := store.Verdict{Standing: standing(r, &c.Claim, now)}
	if v.Standing != store.Holds {
		return v
	}
	if c.TTL > 0 && !r.lease.renewed && !r.lease.extend(now, c.TTL) {
		v.Standing = store.Expired // it was buried in this moment
		return v
	}
	if c.SetData {
		r.data = bytes.Clone(c.Data)
	}
	v.Lock = r.occupied(now)
	return v
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
