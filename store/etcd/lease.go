package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

const (
	// shortest is the shortest TTL that etcd grants with its default election timeout of a second.
	shortest = 2 * time.Second
	// atOnce is how many requests about single leases are on their way at a time.
	atOnce = 32
	// openBatch is how many leases get their keys in one transaction: two puts each.
	openBatch = maxOps / 4
	// remembered is for how long the end of a lease is not asked again.
	remembered = time.Second
)

var errDiedAtOnce = errors.New("the lease ended before it was opened")

// rounded is the TTL that etcd grants at least. It counts whole seconds.
func rounded(ttl time.Duration) time.Duration {
	return max(shortest, (ttl + time.Second - 1).Truncate(time.Second))
}

// each calls do for each lease, several at a time, and returns one of the errors.
func each[L any](leases []L, do func(i int, lease L) error) error {
	errs := make([]error, len(leases))
	turns := make(chan struct{}, atOnce)
	var working sync.WaitGroup
	for i, lease := range leases {
		turns <- struct{}{}
		working.Go(func() {
			errs[i] = do(i, lease)
			<-turns
		})
	}
	working.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// OpenLeases implements [cas.Backend]. A lease does not count before its key exists, so the grants of etcd's leases may
// be repeated.
func (b *Server) OpenLeases(ctx context.Context, leases []cas.NewLease) (always store.History, err error) {
	if err := each(leases, func(_ int, l cas.NewLease) error { return b.grant(ctx, l) }); err != nil {
		return always, cas.Failed("open", err, false) // no key was put yet
	}
	for i, part := range slices.Collect(slices.Chunk(leases, openBatch)) {
		if err := b.putKeys(ctx, part); err != nil {
			return always, cas.Failed("open", err, i > 0 || store.OutcomeUnknown(err))
		}
	}
	return always, nil
}

// grant makes a lease of etcd, or extends it.
func (b *Server) grant(ctx context.Context, l cas.NewLease) error {
	err := b.repeat(ctx, "grant", true, func(ctx context.Context, c *conn) error {
		return c.call(ctx, methodGrant, &pb.Grant{Id: etcdLease(l.ID), Ttl: int64(rounded(l.TTL) / time.Second)}, &pb.Leased{})
	})
	if !says(err, textLeaseExists) {
		return err
	}
	alive, err := b.keepAlive(ctx, l.ID)
	if err == nil && !alive {
		return errDiedAtOnce
	}
	return err
}

// putKeys makes leases alive.
func (b *Server) putKeys(ctx context.Context, leases []cas.NewLease) error {
	ops := []*pb.Op{get(b.layout.floor)}
	for _, l := range leases {
		ops = append(ops, put(b.lease(l.ID), nil, etcdLease(l.ID)))
		if l.Instance != "" {
			ops = append(ops, put(b.openedBy(l.Instance)+l.ID.String(), nil, etcdLease(l.ID)))
		}
	}
	return b.write(ctx, "open", func(ctx context.Context, c *conn) error {
		answer, err := c.txn(ctx, ops...)
		if err == nil {
			err = b.floor.read(answer.Responses[0].GetRange().GetKvs())
		}
		return err
	})
}

// Renew implements [cas.Backend]. A lease that is extended counts only if its key exists afterwards, because an operator
// may have deleted the key.
func (b *Server) Renew(ctx context.Context, leases []store.LeaseID) (renewed []store.LeaseID, always store.History, err error) {
	extended := make([]bool, len(leases))
	err = each(leases, func(i int, id store.LeaseID) (err error) {
		extended[i], err = b.keepAlive(ctx, id)
		return err
	})
	exist := map[store.LeaseID]bool{}
	if missed := b.exist(ctx, leases, exist); missed != nil {
		return nil, always, cas.Failed("renew", missed, true)
	}
	for i, id := range leases {
		if extended[i] && exist[id] {
			renewed = append(renewed, id)
		}
	}
	if err != nil {
		return renewed, always, cas.Failed("renew", err, true)
	}
	return renewed, always, nil
}

// keepAlive extends a lease of etcd.
func (b *Server) keepAlive(ctx context.Context, id store.LeaseID) (alive bool, err error) {
	err = b.repeat(ctx, "renew", true, func(ctx context.Context, c *conn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream
		stream, err := c.stream(ctx, methodKeepAlive, &pb.Lease{Id: etcdLease(id)})
		if err != nil {
			return err
		}
		answer := &pb.Leased{}
		err = stream.RecvMsg(answer)
		alive = answer.Ttl > 0
		b.left.Remove(id)
		return err
	})
	return alive && err == nil, err
}

// Revoke implements [cas.Backend].
func (b *Server) Revoke(ctx context.Context, leases []store.LeaseID) error {
	err := each(leases, func(_ int, id store.LeaseID) error {
		err := b.repeat(ctx, "revoke", true, func(ctx context.Context, c *conn) error {
			return c.call(ctx, methodRevoke, &pb.Lease{Id: etcdLease(id)}, &pb.Leased{})
		})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
	if err != nil {
		return cas.Failed("revoke", err, len(leases) > 1 || store.OutcomeUnknown(err))
	}
	return nil
}

// Opened implements [cas.Backend].
func (b *Server) Opened(ctx context.Context, instance string) ([]store.LeaseID, error) {
	prefix := b.openedBy(instance)
	answers, err := b.read(ctx, "opened", []*pb.Op{opGet(&pb.Range{Key: []byte(prefix), RangeEnd: behind(prefix), KeysOnly: true})})
	if err != nil {
		return nil, err
	}
	var leases []store.LeaseID
	for _, kv := range answers[0].Kvs {
		var id store.LeaseID
		if err := id.UnmarshalText(kv.Key[len(prefix):]); err != nil {
			return nil, cas.Failed("opened", errFormat, false)
		}
		leases = append(leases, id)
	}
	return leases, nil
}

// exist notes which of these leases have a key.
func (b *Server) exist(ctx context.Context, leases []store.LeaseID, alive map[store.LeaseID]bool) error {
	gets := make([]*pb.Op, len(leases))
	for i, id := range leases {
		gets[i] = getName(b.lease(id))
	}
	found, err := b.read(ctx, "states", gets)
	for i := range found {
		alive[leases[i]] = len(found[i].Kvs) > 0
	}
	return err
}

// states adds what is left to living leases.
func (b *Server) states(ctx context.Context, leases []store.LeaseID, alive map[store.LeaseID]bool) map[store.LeaseID]cas.LeaseState {
	states := make([]cas.LeaseState, len(leases))
	_ = each(leases, func(i int, id store.LeaseID) error {
		if alive[id] {
			states[i] = cas.LeaseState{Alive: true, Left: b.remaining(ctx, id)}
		}
		return nil
	})
	byID := make(map[store.LeaseID]cas.LeaseState, len(leases))
	for i, id := range leases {
		byID[id] = states[i]
	}
	return byID
}

// remaining is what a living lease has left at least. An answer is remembered for a moment, because many looks at a lock
// follow each other.
func (b *Server) remaining(ctx context.Context, id store.LeaseID) time.Duration {
	if end, ok := b.left.Get(id); ok && time.Since(end.asked) < remembered {
		return max(0, time.Until(end.at))
	}
	end := leaseEnd{asked: time.Now()}
	_ = b.repeat(ctx, "remaining", false, func(ctx context.Context, c *conn) error {
		asked, answer := time.Now(), &pb.Leased{}
		err := c.call(ctx, methodTimeToLive, &pb.Lease{Id: etcdLease(id)}, answer)
		end.at = asked.Add(time.Duration(answer.Ttl) * time.Second) // etcd cuts to whole seconds
		return err
	})
	b.left.Add(id, end)
	return max(0, time.Until(end.at))
}

// leaseEnd is when a lease ends at the earliest, by an answer of etcd.
type leaseEnd struct{ asked, at time.Time }
