package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// sweepEvery is the time between two looks for old letters.
	sweepEvery = 10 * time.Minute
	sweepLimit = 1000
)

// listen delivers the letters to this instance. It begins with the revision after the first successful check, because
// nobody writes to an instance that has not asked for anything yet.
func (b *Backend) listen(ctx context.Context, deliver func(cas.Letter), lost func()) {
	select {
	case <-ctx.Done():
		return
	case <-b.reached:
	}
	next := b.first
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longPause) {
		if client := b.client.Load(); client != nil {
			heard := b.hear(ctx, client, next, deliver, lost)
			if heard > next {
				pause = firstPause
			}
			next = heard
			b.doubt()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// hear delivers letters from a revision on until the watch ends. It returns the revision from which to go on.
func (b *Backend) hear(ctx context.Context, client *clientv3.Client, next int64, deliver func(cas.Letter), lost func()) int64 {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// Progress notifications keep the revision fresh while there are no letters, so that a compaction loses none.
	events := client.Watch(ctx, b.mailbox, clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithFilterDelete(),
		clientv3.WithProgressNotify())
	for answer := range events {
		if answer.CompactRevision > 0 {
			lost()
			return max(next, answer.CompactRevision)
		}
		if answer.Err() != nil {
			return next
		}
		for _, event := range answer.Events {
			key := string(event.Kv.Key[len(b.mailbox):])
			deliver(cas.Letter{To: b.config.Instance, Key: key, Base: base(event.Kv.ModRevision), Body: event.Kv.Value})
		}
		if err := b.grows(next-1, answer.Header.Revision); err != nil {
			return next
		}
		switch count := len(answer.Events); {
		case count > 0: // while the watch catches up, the header is ahead of the events
			next = answer.Events[count-1].Kv.ModRevision + 1
		case answer.IsProgressNotify():
			next = answer.Header.Revision + 1
		}
	}
	return next
}

// sweep deletes old letters from time to time.
func (b *Backend) sweep(ctx context.Context) {
	old := int64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery/2 + rand.N(sweepEvery)):
		}
		old = b.sweepOnce(ctx, old)
	}
}

// sweepOnce deletes the letters that were there at the last look, whose revision is old. It returns that of this look.
func (b *Backend) sweepOnce(ctx context.Context, old int64) int64 {
	answers, err := b.read(ctx, "sweep", []clientv3.Op{clientv3.OpGet(b.letters, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithMaxModRev(max(1, old)), clientv3.WithLimit(sweepLimit))})
	if err != nil {
		return old
	}
	var deletions []clientv3.Op
	for _, kv := range answers[0].Kvs {
		deletions = append(deletions, clientv3.OpDelete(string(kv.Key)))
	}
	for len(deletions) > 0 {
		part := deletions[:min(maxOps, len(deletions))]
		deletions = deletions[len(part):]
		err := b.write(ctx, "sweep", func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Txn(ctx).Then(part...).Commit()
			return err
		})
		if err != nil {
			return old
		}
	}
	return b.newest.Load()
}
