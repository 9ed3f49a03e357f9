package etcd

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"

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
	// spareBytes is how much longer the transaction of a change is than its bytes, mostly.
	spareBytes = 64
	// parallel is how many transactions of a call are on their way at a time. Four carry 1.7 times as many swaps as one.
	parallel = 4
	// calmAfter is how many nested transactions in a row must succeed as a whole before changes are joined again.
	calmAfter = 8
)

// Load implements [cas.Backend]. A second request follows only if a record names leases that are not among the given ones.
func (b *Server) Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState, error) {
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
	present := make([]*cas.Record, 0, len(keys)+1)
	for i, key := range keys {
		if records[i], err = b.decode(key, found[i].Kvs); err != nil {
			return nil, nil, cas.Failed("load", err, false)
		}
		present = append(present, &records[i])
	}
	alive := map[store.LeaseID]bool{}
	for i, id := range leases {
		alive[id] = len(found[len(keys)+i].Kvs) > 0
	}
	given := cas.Record{Leases: leases}
	if err := b.addStates(ctx, append(present, &given), b.states(ctx, leases, alive)); err != nil {
		return nil, nil, err
	}
	return records, given.States, nil
}

// read carries out reads in transactions.
func (b *Server) read(ctx context.Context, op string, gets []*pb.Op) (found []*pb.Ranged, err error) {
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

// addStates sets the states of the leases that records name: see [cas.AddStates].
func (b *Server) addStates(ctx context.Context, records []*cas.Record, known map[store.LeaseID]cas.LeaseState) error {
	return cas.AddStates(records, known, func(leases []store.LeaseID) error {
		alive := map[store.LeaseID]bool{}
		if err := b.exist(ctx, leases, alive); err != nil {
			return err
		}
		maps.Copy(known, b.states(ctx, leases, alive))
		return nil
	})
}

// change is a swap, and what its transaction needs.
type change struct {
	*cas.Swap
	key   string
	bytes int
	floor int64
}

func (b *Server) change(s *cas.Swap) change {
	c := change{Swap: s, key: b.records + s.Key, floor: b.floor.Load()}
	c.bytes = 2*len(c.key) + len(s.Data) + 48*(c.conditions()+len(s.Leases))
	for i := range s.Letters {
		c.bytes += len(b.letters) + len(s.Letters[i].To) + len(s.Letters[i].Key) + len(s.Letters[i].Body)
	}
	return c
}

// conditions are that of the record, and those of leases.
func (c *change) conditions() int { return 1 + len(c.Living) }

// ops are that on the record, and those of letters.
func (c *change) ops() int { return 1 + len(c.Letters) }

// size is the length of its longest list.
func (c *change) size() int { return max(c.conditions(), c.ops()) }

// add adds what a change does if the conditions hold.
func (b *Server) add(w *wire, c *change) {
	if c.Delete {
		w.remove(c.key)
	} else {
		w.record(c.key, c.floor, c.Leases, c.Data)
	}
	for i := range c.Letters {
		w.letter(b.letter(c.Letters[i].To, c.Letters[i].Key), c.floor, c.Letters[i].Body)
	}
}

// txn is the change as a transaction of its own. If the conditions fail, it reads the present record.
func (b *Server) txn(c *change) wire {
	w := make(wire, 0, c.bytes+spareBytes)
	w.unchanged(c.key, c.Version)
	for _, id := range c.Living {
		w.exists(b.lease(id))
	}
	b.add(&w, c)
	w.otherwise(c.key)
	return w
}

// nested is a transaction of changes that are carried out independently of each other.
func (b *Server) nested(changes []change) wire {
	w := newWire(changes)
	for i := range changes {
		w.nest(b.txn(&changes[i]))
	}
	return w
}

// joined is a transaction that carries out all changes, or none. It is nil if they have too many conditions or operations.
func (b *Server) joined(changes []change) wire {
	w := newWire(changes)
	var lives []store.LeaseID
	ops := 0
	for i := range changes {
		c := &changes[i]
		w.unchanged(c.key, c.Version)
		for _, id := range c.Living {
			if !slices.Contains(lives, id) {
				lives = append(lives, id)
				w.exists(b.lease(id))
			}
		}
		b.add(&w, c)
		if ops += c.ops(); max(i+1+len(lives), ops) > maxOps {
			return nil
		}
	}
	return w
}

func newWire(changes []change) wire {
	n := 0
	for i := range changes {
		n += changes[i].bytes + spareBytes
	}
	return make(wire, 0, n)
}

// transactions divides changes into transactions: the ends of their ranges.
func transactions(changes []change) (ends []int) {
	count, size := 0, 0
	for i := range changes {
		c := &changes[i]
		alone := c.size() > maxNested
		if count > 0 && (alone || count == maxSwaps || size+c.bytes > maxBytes) {
			ends, count, size = append(ends, i), 0, 0
		}
		count, size = count+1, size+c.bytes
		if alone {
			ends, count, size = append(ends, i+1), 0, 0
		}
	}
	if count > 0 {
		ends = append(ends, len(changes))
	}
	return ends
}

// Swap implements [cas.Backend]. If a call has several transactions and one fails, the outcome is unknown unless nothing
// was done. A swap has at most 126 letters, and as many conditions.
func (b *Server) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	changes := make([]change, len(swaps))
	for i := range swaps {
		if changes[i] = b.change(&swaps[i]); changes[i].size() >= maxOps {
			return nil, classify("swap", errTooLarge, false)
		}
	}
	results := make([]cas.Swapped, len(swaps))
	if err := b.swapAll(ctx, changes, results); err != nil {
		return nil, err
	}
	var present []*cas.Record
	for i := range results {
		if !results[i].Done {
			present = append(present, &results[i].Record)
		}
	}
	if err := b.addStates(ctx, present, map[store.LeaseID]cas.LeaseState{}); err != nil {
		return nil, cas.Failed("swap", err, len(present) < len(results))
	}
	return results, nil
}

