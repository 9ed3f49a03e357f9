package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Sweep looks for letters as the backend does from time to time. It returns what the next call takes.
func (b *Backend) Sweep(ctx context.Context, old int64) int64 { return b.sweepOnce(ctx, old) }

// AtRevision lets a check see a revision of the servers.
func (b *Backend) AtRevision(ctx context.Context, revision int64) {
	b.warnUncompacted(ctx, b.client.Load(), revision)
}

// WriteTo sends a request that changes something through a client of these endpoints, without a check before.
func WriteTo(ctx context.Context, endpoint string, send func(context.Context, *clientv3.Client) error) error {
	b, err := New(Config{URL: "etcd://" + endpoint})
	if err != nil {
		return err
	}
	client, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	b.become(nil)
	return b.write(ctx, "test", send)
}

// Suitable is the check of a server's version.
var Suitable = suitable
