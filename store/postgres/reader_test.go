package postgres_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// reading is an instance of the namespace n with the role that may only read.
func reading(t *testing.T, url string) *postgres.Store {
	t.Helper()
	return startWith(t, postgres.Config{
		URL:    pgtest.As(url, pgroles.Reader),
		Listen: postgres.ListenAlways, // in vain: it is ready, and does not try
	}, store.Identity{Namespace: "n", Instance: "reader", Pod: "r"})
}

// crowded makes locks of all kinds with their waiters, and returns their keys.
func crowded(t *testing.T, s *postgres.Store) (keys []string) {
	t.Helper()
	lease := openLease(t, s, time.Hour)
	asking := func(key string, change func(*store.Ask)) store.Ask {
		a := askFor(key, lease)
		a.Session, a.Owner, a.Traceparent, a.Data = "s", "o", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", []byte(`{"secret":1}`)
		change(&a)
		return a
	}
	ask := func(key string, change func(*store.Ask)) store.Answer {
		return want(t, acquire(t, s, asking(key, change)), store.Granted)
	}
	wait := func(key string, change func(*store.Ask)) {
		want(t, enqueue(t, s, asking(key, change)), store.Queued)
	}
	none := func(*store.Ask) {}
	share := func(limit int) func(*store.Ask) { return func(a *store.Ask) { a.Shared, a.Limit = true, limit } }
	ask("held", none)
	ask("cron", func(a *store.Ask) { a.TTL = time.Hour })
	ask("kept", func(a *store.Ask) { a.MinHold = time.Hour })
	release(t, s, store.Claim{Key: "kept", Token: ask("released", none).Token, Lease: lease})
	for range 3 {
		ask("semaphore", share(4))
		ask("readers", share(0))
	}
	ask("semaphore/cron", func(a *store.Ask) { share(2)(a); a.TTL = time.Hour })
	wait("readers", none)
	wait("readers", share(0))
	wait("held", none)
	wait("held", share(5))
	reason := "deploy"
	for _, key := range []string{"held", "semaphore"} {
		if _, err := s.Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: key, Reason: &reason}}); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"held", "cron", "kept", "semaphore", "readers", "semaphore/cron", "free"}
}

// unsecret is what a role that may only read sees of a lock. Times that pass are left out, if they are near.
func unsecret(t *testing.T, l, like store.Lock) store.Lock {
	t.Helper()
	near := func(a, b time.Duration) {
		if a-b > time.Minute || b-a > time.Minute {
			t.Errorf("%s: %s and %s", l.Key, a, b)
		}
	}
	hide := func(h *store.Holder, like store.Holder) {
		near(h.HeldFor, like.HeldFor)
		near(h.ExpiresIn, like.ExpiresIn)
		h.Data, h.HeldFor, h.ExpiresIn = nil, 0, 0
	}
	near(l.NextEnd, like.NextEnd)
	l.Token, l.NextEnd = 0, 0
	hide(&l.Holder, like.Holder)
	shares := make([]store.Share, len(l.Holders))
	for i, share := range l.Holders {
		share.Token = 0
		hide(&share.Holder, like.Holders[i].Holder)
		shares[i] = share
	}
	if l.Holders != nil {
		l.Holders = shares
	}
	return l
}

