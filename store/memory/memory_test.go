package memory_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// modelChecks is the number of runs of TestModel without -rapid.checks. Rare states, such as a hold
// behind a hold, need many runs.
const modelChecks = "2000"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", modelChecks); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// backend opens instances on one space.
type backend struct{ space *memory.Space }

func (b backend) Open(id store.Identity) store.Store { return b.space.Open(id) }

// Proves: A6
func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Backend { return backend{memory.NewSpace()} })
}

// An engine may lack all capabilities. The core must keep its promises without them.
func TestConformanceOfTheCore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Backend { return core{backend{memory.NewSpace()}} })
}

// core opens instances without capabilities.
type core struct{ backend }

func (c core) Open(id store.Identity) store.Store { return struct{ store.Store }{c.backend.Open(id)} }

// Age implements [storetest.Aging].
func (backend) Age(d time.Duration) { time.Sleep(d) } // virtual

func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The struct hides *testing.T from rapid, which would ask for its deadline. Virtual time
		// has no deadline.
		storetest.RunModel(struct{ rapid.TB }{t}, 100*time.Millisecond, func() storetest.Aging { return backend{memory.NewSpace()} })
	})
}

// acquire gets a key that must be free.
func acquire(t *testing.T, s *memory.Store, ask store.Ask) store.Answer {
	t.Helper()
	answers, err := s.Acquire(t.Context(), []store.Ask{ask})
	if err != nil || answers[0].Outcome != store.Granted {
		t.Fatalf("acquire: %+v, %v", answers, err)
	}
	return answers[0]
}

func enqueue(t *testing.T, s *memory.Store, ask store.Ask) {
	t.Helper()
	answers, err := s.Enqueue(t.Context(), []store.Ask{ask})
	if err != nil || answers[0].Outcome != store.Queued {
		t.Fatalf("enqueue: %+v, %v", answers, err)
	}
}

func release(t *testing.T, s *memory.Store, ask store.Ask, token int64) store.ClaimStatus {
	t.Helper()
	verdicts, err := s.Release(t.Context(), []store.Claim{{Key: ask.Key, Token: token, Lease: ask.Lease}})
	if err != nil {
		t.Fatal(err)
	}
	return verdicts[0].Status
}

// Proves: promise 3
func TestTokensGrowThroughRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last int64
		for restart := range 3 {
			s, lease := open(t, memory.NewSpace(), "a")
			for i := range 1000 {
				k := ask(fmt.Sprint(i), lease)
				token := acquire(t, s, k).Token
				if token <= last || token >= 1<<53 {
					t.Fatalf("restart %d: token %d after %d", restart, token, last)
				}
				last = token
			}
			time.Sleep(2 * time.Millisecond) // virtual: the life of the process
		}
	})
}

func TestLeaseEndsExactlyAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := open(t, memory.NewSpace(), "a")
		ctx := t.Context()
		k := ask("k", store.LeaseID{})
		k.TTL = time.Minute
		token := acquire(t, s, k).Token
		denied := func() bool {
			answers, err := s.Acquire(ctx, []store.Ask{ask("k", lease)})
			if err != nil {
				t.Fatal(err)
			}
			return answers[0].Outcome == store.Held
		}
		time.Sleep(time.Minute - time.Nanosecond) // virtual, as all here
		if !denied() {
			t.Error("taken before the end of its TTL")
		}
		time.Sleep(time.Nanosecond)
		if release(t, s, k, token) != store.Expired {
			t.Error("not expired at the end of its TTL")
		}
		if denied() {
			t.Error("not free at the end of its TTL")
		}
	})
}

func TestReleasedTokensAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := open(t, memory.NewSpace(), "a")
		released, expired := ask("released", lease), ask("expired", store.LeaseID{})
		expired.TTL = time.Second
		token := acquire(t, s, released).Token
		other := acquire(t, s, expired).Token
		release(t, s, released, token)
		for range 60 {
			if got := release(t, s, released, token); got != store.Released {
				t.Fatalf("status %d before forgetAfter", got)
			}
			time.Sleep(4 * time.Second) // virtual
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := release(t, s, expired, other); got != store.Expired {
				t.Fatalf("status %d before forgetAfter", got)
			}
		}
		time.Sleep(2 * time.Minute)
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if release(t, s, released, token) != store.UnknownToken || release(t, s, expired, other) != store.UnknownToken {
			t.Error("the token was never forgotten")
		}
		if again := acquire(t, s, released).Token; again <= other {
			t.Errorf("token %d after %d", again, other)
		}
	})
}

// The receiver of news may call the store, because no mutex is held.
func TestNewsMayCallTheStore(t *testing.T) {
	s, lease := open(t, memory.NewSpace(), "a")
	served := 0
	s.OnNews(func(n store.News) {
		served++
		k := store.Ask{Attempt: n.Attempt, Lease: n.Lease}
		if got := release(t, s, k, n.Answer.Token); got != store.Holds {
			t.Errorf("claim status %d of the lock in the news", got)
		}
	})
	k := ask("k", lease)
	token := acquire(t, s, k).Token
	for range 50 {
		enqueue(t, s, ask("k", lease))
	}
	release(t, s, k, token)
	if served != 50 {
		t.Errorf("%d of 50 served", served)
	}
}

func TestStoppedInstanceReceivesNoNews(t *testing.T) {
	space := memory.NewSpace()
	a, lease := open(t, space, "a")
	b, waiting := open(t, space, "b")
	b.OnNews(func(n store.News) { t.Errorf("news %+v", n) })
	k := ask("k", lease)
	token := acquire(t, a, k).Token
	enqueue(t, b, ask("k", waiting))
	b.Stop()
	release(t, a, k, token)
}

// Leases end while other goroutines use them. Every waiter whose lease is alive must be served.
func TestStormOfExpiringLeases(t *testing.T) {
	space := memory.NewSpace()
	var wg sync.WaitGroup
	for w := range 8 {
		s, _ := open(t, space, fmt.Sprint(w))
		wg.Go(func() {
			for i := range 60 {
				if err := abandon(t.Context(), s, (w+i)%3, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s, lease := open(t, space, "last")
	time.Sleep(5 * time.Millisecond) // all the storm's leases have ended
	for key := range 3 {
		acquire(t, s, ask(fmt.Sprint(key), lease))
	}
}

// abandon acquires a lock under a short or a long lease, and leaves it in one of several ways.
func abandon(ctx context.Context, s *memory.Store, key, how int) error {
	ttl := time.Millisecond
	if how%2 == 0 {
		ttl = time.Minute
	}
	lease := uuid.New()
	if err := s.OpenLeases(ctx, []store.NewLease{{ID: lease, TTL: ttl}}); err != nil {
		return err
	}
	k := ask(fmt.Sprint(key), lease)
	answers, err := s.Enqueue(ctx, []store.Ask{k})
	for limit := time.Now().Add(10 * time.Second); err == nil && answers[0].Outcome == store.Queued; {
		if time.Now().After(limit) {
			return fmt.Errorf("never served: %+v", answers[0])
		}
		time.Sleep(50 * time.Microsecond) // between two polls
		answers, err = s.Check(ctx, []store.Attempt{k.Attempt})
	}
	if err != nil {
		return err
	}
	if ttl == time.Minute && answers[0].Outcome != store.Granted {
		return fmt.Errorf("outcome %d under a living lease", answers[0].Outcome)
	}
	switch {
	case ttl != time.Minute:
		return nil // the lease expires
	case how%4 == 0:
		return s.Revoke(ctx, []store.LeaseID{lease})
	default:
		_, err := s.Release(ctx, []store.Claim{{Key: k.Key, Token: answers[0].Token, Lease: lease}})
		return err
	}
}
