package castest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// keptKey: the tokens of a keepable grant are reserved on the server itself, also where no clock keeps tokens apart: the floor is an hour ahead
// of it, as after a clock that was set back. A release of the grant that comes late frees nobody else's lock.
func keptKey(t *testing.T, c *client) {
	next, err := c.NextToken(c.ctx)
	c.must(err)
	ahead := next + time.Hour.Microseconds()
	c.must(c.RaiseTokens(c.ctx, ahead))
	a, b := c.engine("a"), c.engine("b")
	gets := func(e *engine, last int64) store.Answer {
		t.Helper()
		answers, err := e.Acquire(c.ctx, []store.Ask{{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: e.lease, Last: last}})
		if c.must(err); answers[0].Outcome != store.Granted || answers[0].Token < ahead {
			t.Fatalf("got %+v with tokens from %d", answers, ahead)
		}
		return answers[0]
	}
	releases := func(e *engine, token int64, want bool) {
		t.Helper()
		claim := store.Claim{Key: "k", Token: token, Lease: e.lease, Served: []store.AttemptID{uuid.New()}}
		verdicts, err := e.Release(c.ctx, []store.Claim{claim})
		if c.must(err); (verdicts[0].Status == store.Holds) != want {
			t.Fatalf("the release of %d is answered %d", token, verdicts[0].Status)
		}
	}
	first := gets(a, 0)
	releases(a, first.Token, true)
	kept := gets(a, first.Token)
	last := kept.Token + store.TokensPerGrant - 1
	if !kept.Keepable {
		t.Fatalf("not keepable: %+v", kept)
	}
	releases(a, last, true)
	theirs := gets(b, 0)
	if theirs.Token <= last {
		t.Errorf("token %d after %d", theirs.Token, last)
	}
	for n := int64(0); n < store.TokensPerGrant; n += 15 {
		releases(a, kept.Token+n, false)
	}
	releases(b, theirs.Token, true)
}

// engine is a started engine with a lease.
type engine struct {
	*cas.Store
	lease store.LeaseID
}

func (c *client) engine(instance string) *engine {
	c.t.Helper()
	space := cas.NewSpace(started(c.t, c.server.Connect()), cas.Config{})
	e := &engine{space.View(store.Identity{Namespace: "kept", Instance: instance}).(*cas.Store), uuid.New()}
	c.t.Cleanup(e.Stop)
	c.must(e.Start(c.ctx, nil))
	await.Until(c.t, "the engine is ready", func() bool { return e.Ready() == nil })
	c.must(e.OpenLeases(c.ctx, []store.NewLease{{ID: e.lease, TTL: ttl}}))
	return e
}
