package etcd

import (
	"context"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

const (
	// maxOps is etcd's own limit (--max-txn-ops). The operations of a transaction and those of its largest nested one
	// count together.
	maxOps = 128
	// maxSwaps and maxNested share maxOps. A larger swap has a transaction of its own.
	maxSwaps  = 64
	maxNested = maxOps - maxSwaps
	// maxBytes is far below etcd's limit of 1.5 MiB (--max-request-bytes). A larger swap has a transaction of its own.
	maxBytes = 512 << 10
	// parallel is how many transactions of a call are on their way at a time. Four carry 1.7 times as many swaps as one.
	parallel = 4
)

// Load implements [cas.Backend]. A second request follows only if a record names leases that are not among the given ones.
func (b *Backend) Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState, error) {
	gets := make([]*pb.Op, 0, len(keys)+len(leases))
	for _, key := range keys {
		gets = append(gets, get(b.records+key))
	}
	for _, id := range leases {
		gets = append(gets, getName(b.lease(id)))
	}
	found, err := b.read(ctx, "load", gets)
	if err != nil {
		return nil, nil, err
	}
	records := make([]cas.Record, len(keys))
	present := make([]*cas.Record, len(keys))
	for i, key := range keys {
		if records[i], err = decode(key, found[i].Kvs); err != nil {
			return nil, nil, failed("load", err, false)
		}
		present[i] = &records[i]
	}
	alive := map[store.LeaseID]bool{}
	for i, id := range leases {
		alive[id] = len(found[len(keys)+i].Kvs) > 0
	}
	if err := b.addStates(ctx, present, alive); err != nil {
		return nil, nil, err
	}
	return records, b.states(ctx, leases, alive), nil
}

