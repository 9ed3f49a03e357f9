package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	// checkEvery is the time between two checks while nothing is wrong.
	checkEvery = 30 * time.Second
	firstPause = 50 * time.Millisecond
	longPause  = time.Second
	// patience is how long a server may take before other servers are preferred.
	patience = time.Second
	// pingAfter and pingLimit find a connection that is cut. A server refuses pings every 5 seconds or more often.
	pingAfter = 10 * time.Second
	pingLimit = 3 * time.Second

	quotaWarning = 0.8
	// manyRevisions is after how many revisions a server should have compacted.
	manyRevisions = 100_000
)

// watchServers checks the servers: regularly, after a doubt, and until they can be used.
func (b *Backend) watchServers(ctx context.Context) {
	for pause := firstPause; ; {
		wait, doubts := checkEvery, b.doubts
		if b.Ready() != nil {
			wait, doubts = pause/2+rand.N(pause), nil
			pause = min(2*pause, longPause)
		} else {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-doubts:
		case <-time.After(wait):
		}
		err := b.check(ctx)
		if ctx.Err() != nil {
			return
		}
		b.become(err)
	}
}

// check asks all servers how they are, prefers those that answer, and reads from a majority.
func (b *Backend) check(ctx context.Context) error {
	client, err := b.connect(ctx)
	if err != nil {
		return explain(err)
	}
	if err := b.prefer(ctx, client); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	newest := b.newest.Load()
	answer, err := client.Get(clientv3.WithRequireLeader(ctx), b.letters, clientv3.WithCountOnly())
	if notLetIn(err) {
		b.reconnect(client)
	}
	if err != nil {
		return explain(err)
	}
	if err := b.grows(newest, answer.Header.Revision); err != nil {
		return err
	}
	if b.first == 0 {
		b.first = answer.Header.Revision + 1
		close(b.reached)
	}
	b.warnUncompacted(ctx, client, answer.Header.Revision)
	return nil
}

// grows notes the revision of an answer. It fails if a higher one was seen before the request: then the servers have
// forgotten something.
func (b *Backend) grows(before, revision int64) error {
	if revision < before {
		return fmt.Errorf("etcd went back from revision %d to %d, so tokens would not grow: after a restore with "+
			"etcdutl snapshot restore --bump-revision, restart the sidecar", before, revision)
	}
	for newest := b.newest.Load(); revision > newest && !b.newest.CompareAndSwap(newest, revision); {
		newest = b.newest.Load()
	}
	return nil
}

// connect returns the client, and makes it if there is none. Logging in needs a server, so it may fail.
func (b *Backend) connect(ctx context.Context) (*clientv3.Client, error) {
	if client := b.client.Load(); client != nil {
		return client, nil
	}
	if b.config.Again != nil {
		now, err := b.config.Again()
		if err != nil {
			return nil, err
		}
		t, err := parse(now)
		if err != nil {
			return nil, err
		}
		b.target.username, b.target.password = t.username, t.password
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: b.target.endpoints, TLS: b.target.tls, Username: b.target.username, Password: b.target.password,
		DialTimeout: min(b.config.Timeout, 2*patience), DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingLimit,
		Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithStatsHandler(sendNoter{})},
	})
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		_ = client.Close()
		return nil, ctx.Err()
	}
	b.client.Store(client)
	return client, nil
}

// reconnect drops a client whose user is refused, if the URL may have changed.
func (b *Backend) reconnect(client *clientv3.Client) {
	if b.config.Again != nil && b.client.CompareAndSwap(client, nil) {
		_ = client.Close()
	}
}

// prefer makes the client use the servers that answer soon. It fails if one is too old.
func (b *Backend) prefer(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answers := make([]*clientv3.StatusResponse, len(b.target.endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range b.target.endpoints {
		asking.Go(func() {
			if status, err := client.Status(ctx, endpoint); err == nil {
				answers[i] = status
			}
		})
	}
	asking.Wait()
	var good []string
	for i, status := range answers {
		if status == nil {
			continue
		}
		if err := suitable(status.Version); err != nil {
			return fmt.Errorf("%s: %w", b.target.endpoints[i], err)
		}
		b.warnFull(b.target.endpoints[i], status)
		if status.Leader != 0 && !status.IsLearner {
			good = append(good, b.target.endpoints[i])
		}
	}
	if len(good) == 0 {
		good = b.target.endpoints
	}
	if !slices.Equal(good, client.Endpoints()) {
		client.SetEndpoints(good...)
	}
	if len(good) < len(b.target.endpoints) {
		time.AfterFunc(patience, b.doubt) // look again for the others
	}
	return nil
}

// suitable refuses servers whose old leader, after it was replaced, may still renew or revoke leases.
func suitable(version string) error {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return fmt.Errorf("the server's version %q is not understood", version)
	}
	if slices.Compare([]int{major, minor, patch}, []int{3, 5, 13}) < 0 {
		return fmt.Errorf("the server is etcd %s; locksidecar needs 3.5.13 or later, because an old leader of earlier versions "+
			"may renew or revoke leases (etcd-io/etcd#16822)", version)
	}
	return nil
}

// warnFull warns about a database that is near its quota. Servers before 3.6 do not tell their quota.
func (b *Backend) warnFull(endpoint string, status *clientv3.StatusResponse) {
	if slices.ContainsFunc(status.Errors, func(alarm string) bool { return strings.Contains(alarm, "NOSPACE") }) {
		b.warnOnce("nospace"+endpoint, "etcd's database has reached its quota (alarm NOSPACE): nothing new is granted until it is compacted, "+
			"defragmented, and the alarm is disarmed", slog.String("endpoint", endpoint), slog.Int64("bytes", status.DbSize))
	}
	if used := float64(status.DbSize) / float64(status.DbSizeQuota); status.DbSizeQuota > 0 && used > quotaWarning {
		b.warnOnce("quota"+endpoint, "etcd's database is near its quota", slog.String("endpoint", endpoint),
			slog.Int64("bytes", status.DbSize), slog.Int64("quota_bytes", status.DbSizeQuota))
	}
}

// warnUncompacted warns if etcd still has its first revision after many. Whether it compacts by itself cannot be asked.
func (b *Backend) warnUncompacted(ctx context.Context, client *clientv3.Client, revision int64) {
	if revision < manyRevisions || b.said["uncompacted"] {
		return
	}
	_, err := client.Get(ctx, b.letters, clientv3.WithRev(1), clientv3.WithCountOnly())
	if err == nil {
		b.warnOnce("uncompacted", "etcd has never compacted its revisions, so its database only grows: "+
			"set --auto-compaction-retention", slog.Int64("revisions", revision))
	}
	b.said["uncompacted"] = b.said["uncompacted"] || errors.Is(err, rpctypes.ErrCompacted)
}

func (b *Backend) warnOnce(about, text string, attrs ...slog.Attr) {
	if !b.said[about] {
		b.said[about] = true
		b.log.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...)
	}
}
