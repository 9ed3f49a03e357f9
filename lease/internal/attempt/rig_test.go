package attempt

import (
	"context"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/roomtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	leaseTTL     = roomtest.LeaseTTL
	storeTimeout = roomtest.StoreTimeout
)

// bubble runs a test in virtual time, once with lanes that batch and once with inline ones.
func bubble(t *testing.T, test func(t *testing.T, inline bool)) {
	t.Helper()
	for name, inline := range map[string]bool{"batched": false, "inline": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, inline) })
		})
	}
}

// rig is an acquirer on a store that records. Nothing renews its leases, so each has one deadline. Its helpers: attempt, sessionFor and
// start; checks: must, nothingLeft; the store: roomtest.Store.
type rig struct {
	*roomtest.Floor
	t  *testing.T
	st *roomtest.Store
	aq *Acquirer
}

func newRig(t *testing.T, inline bool) *rig {
	t.Helper()
	r := &rig{t: t, st: roomtest.NewStore(inline)}
	r.Floor = roomtest.New(t, r.st, r)
	var err error
	r.aq, err = New(r.Ctx, Config{
		Config: r.Config, Observer: r.Observer, Store: r.st, Lanes: r.Lanes, HeldCache: r.HeldCache, Leases: r.Leases,
		Needs: r.Needs, Background: r.Background, Draining: r.Draining,
	})
	r.must(err)
	return r
}

// The rig tells the users of its leases: see [heartbeat.Users].

func (r *rig) LeaseLost(l *heartbeat.Lease, reason types.LostReason) (locks, waits int) {
	for _, h := range r.aq.Holdings().On(l) {
		h.LoseUnder(l, reason)
	}
	return 0, r.aq.LoseWaitsUnder(l)
}

func (r *rig) LeaseRetired(*heartbeat.Lease) {}
func (r *rig) SignalsWait()                  {}
func (r *rig) Verify(context.Context, []*heartbeat.Lease, store.History, func(*heartbeat.Lease)) error {
	return nil
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// attempt makes an attempt of a call for one lock.
func (r *rig) attempt(req *types.Request) (*Call, *Attempt) {
	r.t.Helper()
	c := r.aq.NewCall(context.Background(), r.sessionFor(req), req)
	if c.S != nil {
		r.must(c.S.Admit(&c.Admission))
	}
	var came *Arrival
	if req.Wait != 0 {
		came = r.aq.arrivals.join(req)
	}
	b, err := c.NewAttempt(came)
	r.must(err)
	return c, b
}

// nothingLeft checks that no lock, waiter or remembered state is left, after all that is repeated.
func (r *rig) nothingLeft() {
	r.t.Helper()
	synctest.Wait()
	held, err := r.st.List(context.Background(), store.Query{Limit: 10})
	r.must(err)
	for _, l := range held {
		r.t.Errorf("%q is held, and %d wait", l.Key, l.QueueLength)
	}
	for what, n := range r.aq.Remembered() {
		if n != 0 {
			r.t.Errorf("%d %s are remembered", n, what)
		}
	}
	for _, l := range r.Leases.All() {
		if n := l.Users(); n != 0 {
			r.t.Errorf("the lease has %d users", n)
		}
	}
}

// sessionFor opens a session for a request, unless it is bind:ttl.
func (r *rig) sessionFor(req *types.Request) *holdings.Session {
	r.t.Helper()
	if req.Bind == types.BindTTL {
		return nil
	}
	s, err := r.aq.Holdings().Open(types.SessionOptions{})
	r.must(err)
	return s
}

// start starts an attempt, and returns when it waits for something.
func (r *rig) start(b *Attempt) {
	b.Start(context.Background(), r.Clock.Now())
	synctest.Wait()
}
