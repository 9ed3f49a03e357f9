package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/etcd"
)

// A request that was not sent is known not to be carried out, even if no check of the server came before it.
func TestOutcomeIsKnownWithoutAConnection(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	link := process.NewLink(t, c.Nodes[0].Address)
	link.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := etcd.WriteTo(ctx, link.Address); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("without a connection: %v", err)
	}
	c.Nodes[0].Freeze()
	link.Mend()
	// The frozen server's kernel accepts the connection, and nobody greets the client.
	limited, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := etcd.WriteTo(limited, c.Nodes[0].Address); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("without a greeting: %v", err)
	}
}

// A request that etcd refuses is known not to be carried out.
func TestOutcomeOfARefusalIsKnown(t *testing.T) {
	t.Parallel()
	r := on(t, cluster).ready("one")
	_, err := r.SwapOne(cas.Swap{Key: "ns/large", Data: make([]byte, 1_900_000)})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a record of 1.9 MB: %v", err)
	}
	_, err = r.SwapOne(cas.Swap{Key: "ns/many", Living: make([]store.LeaseID, 127)})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("127 leases: %v", err)
	}
	if result, err := r.SwapOne(cas.Swap{Key: "ns/many", Living: make([]store.LeaseID, 126)}); err != nil || result.Done {
		t.Errorf("126 dead leases: %+v, %v", result, err)
	}
}

// A watch that was cut resumes without loss. After a compaction, the backend says that letters may be lost.
func TestLettersOfAnOutage(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	link := process.NewLink(t, c.Nodes[0].Address)
	near := on(t, c)
	far := &server{t: t, url: near.url, limit: time.Second}
	far.url.Host = link.Address
	writer, reader := near.ready("writer"), far.ready("one")
	writer.Write("one", 1)
	reader.Reads(1)

	link.Cut()
	writer.Write("one", 2)
	writer.Write("one", 3)
	link.Mend()
	reader.Reads(2)
	reader.Reads(3)
	await.Silent(t, reader.Lost, "loss")

	link.Cut()
	writer.Write("one", 4)
	writer.Write("one", 5)
	c.Compact(t)
	link.Mend()
	await.Receive(t, reader.Lost, "the loss")
	writer.Write("one", 6)
	// The watch goes on at the compacted revision, which etcd keeps. If it did not, it would be refused again and again.
	for number := byte(0); number != 6; {
		select {
		case <-reader.Lost:
			t.Fatal("letters were lost twice by one compaction")
		case l := <-reader.Letters:
			if number = l.Body[0]; number < 4 {
				t.Fatalf("letter %d came twice", number)
			}
		case <-time.After(await.Patience):
			t.Fatal("the watch did not go on")
		}
	}
}

// A server that is killed and started again loses no letter.
func TestLettersOutliveARestart(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t)
	s := on(t, c)
	one, other := s.ready("one"), s.ready("other")
	other.Write("one", 1)
	one.Reads(1)
	c.Nodes[0].Restart(t)
	other.BecomesReady()
	await.Until(t, "the swap succeeds", func() bool {
		_, err := other.SwapOne(cas.Swap{Key: "ns/try", Data: []byte("x")})
		return err == nil
	})
	other.Write("one", 2)
	one.Reads(2)
	await.Silent(t, one.Lost, "loss")
}

// If the database is full, nothing new is granted, and the error says why. Renewals and ends still work.
func TestFullDatabase(t *testing.T) {
	t.Parallel()
	s := on(t, etcdtest.Start(t, etcdtest.WithQuota(2<<20)))
	log := s.logged()
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	other := r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/held", Data: []byte("x"), Leases: []store.LeaseID{lease}})
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = r.SwapOne(cas.Swap{Key: "ns/" + strings.Repeat("k", i), Data: make([]byte, 100_000)})
	}
	if !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "NOSPACE") {
		t.Fatalf("with a full database: %v", err)
	}
	if _, err := r.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: [16]byte{1}, TTL: time.Minute}}}); err == nil ||
		store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "NOSPACE") {
		t.Errorf("a new lease: %v", err)
	}
	if !r.Keeps(lease) {
		t.Error("a renewal failed")
	}
	if err := r.Ready(); err != nil {
		t.Errorf("not ready, so that renewals would be refused: %v", err)
	}
	r.Done(cas.Swap{Key: "ns/held", Version: held.Version, Delete: true})
	if err := r.Revoke(r.Ctx, []store.LeaseID{other}); err != nil {
		t.Errorf("a revocation: %v", err)
	}
	s.ready("two") // it checks the server
	if !log.Has("quota_bytes=2097152") || !log.Has("alarm NOSPACE") {
		t.Errorf("the log:\n%s", log)
	}
}

