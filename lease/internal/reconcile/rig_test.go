package reconcile

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/roomtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a reconciler whose store fails over. Its helpers: lock, verify, forget, renewed (the leases are); checks: must, lost.
type rig struct {
	*roomtest.Floor
	t  *testing.T
	st *server
	aq *attempt.Acquirer
	s  *holdings.Session
	rc *Reconciler

	mu     sync.Mutex
	losses []types.Lost
}

// newRig makes a reconciler in a bubble. Nothing renews its leases before renewed.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, st: &server{Store: roomtest.NewStore(true), openedIn: map[store.LeaseID]store.History{}}}
	r.Floor = roomtest.New(t, r.st, r, func(c *types.Config) { c.MaxLocksPerSession = 10 * verifyMax })
	var err error
	r.aq, err = attempt.New(r.Ctx, attempt.Config{
		Config: r.Config, Observer: r.Observer, Store: r.st, Lanes: r.Lanes, HeldCache: r.HeldCache, Leases: r.Leases,
		Needs: r.Needs, Background: r.Background, Draining: r.Draining,
	})
	r.must(err)
	r.rc = New(r.Ctx, Config{Config: r.Config, Store: r.st, Leases: r.Leases, Holdings: r.aq.Holdings(), Attempts: r.aq})
	r.s, err = r.aq.Holdings().Open(types.SessionOptions{OnLost: func(l types.Lost) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.losses = append(r.losses, l)
	}})
	r.must(err)
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// The rig tells the users of its leases: see [heartbeat.Users].

func (r *rig) LeaseLost(l *heartbeat.Lease, reason types.LostReason) (locks, waits int) {
	for _, h := range r.aq.Holdings().On(l) {
		h.LoseUnder(l, reason)
	}
	return 0, r.aq.LoseWaitsUnder(l)
}

func (r *rig) LeaseRetired(l *heartbeat.Lease) { r.Background.Spawn(func() { r.rc.Rotate(l) }) }
func (r *rig) SignalsWait()                    {}

func (r *rig) Verify(ctx context.Context, leases []*heartbeat.Lease, history store.History, trusted func(*heartbeat.Lease)) error {
	return r.rc.Verify(ctx, leases, history, trusted)
}

// renewed begins to renew leases, as a sidecar does.
func (r *rig) renewed() { r.Background.Spawn(func() { r.Leases.Run(r.Ctx) }) }

// lock acquires a free key, and returns its lease.
func (r *rig) lock(req types.Request) *heartbeat.Lease {
	r.t.Helper()
	g, err := r.aq.Acquire(context.Background(), r.s, &req)
	r.must(err)
	return r.s.Find(g.Key, g.Token).Lease()
}

// locks acquires so many keys with a TTL.
func (r *rig) locks(n int, ttl time.Duration) (under *heartbeat.Lease) {
	r.t.Helper()
	for i := range n {
		under = r.lock(types.Request{Key: fmt.Sprint(ttl, "/", i), TTL: ttl})
	}
	return under
}

// forget removes a lock from the store, as an asynchronous failover does.
func (r *rig) forget(key string, token int64, under *heartbeat.Lease) {
	r.t.Helper()
	verdicts, err := r.st.Release(context.Background(), []store.Claim{{Key: key, Token: token, Lease: under.ID()}})
	r.must(err)
	if verdicts[0].Status != store.Holds {
		r.t.Fatalf("%q is not held", key)
	}
}

// verify verifies leases in the present history, and returns those that it trusts, in the order.
func (r *rig) verify(leases ...*heartbeat.Lease) (trusted []*heartbeat.Lease, err error) {
	err = r.rc.Verify(r.Ctx, leases, r.st.now(), func(l *heartbeat.Lease) { trusted = append(trusted, l) })
	return trusted, err
}

// lost are the keys of lost locks.
func (r *rig) lost() (keys []string) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.losses {
		if l.Reason != types.LostStore {
			r.t.Errorf("%q is lost for another reason: %s", l.Key, l.Reason)
		}
		keys = append(keys, l.Key)
	}
	return keys
}

// server is a store that fails over to another server. It writes down how many keys it reads and moves at a time.
type server struct {
	*roomtest.Store

	mu        sync.Mutex
	history   store.History
	openedIn  map[store.LeaseID]store.History
	reads     []int
	unread    int  // so many reads succeed, and the others fail; 0: all succeed
	elsewhere bool // reads reach a server with another history
	moves     []int
	moved     []time.Time   // when a move began
	slow      time.Duration // a move takes this time
}

func (d *server) now() store.History {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history
}

func (d *server) failover() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = uuid.New()
}

func (d *server) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range leases {
		d.openedIn[l.ID] = d.history
	}
	return d.Store.OpenLeases(ctx, leases)
}

func (d *server) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	renewal, err := d.Store.Renew(ctx, leases)
	renewal.History = d.history
	for _, id := range renewal.Renewed {
		if d.openedIn[id] != d.history {
			renewal.Reconcile = append(renewal.Reconcile, id)
		}
	}
	return renewal, err
}

func (d *server) HeldUnder(ctx context.Context, keys []string) (store.HeldGrants, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads = append(d.reads, len(keys))
	if d.unread > 0 && len(d.reads) > d.unread {
		return store.HeldGrants{}, &store.Error{Op: "HeldUnder", Err: context.DeadlineExceeded}
	}
	held, err := d.Store.HeldUnder(ctx, keys)
	if held.History = d.history; d.elsewhere {
		held.History = uuid.New()
	}
	return held, err
}

func (d *server) Move(ctx context.Context, from, to store.LeaseID, moves []store.Move) ([]store.ClaimStatus, error) {
	d.mu.Lock()
	d.moves, d.moved = append(d.moves, len(moves)), append(d.moved, time.Now())
	slow := d.slow
	d.mu.Unlock()
	if err := clock.Rest(ctx, slow); err != nil {
		return nil, err
	}
	return d.Store.Move(ctx, from, to, moves)
}
