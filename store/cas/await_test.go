package cas_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// polling is a backend that looks for letters, and whose rows another session may keep locked.
type polling struct {
	*fake.Backend
	mu                   sync.Mutex
	waits, keeps, leases bool
	locked               atomic.Bool
}

func (p *polling) Expect(waits, keeps, leases bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits, p.keeps, p.leases = waits, keeps, leases
}

func (p *polling) expects(waits, leases bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waits == waits && p.leases == leases
}

func (p *polling) expectsRecalls(keeps bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keeps == keeps
}

func (p *polling) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	if !p.locked.Load() {
		return p.Backend.Swap(ctx, swaps)
	}
	done := make([]cas.Swapped, len(swaps))
	for i, w := range swaps {
		records, _, err := p.Load(ctx, []string{w.Key}, nil)
		if err != nil {
			return nil, err
		}
		done[i] = cas.Swapped{Later: true, Record: records[0]}
	}
	return done, nil
}

func startPolling(t *testing.T, server *fake.Server, name string) (*cas.Store, *polling, store.LeaseID) {
	t.Helper()
	p := &polling{Backend: server.Open(name, fake.Faults{})}
	s := cas.NewSpace(fake.Only(p), cas.Config{}).View(store.Identity{Namespace: "n", Instance: name}).(*cas.Store)
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	lease := uuid.New()
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	return s, p, lease
}

// A backend that looks for letters learns when somebody waits or watches here, and when a lease is open.
func TestLettersAreExpectedWhileSomebodyWaits(t *testing.T) {
	server := fake.NewServer()
	a, _, underA := startPolling(t, server, "a")
	b, p, underB := startPolling(t, server, "b")
	if !p.expects(false, true) {
		t.Error("with a lease alone")
	}
	get := func(s *cas.Store, lease store.LeaseID, key string) (store.Ask, store.Answer) {
		t.Helper()
		ask := store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
		answers, err := s.Enqueue(t.Context(), []store.Ask{ask})
		if err != nil {
			t.Fatal(err)
		}
		return ask, answers[0]
	}
	_, held := get(a, underA, "k")
	get(b, underB, "k")
	second, _ := get(b, underB, "k")
	if !p.expects(true, true) {
		t.Error("with waiters")
	}
	if _, err := a.Release(t.Context(), []store.Claim{{Key: "k", Token: held.Token, Lease: underA}}); err != nil {
		t.Fatal(err)
	}
	if !p.expects(true, true) {
		t.Error("with one of two waiters")
	}
	if _, err := b.Cancel(t.Context(), []store.Attempt{second.Attempt}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "nobody waits", func() bool { return p.expects(false, true) })
	_, held = get(a, underA, "other")
	get(b, underB, "other")
	if _, err := a.Release(t.Context(), []store.Claim{{Key: "other", Token: held.Token, Lease: underA}}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the letter of the last waiter has come", func() bool { return p.expects(false, true) })
	if err := b.Watch(t.Context(), []string{"k"}, underB); err != nil || !p.expects(true, true) {
		t.Errorf("with a watch: %v", err)
	}
	if err := b.Unwatch(t.Context(), []string{"k"}); err != nil || !p.expects(false, true) {
		t.Errorf("without: %v", err)
	}
	if err := b.Revoke(t.Context(), []store.LeaseID{underB}); err != nil || !p.expects(false, false) {
		t.Errorf("without a lease: %v", err)
	}
}

// Only a backend that looks for letters must be told that keys are kept.
func TestWhoHearsAlways(t *testing.T) {
	server := fake.NewServer()
	a, _, _ := startPolling(t, server, "a")
	b := cas.NewSpace(fake.Only(server.Open("b", fake.Faults{})), cas.Config{}).View(store.Identity{Namespace: "n", Instance: "b"})
	if a.Traits().HearsAlways || !b.Traits().HearsAlways {
		t.Errorf("one that looks: %t, one that is told: %t", a.Traits().HearsAlways, b.Traits().HearsAlways)
	}
}

// While another session keeps a record locked, its items are answered so, and nothing changes.
func TestLockedRecords(t *testing.T) {
	s, p, lease := startPolling(t, fake.NewServer(), "a")
	ask := store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: lease}
	p.locked.Store(true)
	answers, err := s.Acquire(t.Context(), []store.Ask{ask})
	if err != nil || answers[0].Outcome != store.RowLocked {
		t.Errorf("an acquire: %+v, %v", answers, err)
	}
	outcomes, err := s.Withdraw(t.Context(), []store.Attempt{ask.Attempt})
	if err != nil || outcomes[0] != store.RowLocked {
		t.Errorf("a withdrawal: %v, %v", outcomes, err)
	}
	if err := s.Watch(t.Context(), []string{"k"}, lease); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a watch: %v", err)
	}
	p.locked.Store(false)
	answers, err = s.Acquire(t.Context(), []store.Ask{ask})
	if err != nil || answers[0].Outcome != store.Granted {
		t.Fatalf("afterwards: %+v, %v", answers, err)
	}
	p.locked.Store(true)
	verdicts, err := s.Release(t.Context(), []store.Claim{{Key: "k", Token: answers[0].Token, Lease: lease}})
	if err != nil || verdicts[0].Status != store.ClaimRowLocked {
		t.Errorf("a release: %+v, %v", verdicts, err)
	}
	p.locked.Store(false)
}

// A backend that looks for letters does so often while keys are kept here, so that a recall is read soon.
func TestLettersAreExpectedWhileKeysAreKept(t *testing.T) {
	s, p, _ := startPolling(t, fake.NewServer(), "a")
	for _, on := range []bool{true, true, false, true, false} {
		if s.Keeping(on); !p.expects(false, true) || !p.expectsRecalls(on) {
			t.Errorf("keeping %v", on)
		}
	}
}

// Keys are kept only while letters arrive.
func TestTheTraitHears(t *testing.T) {
	var deaf atomic.Bool
	s := cas.NewSpace(fake.Only(fake.NewServer().Open("a", fake.Faults{Deaf: deaf.Load})), cas.Config{}).View(store.Identity{Namespace: "n", Instance: "a"})
	t.Cleanup(s.Stop)
	hears := func(want bool, when string) {
		t.Helper()
		if s.Traits().Hears != want {
			t.Errorf("%s: hears %v", when, !want)
		}
	}
	hears(false, "before the start")
	if err := s.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	hears(true, "started")
	deaf.Store(true)
	hears(false, "deaf")
	deaf.Store(false)
	s.Stop()
	hears(false, "stopped")
}