// A role that may only read sees the same locks, queues and counts as a sidecar, without tokens and data.
// Proves: threat reading role
func TestReaderSeesWhatSidecarsSee(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	keys := crowded(t, s)
	r := reading(t, url)
	same := func(what string, seen, other []store.Lock, err error) {
		t.Helper()
		if err != nil || len(seen) != len(other) || len(seen) == 0 {
			t.Fatalf("%s: %d and %d locks, %v", what, len(seen), len(other), err)
		}
		for i := range seen {
			if seen[i].Token != 0 || seen[i].Holder.Data != nil || len(seen[i].Holders) != len(other[i].Holders) {
				t.Fatalf("%s: %+v", what, seen[i])
			}
			if got, want := unsecret(t, seen[i], other[i]), unsecret(t, other[i], seen[i]); !reflect.DeepEqual(got, want) {
				t.Errorf("%s:\n%+v, want\n%+v", what, got, want)
			}
		}
	}
	for _, q := range []store.Query{
		{Limit: 100},
		{Limit: 2},
		{Limit: 100, Prefix: "semaphore"},
		{Limit: 100, After: "held"},
		{Limit: 100, Instance: "i"},
	} {
		other, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := r.List(t.Context(), q)
		same("list", seen, other, err)
	}
	if seen, err := r.List(t.Context(), store.Query{Limit: 100, Instance: "nobody"}); err != nil || len(seen) > 0 {
		t.Errorf("%+v, %v", seen, err)
	}
	other, err := s.Get(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := r.Get(t.Context(), keys)
	same("get", seen, other, err)

	calls, err := r.Waiting(t.Context(), store.WaitQuery{Limit: 100})
	if err != nil || len(calls) != 4 || calls[1].Key != "held" || calls[1].Position != 2 || calls[1].Limit != 5 || calls[3].Pod != "p" {
		t.Errorf("%+v, %v", calls, err)
	}
}

// A role that may only read sees the locks and the waiters of each namespace, and only its own unless another one is named. The role of a
// sidecar of apps sees no other.
//
// Proves: threat other namespace
func TestReaderSeesOtherNamespaces(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	other := startStore(t, url, store.Identity{Namespace: "other", Instance: "i", Pod: "p"})
	lease := openLease(t, other, time.Hour)
	want(t, acquire(t, other, askFor("theirs", lease)), store.Granted)
	want(t, enqueue(t, other, askFor("theirs", lease)), store.Queued)
	r := reading(t, url)
	for namespace, held := range map[string]int{"other": 1, "": 0, "n": 0, "none": 0} {
		locks, err := r.List(t.Context(), store.Query{Namespace: namespace, Limit: 10})
		calls, failed := r.Waiting(t.Context(), store.WaitQuery{Namespace: namespace, Limit: 10})
		if err != nil || failed != nil || len(locks) != held || len(calls) != held {
			t.Errorf("%q: %+v, %v; %+v, %v", namespace, locks, err, calls, failed)
		}
		for _, l := range locks {
			if l.Key != "theirs" || l.Token != 0 || l.Holder.Pod != "p" {
				t.Errorf("%+v", l)
			}
		}
	}
	if err := r.MayShowNamespaces(); err != nil {
		t.Error(err)
	}
	for _, namespace := range []string{"n", "none"} {
		_, listed := other.List(t.Context(), store.Query{Namespace: namespace, Limit: 10})
		_, waited := other.Waiting(t.Context(), store.WaitQuery{Namespace: namespace, Limit: 10})
		for _, err := range []error{listed, waited, other.MayShowNamespaces()} {
			if _, refused := errors.AsType[*store.UnsupportedError](err); !refused {
				t.Errorf("%q: %v", namespace, err)
			}
		}
	}
}

// A role that may only read is refused each change, and told why. Nothing of it stays, so nothing is to be reaped.
// Proves: threat reading role
func TestReaderChangesNothing(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	crowded(t, s)
	r := reading(t, url)
	ctx, lease, attempt := t.Context(), uuid.New(), store.Attempt{Key: "new", ID: uuid.New()}
	for what, change := range map[string]func() error{
		"open leases": func() error { return r.OpenLeases(ctx, []store.NewLease{{ID: lease, TTL: time.Minute}}) },
		"renew":       func() error { _, err := r.Renew(ctx, []store.LeaseID{lease}); return err },
		"revoke":      func() error { return r.Revoke(ctx, []store.LeaseID{lease}) },
		"acquire": func() error {
			_, err := r.Acquire(ctx, []store.Ask{{Attempt: attempt, TTL: time.Minute}})
			return err
		},
		"enqueue": func() error {
			_, err := r.Enqueue(ctx, []store.Ask{{Attempt: attempt, Lease: lease}})
			return err
		},
		"withdraw": func() error { _, err := r.Withdraw(ctx, []store.Attempt{attempt}); return err },
		"release":  func() error { _, err := r.Release(ctx, []store.Claim{{Key: "held", Token: 1}}); return err },
		"amend": func() error {
			_, err := r.Amend(ctx, []store.Change{{Key: "held", Token: 1}})
			return err
		},
		"signal": func() error { _, err := r.Signal(ctx, []store.Signal{{Kind: store.Break, Key: "held"}}); return err },
		"watch":  func() error { return r.Watch(ctx, []string{"held"}, lease) },
		"elect":  func() error { _, err := r.Elect(ctx, time.Minute); return err },
		"sweep":  func() error { return r.Sweep(ctx) },
	} {
		if why, ok := errors.AsType[*store.UnsupportedError](change()); !ok || why.Why == "" {
			t.Errorf("%s: %v", what, why)
		}
	}
	if err := r.ReapInstance(ctx, "i"); err != nil {
		t.Error(err)
	}
	if locks, err := s.List(ctx, store.Query{Limit: 100}); err != nil || len(locks) != 7 {
		t.Errorf("%d locks, %v", len(locks), err)
	}
}
