package etcd

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

const (
	// sweepEvery is the time between two looks for old letters.
	sweepEvery = 10 * time.Minute
	sweepLimit = 1000
)

// Post implements [cas.Backend].
func (b *Server) Post(ctx context.Context, letters []cas.Letter) error {
	for some := range slices.Chunk(letters, maxOps) {
		var txn wire
		for i := range some {
			txn.letter(b.letter(some[i].To, some[i].Key), 0, some[i].Body)
		}
		err := b.write(ctx, "post", func(ctx context.Context, c *conn) error {
			return c.call(ctx, methodTxn, txn, &done{}, grpc.ForceCodecV2(wireCodec{}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// listen delivers the letters to this instance. It begins with a revision at its start, or that after the first successful check, because
// nobody writes to an instance that has not asked for anything yet.
func (b *Backend) listen(ctx context.Context, next int64, deliver func(cas.Letter), lost func()) {
	select {
	case <-ctx.Done():
		return
	case <-b.reached:
	}
	next = max(next, b.first)
	var failures cas.Backoff
	for {
		if c := b.conn.Load(); c != nil {
			heard := b.hear(ctx, c, next, deliver, lost)
			if heard > next {
				failures.Reset()
			}
			next = heard
			b.Doubt()
		}
		if !cas.Pause(ctx, failures.Next()) {
			return
		}
	}
}

// hear delivers letters from a revision on until the watch ends. It returns the revision from which to go on.
func (b *Backend) hear(ctx context.Context, c *conn, next int64, deliver func(cas.Letter), lost func()) int64 {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	// Progress notifications keep the revision fresh while there are no letters, so that a compaction loses none.
	stream, err := c.stream(ctx, methodWatch, &pb.Watch{Create: &pb.Watch_Create{
		Key: []byte(b.mailbox), RangeEnd: behind(b.mailbox), StartRevision: next, ProgressNotify: true,
		Filters: []pb.Watch_Create_Filter{pb.Watch_Create_NODELETE},
	}})
	if err != nil {
		return next
	}
	defer b.hears.Store(false)
	for {
		answer := &pb.Watched{}
		if err := stream.RecvMsg(answer); err != nil {
			return next
		}
		if answer.CompactRevision > 0 {
			lost()
			return max(next, answer.CompactRevision)
		}
		if answer.Created { // perhaps by a server that lags behind
			b.hears.Store(!answer.Canceled)
			continue
		}
		if answer.Canceled || b.grows(next-1, answer.Header.GetRevision()) != nil {
			return next
		}
		for _, event := range answer.Events {
			key := string(event.Kv.Key[len(b.mailbox):])
			if floor, body, ok := cutFloor(event.Kv.Value); ok {
				deliver(cas.Letter{To: b.instance, Key: key, Base: base(floor, event.Kv.ModRevision), Body: body})
			}
		}
		// While the watch catches up, the header is ahead of the events.
		if count := len(answer.Events); count > 0 {
			next = answer.Events[count-1].Kv.ModRevision + 1
		} else { // a progress notification
			next = answer.Header.Revision + 1
		}
	}
}

// sweep deletes old letters from time to time.
func (b *Server) sweep(ctx context.Context) {
	old := int64(0)
	for cas.Pause(ctx, sweepEvery/2+rand.N(sweepEvery)) {
		old = b.sweepOnce(ctx, old)
	}
}

// sweepOnce deletes the letters that were there at the last look, whose revision is old. It returns that of this look.
func (b *Server) sweepOnce(ctx context.Context, old int64) int64 {
	answers, err := b.read(ctx, "sweep", []*pb.Op{opGet(&pb.Range{
		Key: []byte(b.letters), RangeEnd: behind(b.letters), KeysOnly: true, MaxModRevision: max(1, old), Limit: sweepLimit,
	})})
	if err != nil {
		return old
	}
	var deletions []*pb.Op
	for _, kv := range answers[0].Kvs {
		deletions = append(deletions, remove(string(kv.Key)))
	}
	for len(deletions) > 0 {
		part := deletions[:min(maxOps, len(deletions))]
		deletions = deletions[len(part):]
		err := b.write(ctx, "sweep", func(ctx context.Context, c *conn) error {
			_, err := c.txn(ctx, part...)
			return err
		})
		if err != nil {
			return old
		}
	}
	return b.newest.Load()
}