// swapAll carries out the transactions of a call.
func (b *Server) swapAll(ctx context.Context, changes []change, results []cas.Swapped) error {
	ends := transactions(changes)
	if len(ends) == 1 { // without a wake-up
		return b.swap(ctx, changes, results)
	}
	errs := make([]error, len(ends))
	var sending sync.WaitGroup
	turns := make(chan struct{}, parallel)
	from := 0
	for i, end := range ends {
		part := from
		from = end
		turns <- struct{}{}
		sending.Go(func() {
			errs[i] = b.swap(ctx, changes[part:end], results[part:end])
			<-turns
		})
	}
	sending.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return cas.Failed("swap", errs[i], slices.ContainsFunc(errs, func(err error) bool {
			return err == nil || store.OutcomeUnknown(err)
		}))
	}
	return nil
}

// swap carries out one transaction. One that carries out all changes or none costs etcd less than nested ones. If its
// conditions fail, nothing was done, and nested ones follow. They go first for a while then, because a key that
// instances take in turns fails often.
func (b *Server) swap(ctx context.Context, changes []change, results []cas.Swapped) error {
	err := b.attempt(ctx, changes, results)
	if err == nil || !says(err, textNoSpace) {
		return err
	}
	return b.decide(ctx, changes, results, err)
}

