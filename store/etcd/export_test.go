package etcd

import (
	"context"

	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// Transactions returns the transactions of swaps: each alone, and all of them nested, and joined.
func (b *Server) Transactions(floor int64, swaps []cas.Swap) (alone [][]byte, nested, joined []byte) {
	b.floor.Raise(floor)
	changes := make([]change, len(swaps))
	for i := range swaps {
		changes[i] = b.change(&swaps[i])
		alone = append(alone, b.txn(&changes[i]))
	}
	return alone, b.nested(changes), b.joined(changes)
}

// ReadDone reads the answer to a transaction.
func ReadDone(answer []byte, whole bool) (succeeded bool, revision int64, responses []*pb.Result, err error) {
	d := done{whole: whole}
	err = d.read(answer)
	return d.succeeded, d.revision, d.responses, err
}

// Sweep looks for letters as the backend does from time to time. It returns what the next call takes.
func (b *Backend) Sweep(ctx context.Context, old int64) int64 { return b.sweepOnce(ctx, old) }

// AtRevision lets a check see a revision of the servers.
func (b *Backend) AtRevision(ctx context.Context, revision int64) {
	b.warnUncompacted(ctx, b.conn.Load(), revision)
}

// WriteTo sends a request that changes something to a server, without a check before.
func WriteTo(ctx context.Context, endpoint string) error {
	b, err := NewServer(Config{URL: "etcd://" + endpoint})
	if err != nil {
		return err
	}
	c, err := b.connect()
	if err != nil {
		return err
	}
	defer c.close()
	b.Become(nil)
	return b.write(ctx, "test", func(ctx context.Context, c *conn) error {
		_, err := c.txn(ctx, put("key", nil, 0))
		return err
	})
}

// Suitable is the check of a server's version.
var Suitable = suitable

// InUse returns the endpoints to which requests go.
func (b *Backend) InUse() []string {
	c := b.conn.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inUse
}
