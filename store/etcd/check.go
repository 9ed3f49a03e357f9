package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

const (
	// checkEvery is the time between two checks while nothing is wrong.
	checkEvery = 30 * time.Second
	// patience is how long a server may take before other servers are preferred.
	patience = time.Second

	quotaWarning = 0.8
	// manyRevisions is after how many revisions a server should have compacted.
	manyRevisions = 100_000
)

// check asks all servers how they are, prefers those that answer, and reads from a majority.
func (b *Server) check(ctx context.Context) error {
	c, err := b.connect()
	if err != nil {
		return err
	}
	if err := b.prefer(ctx, c); err != nil {
		return err
	}
	newest := b.newest.Load()
	var answer *pb.Done
	err = c.loggedIn(ctx, func() (err error) {
		answer, err = c.txn(ctx, opGet(&pb.Range{Key: []byte(b.letters), CountOnly: true}))
		return err
	})
	if err != nil {
		if notLetIn(err) {
			b.reconnect(c)
		}
		return explain(b.naming(err))
	}
	if err := b.grows(newest, answer.Header.Revision); err != nil {
		return err
	}
	if b.first == 0 {
		b.first = answer.Header.Revision + 1
		close(b.reached)
	}
	b.warnUncompacted(ctx, c, answer.Header.Revision)
	return nil
}

// grows notes the revision of an answer. It fails if a higher one was seen before the request: then the servers have
// forgotten something.
func (b *Server) grows(before, revision int64) error {
	if revision < before {
		return fmt.Errorf("etcd went back from revision %d to %d, so tokens would not grow: after a restore with "+
			"etcdutl snapshot restore --bump-revision, restart the sidecar", before, revision)
	}
	b.newest.Raise(revision)
	return nil
}

// connect returns the connection, and makes it if there is none.
func (b *Server) connect() (*conn, error) {
	if c := b.conn.Load(); c != nil {
		return c, nil
	}
	t := b.target
	if b.config.Again != nil {
		now, err := b.config.Again()
		if err != nil {
			return nil, err
		}
		if t, err = parse(now); err != nil {
			return nil, err
		}
		t.prefix = b.target.prefix
	}
	c, err := connect(t)
	if err == nil {
		b.conn.Store(c)
	}
	return c, err
}

// reconnect drops a connection whose user is refused, if the URL may have changed.
func (b *Server) reconnect(c *conn) {
	if b.config.Again != nil && b.conn.CompareAndSwap(c, nil) {
		c.close()
	}
}

// prefer makes requests go to the servers that answer soon. It fails if one is too old.
func (b *Server) prefer(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	endpoints := c.target.endpoints
	answers := make([]*pb.Status, len(endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range endpoints {
		asking.Go(func() {
			if answer, err := health(ctx, c.target, endpoint); err == nil {
				answers[i] = answer
			}
		})
	}
	asking.Wait()
	var good []string
	for i, answer := range answers {
		if answer == nil {
			continue
		}
		if err := suitable(answer.Version); err != nil {
			return fmt.Errorf("%s: %w", endpoints[i], err)
		}
		b.warnFull(endpoints[i], answer)
		if answer.Leader != 0 && !answer.IsLearner {
			good = append(good, endpoints[i])
		}
	}
	if len(good) == 0 {
		good = endpoints
	}
	c.use(good)
	if len(good) < len(endpoints) {
		time.AfterFunc(patience, b.Doubt) // look again for the others
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
func (b *Server) warnFull(endpoint string, status *pb.Status) {
	if slices.ContainsFunc(status.Errors, func(alarm string) bool { return strings.Contains(alarm, "NOSPACE") }) {
		b.WarnOnce("nospace"+endpoint, "etcd's database has reached its quota (alarm NOSPACE): nothing new is granted until it is compacted, "+
			"defragmented, and the alarm is disarmed", slog.String("endpoint", endpoint), slog.Int64("bytes", status.DbSize))
	}
	if used := float64(status.DbSize) / float64(status.DbSizeQuota); status.DbSizeQuota > 0 && used > quotaWarning {
		b.WarnOnce("quota"+endpoint, "etcd's database is near its quota", slog.String("endpoint", endpoint),
			slog.Int64("bytes", status.DbSize), slog.Int64("quota_bytes", status.DbSizeQuota))
	}
}

// warnUncompacted warns if etcd still has its first revision after many. Whether it compacts by itself cannot be asked.
func (b *Server) warnUncompacted(ctx context.Context, c *conn, revision int64) {
	if revision < manyRevisions || b.compacts {
		return
	}
	_, err := c.txn(ctx, opGet(&pb.Range{Key: []byte(b.letters), Revision: 1, CountOnly: true}))
	if err == nil {
		b.WarnOnce("uncompacted", "etcd has never compacted its revisions, so its database only grows: "+
			"set --auto-compaction-retention", slog.Int64("revisions", revision))
	}
	b.compacts = err == nil || says(err, textCompacted)
}