// decide finds out whether etcd carried out a transaction that it refused for its quota: the one that exceeds it is carried out, and
// then refused in the same words as those that come later. A read is definite, because the answer came before it. Other bytes than those of
// the change may be those of a later swap, so the outcome stays unknown.
func (b *Server) decide(ctx context.Context, changes []change, results []cas.Swapped, refused error) error {
	unknown := cas.Failed("swap", refused, true)
	gets := make([]*pb.Op, len(changes))
	for i := range changes {
		gets[i] = get(changes[i].key)
	}
	found, err := b.read(ctx, "decide", gets)
	if err != nil {
		return unknown
	}
	did := 0
	for i := range changes {
		c := &changes[i]
		r, err := b.decode(c.Swap.Key, found[i].Kvs)
		switch {
		case err != nil:
			return unknown
		case r.Version == c.Version:
			continue
		case c.Delete && r.Version == 0:
			r.Base, r.Tokens = base(c.floor, b.newest.Load()), cas.TokensPerSwap
		case c.Delete || !bytes.Equal(found[i].Kvs[0].Value, encode(nil, c.floor, c.Leases, c.Data)):
			return unknown
		}
		r.Data, r.States = nil, nil
		results[i] = cas.Swapped{Done: true, Record: r}
		did++
	}
	switch did {
	case 0:
		return refused
	case len(changes):
		return nil
	default:
		return unknown
	}
}

// attempt sends the transaction.
func (b *Server) attempt(ctx context.Context, changes []change, results []cas.Swapped) error {
	if len(changes) == 1 {
		answer, err := b.send(ctx, b.txn(&changes[0]), false)
		if err != nil {
			return err
		}
		return b.judge(changes, func(int) *done { return answer }, answer.revision, results)
	}
	if b.contended.Load() <= 0 {
		if txn := b.joined(changes); txn != nil {
			answer, err := b.send(ctx, txn, false)
			if err != nil {
				return err
			}
			if answer.succeeded {
				return b.judge(changes, func(int) *done { return answer }, answer.revision, results)
			}
			b.contended.Store(calmAfter)
		}
	}
	answer, err := b.send(ctx, b.nested(changes), true)
	if err != nil {
		return err
	}
	if !answer.succeeded || len(answer.responses) != len(changes) {
		return classify("swap", errAnswer, true)
	}
	calm := !slices.ContainsFunc(answer.responses, func(r *pb.Result) bool { return !r.GetTxn().GetSucceeded() })
	if calm {
		b.contended.Add(-1)
	} else {
		b.contended.Store(calmAfter)
	}
	each := func(i int) *done {
		one := answer.responses[i].GetTxn()
		return &done{succeeded: one.GetSucceeded(), responses: one.GetResponses()}
	}
	return b.judge(changes, each, answer.revision, results)
}

// send sends a transaction of swaps, once. whole: see done.
func (b *Server) send(ctx context.Context, txn wire, whole bool) (answer *done, err error) {
	err = b.write(ctx, "swap", func(ctx context.Context, c *conn) (err error) {
		newest := b.newest.Load()
		answer = &done{whole: whole}
		if err = c.call(ctx, methodTxn, txn, answer, grpc.ForceCodecV2(wireCodec{})); err != nil {
			return err
		}
		return b.grows(newest, answer.revision)
	})
	return answer, err
}

// judge reads the results of swaps from the answers of their transactions.
func (b *Server) judge(changes []change, answers func(int) *done, revision int64, results []cas.Swapped) (err error) {
	for i := range changes {
		c, answer := &changes[i], answers(i)
		if answer.succeeded {
			results[i] = cas.Swapped{Done: true, Record: cas.Record{Key: c.Swap.Key, Leases: c.Leases, Base: base(c.floor, revision), Tokens: cas.TokensPerSwap}}
			if !c.Delete {
				results[i].Record.Version = revision
			}
			continue
		}
		if len(answer.responses) != 1 || answer.responses[0].GetRange() == nil {
			return classify("swap", errAnswer, true)
		}
		if results[i].Record, err = b.decode(c.Swap.Key, answer.responses[0].GetRange().Kvs); err != nil {
			return &store.Error{Op: "swap", Err: err, Unknown: true} // others of the transaction were carried out
		}
	}
	return nil
}

// Scan implements [cas.Backend].
func (b *Server) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
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
		if records[i], err = b.decode(key, found[i:i+1]); err != nil {
			return nil, cas.Failed("scan", err, false)
		}
	}
	return records, nil
}