// TestARefusalForTheQuotaIsDefinite: etcd carries out the change that exceeds its quota, and then refuses it in the same words as later ones. A
// swap that is said to have failed has changed nothing.
func TestARefusalForTheQuotaIsDefinite(t *testing.T) {
	t.Parallel()
	s := on(t, etcdtest.Start(t, etcdtest.WithQuota(2<<20)))
	r := s.ready("one")
	var writers sync.WaitGroup
	var mu sync.Mutex
	refused, written := map[string]error{}, map[string]bool{}
	for w := range 8 {
		writers.Go(func() {
			for i := range 60 {
				key := fmt.Sprintf("ns/%d/%d", w, i)
				result, err := r.SwapOne(cas.Swap{Key: key, Data: make([]byte, 20_000)})
				mu.Lock()
				if err == nil && result.Done {
					written[key] = true
				} else {
					refused[key] = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	writers.Wait()
	if len(refused) != 8 {
		t.Fatalf("%d of 8 writers were refused", len(refused))
	}
	for key, err := range refused {
		if !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "NOSPACE") {
			t.Errorf("%s: %v", key, err)
		}
		if r.LoadOne(key).Version != 0 {
			t.Errorf("%s was written, although its swap was refused: %v", key, err)
		}
	}
	for key := range written {
		if r.LoadOne(key).Version == 0 {
			t.Errorf("%s was not written", key)
		}
	}
}

// A cluster goes on without one server, also if this is the leader, is frozen, and was asked.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, etcdtest.Nodes(3), etcdtest.WithElection(50*time.Millisecond, 500*time.Millisecond))
	s := on(t, c)
	s.limit = 2 * time.Second
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	r.Write("one", 1)
	r.Reads(1)
	last := r.LoadOne("ns/key")
	grows := func(what string) {
		t.Helper()
		began := time.Now()
		await.Until(t, "a swap succeeds "+what, func() bool {
			result, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: last.Version, Data: []byte("x")})
			if err != nil {
				return false
			}
			if result.Record.Base <= last.Base {
				t.Fatalf("%s: tokens from %d, after those from %d", what, result.Record.Base, last.Base)
			}
			last = result.Record // also if an unknown one was carried out
			return result.Done
		})
		t.Logf("%s: a swap succeeded after %s", what, time.Since(began))
		began = time.Now()
		await.Until(t, "a renewal succeeds "+what, func() bool { return r.Keeps(lease) })
		t.Logf("%s: a renewal succeeded after %s more", what, time.Since(began))
	}
	grows("at first")
	leader := c.Leader(t)
	leader.Kill()
	grows("without the leader")
	leader.Restart(t)
	r.BecomesReady()
	follower := c.Followers(t)[0]
	follower.Freeze()
	grows("with a frozen follower")
	await.Until(t, "the frozen follower is not asked any more", func() bool { return !slices.Contains(r.InUse(), follower.Address) })
	for range 9 {
		last = r.Done(cas.Swap{Key: "ns/key", Version: r.LoadOne("ns/key").Version, Data: []byte("x")})
	}
	follower.Thaw()
	frozen := c.Leader(t)
	frozen.Freeze()
	grows("with a frozen leader")
	frozen.Thaw()

	leader = c.Leader(t)
	for _, n := range c.Nodes {
		if n != leader {
			n.Kill()
		}
	}
	r.Refuses("")
	if _, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: last.Version, Data: []byte("x")}); !store.Unavailable(err) {
		t.Errorf("without a majority: %v", err)
	}
	c.Revive(t)
	grows("with a majority again")
	r.Write("one", 2)
	r.Reads(2)
	await.Silent(t, r.Lost, "loss")
}
