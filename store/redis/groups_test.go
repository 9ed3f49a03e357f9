package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
)

// emptied returns a server whose data no other test uses. Its tests must not run at the same time.
func emptied(t *testing.T, url string, masters func() []*redistest.Server) *server {
	t.Helper()
	for _, m := range masters() {
		m.Do(t, "FLUSHALL")
	}
	return &server{t: t, url: url}
}

func TestBackendOnACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	castest.RunInTurn(t, func(t *testing.T) castest.Server {
		return emptied(t, c.URL(), func() []*redistest.Server { return c.Masters(t) })
	})
}

func TestBackendWithSentinel(t *testing.T) {
	g := redistest.StartSentinel(t)
	castest.RunInTurn(t, func(t *testing.T) castest.Server {
		return emptied(t, g.URL(), func() []*redistest.Server { return []*redistest.Server{g.Master} })
	})
}

// holds is the TTL of leases that are longer than a failover, and shorter than [await.Patience]: nothing is granted for
// so long after it.
const holds = 12 * time.Second

// TestResharding: locks are kept, renewed and released while the cluster moves all slots of a master, and new ones can be had
// after the quiet time that follows for those slots.
func TestResharding(t *testing.T) {
	c := redistest.StartCluster(t)
	s := &server{t: t, url: c.URL(), ttl: time.Second}
	r := s.ready("one")
	lease := r.open(holds)
	held := map[string]cas.Record{}
	for range 100 {
		key := uuid.NewString()
		held[key] = r.done(cas.Swap{Key: key, Data: []byte(key), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
	}
	masters := c.Masters(t)
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		c.Reshard(t, masters[0], masters[1], 5461)
	}()
	renewals, failed := 0, 0
	for done := false; !done; {
		select {
		case <-moved:
			done = true
		case <-time.After(20 * time.Millisecond):
		}
		if renewals++; !r.keeps(lease) {
			failed++
		}
	}
	t.Logf("%d renewals during the move, %d failed", renewals, failed)
	await.Until(t, "the lease is renewed", func() bool { return r.keeps(lease) })
	for key, record := range held {
		now := r.load(key)
		if now.Version != record.Version || string(now.Data) != key || len(now.States) != 1 || !now.States[0].Alive {
			t.Fatalf("after the move: %+v, was %+v", now, record)
		}
		var result cas.Swapped
		await.Until(t, "a lock is released and granted again", func() bool {
			var err error
			r.keeps(lease)
			if result, err = r.swap(cas.Swap{Key: key, Version: now.Version, Living: []store.LeaseID{lease}, Tokens: 1}); err != nil {
				t.Fatal(err)
			}
			return result.Done
		})
		if result.Record.Base <= record.Base {
			t.Errorf("token %d after %d", result.Record.Base, record.Base)
		}
	}
	if found, err := r.Opened(r.ctx, "one"); err != nil || len(found) != 1 {
		t.Errorf("opened: %v, %v", found, err)
	}
}

// TestClusterFailover: the replica of a master that dies takes over, and the other masters' locks are not touched.
func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t)
	s := &server{t: t, url: c.URL(), ttl: time.Second, limit: 2 * time.Second}
	r := s.ready("one")
	lease := r.open(holds)
	keys := map[string]cas.Record{}
	for range 60 {
		key := uuid.NewString()
		keys[key] = r.done(cas.Swap{Key: key, Data: []byte(key), Tokens: 1, Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}})
	}
	history := r.load("any").History
	for _, m := range c.Masters(t) {
		m.Do(t, "WAIT", 1, 10_000)
	}
	c.Masters(t)[0].Kill()
	for key, record := range keys {
		var now cas.Record
		await.Until(t, "the record can be read", func() bool {
			ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
			defer cancel()
			records, _, err := r.Load(ctx, []string{key}, nil)
			if err == nil {
				now = records[0]
			}
			return err == nil
		})
		if now.Version != record.Version || string(now.Data) != key {
			t.Fatalf("after the failover: %+v, was %+v", now, record)
		}
		await.Until(t, "the key is granted again", func() bool {
			r.keeps(lease)
			result, err := r.swap(cas.Swap{Key: key, Version: now.Version, Tokens: 1})
			return err == nil && result.Done && result.Record.Base > record.Base
		})
	}
	if now := r.load("any").History; now == history {
		t.Error("the history is the same")
	}
	if !r.keeps(lease) {
		t.Error("the lease is lost")
	}
}