// read carries out reads in transactions.
func (b *Backend) read(ctx context.Context, op string, gets []*pb.Op) (found []*pb.Ranged, err error) {
	for part := range slices.Chunk(gets, maxOps) {
		err := b.repeat(ctx, op, false, func(ctx context.Context, c *conn) error {
			newest := b.newest.Load()
			answer, err := c.txn(ctx, part...)
			if err == nil {
				err = b.grows(newest, answer.Header.Revision)
			}
			if err != nil {
				return err
			}
			for _, one := range answer.Responses {
				found = append(found, one.GetRange())
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// addStates sets the states of the leases that records name. alive contains those that are known already.
func (b *Backend) addStates(ctx context.Context, records []*cas.Record, alive map[store.LeaseID]bool) error {
	var named, asked []store.LeaseID
	for _, r := range records {
		named = append(named, r.Leases...)
	}
	for _, id := range named {
		if _, known := alive[id]; !known {
			asked = append(asked, id)
			alive[id] = false
		}
	}
	if err := b.exist(ctx, asked, alive); err != nil {
		return err
	}
	states := b.states(ctx, named, alive)
	for _, r := range records {
		r.States, states = states[:len(r.Leases):len(r.Leases)], states[len(r.Leases):]
	}
	return nil
}

// nested is a swap as a nested transaction.
type nested struct {
	op    *pb.Op
	ops   int // its longest list
	bytes int
}

func (b *Backend) nest(s *cas.Swap) nested {
	key := b.records + s.Key
	conditions := []*pb.Compare{unchanged(key, s.Version)}
	for _, id := range s.Living {
		conditions = append(conditions, exists(b.lease(id)))
	}
	var changes []*pb.Op
	if s.Delete {
		changes = append(changes, remove(key))
	} else {
		changes = append(changes, put(key, encode(s.Leases, s.Data), 0))
	}
	bytes := 2*len(key) + len(s.Data) + 48*(len(conditions)+len(s.Leases))
	for _, letter := range s.Letters {
		name := b.letter(letter.To, letter.Key)
		changes = append(changes, put(name, letter.Body, 0))
		bytes += len(name) + len(letter.Body)
	}
	return nested{
		op:  &pb.Op{Request: &pb.Op_Txn{Txn: &pb.Txn{Compare: conditions, Success: changes, Failure: []*pb.Op{get(key)}}}},
		ops: max(len(conditions), len(changes)), bytes: bytes,
	}
}

// transactions divides swaps into transactions: the ends of their ranges.
func transactions(swaps []nested) (ends []int) {
	count, bytes := 0, 0
	for i, s := range swaps {
		alone := s.ops > maxNested
		if count > 0 && (alone || count == maxSwaps || bytes+s.bytes > maxBytes) {
			ends, count, bytes = append(ends, i), 0, 0
		}
		count, bytes = count+1, bytes+s.bytes
		if alone {
			ends, count, bytes = append(ends, i+1), 0, 0
		}
	}
	if count > 0 {
		ends = append(ends, len(swaps))
	}
	return ends
}

// Swap implements [cas.Backend]. If a call has several transactions and one fails, the outcome is unknown unless nothing
// was done. A swap has at most 126 letters, and as many conditions.
func (b *Backend) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	all := make([]nested, len(swaps))
	for i := range swaps {
		if all[i] = b.nest(&swaps[i]); all[i].ops >= maxOps {
			return nil, classify("swap", errTooLarge, false)
		}
	}
	results := make([]cas.Swapped, len(swaps))
	ends := transactions(all)
	errs := make([]error, len(ends))
	var sending sync.WaitGroup
	turns := make(chan struct{}, parallel)
	from := 0
	for i, end := range ends {
		part := from
		from = end
		turns <- struct{}{}
		sending.Go(func() {
			errs[i] = b.swap(ctx, swaps[part:end], all[part:end], results[part:end])
			<-turns
		})
	}
	sending.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, failed("swap", errs[i], slices.ContainsFunc(errs, func(err error) bool {
			return err == nil || store.OutcomeUnknown(err)
		}))
	}
	var present []*cas.Record
	for i := range results {
		if !results[i].Done {
			present = append(present, &results[i].Record)
		}
	}
	if err := b.addStates(ctx, present, map[store.LeaseID]bool{}); err != nil {
		return nil, failed("swap", err, len(present) < len(results))
	}
	return results, nil
}

// swap carries out one transaction.
func (b *Backend) swap(ctx context.Context, swaps []cas.Swap, all []nested, results []cas.Swapped) error {
	ops := make([]*pb.Op, len(all))
	for i := range all {
		ops[i] = all[i].op
	}
	var answer *pb.Done
	err := b.write(ctx, "swap", func(ctx context.Context, c *conn) (err error) {
		newest := b.newest.Load()
		if answer, err = c.txn(ctx, ops...); err != nil {
			return err
		}
		return b.grows(newest, answer.Header.Revision)
	})
	if err != nil {
		return err
	}
	revision := answer.Header.Revision
	for i := range swaps {
		own := answer.Responses[i].GetTxn()
		if own.Succeeded {
			results[i] = cas.Swapped{Done: true, Record: cas.Record{Key: swaps[i].Key, Leases: swaps[i].Leases, Base: base(revision)}}
			if !swaps[i].Delete {
				results[i].Record.Version = revision
			}
			continue
		}
		if results[i].Record, err = decode(swaps[i].Key, own.Responses[0].GetRange().GetKvs()); err != nil {
			return &store.Error{Op: "swap", Err: err, Unknown: true} // others of the transaction were carried out
		}
	}
	return nil
}

// Scan implements [cas.Backend].
func (b *Backend) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
	from := b.records + prefix
	if after != "" {
		from = max(from, b.records+after+"\x00")
	}
	end := behind(b.records + prefix)
	if from >= string(end) || limit <= 0 {
		return nil, nil
	}
	answers, err := b.read(ctx, "scan", []*pb.Op{opGet(&pb.Range{Key: []byte(from), RangeEnd: end, Limit: int64(limit)})})
	if err != nil {
		return nil, err
	}
	found := answers[0].Kvs
	records := make([]cas.Record, len(found))
	for i := range found {
		key := string(found[i].Key[len(b.records):])
		if records[i], err = decode(key, found[i:i+1]); err != nil {
			return nil, failed("scan", err, false)
		}
	}
	return records, nil
}
