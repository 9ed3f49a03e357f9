package lanes_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// slow is a store whose statements take a second.
type slow struct {
	store.Store
	asked, released []int         // the sizes of the statements
	queued          [][]store.Ask // by each statement
}

func (*slow) Traits() store.Traits { return store.Traits{} }

func (s *slow) Acquire(_ context.Context, asks []store.Ask) ([]store.Answer, error) {
	s.asked = append(s.asked, len(asks))
	time.Sleep(time.Second)
	return make([]store.Answer, len(asks)), nil
}

func (s *slow) Enqueue(_ context.Context, asks []store.Ask) ([]store.Answer, error) {
	s.queued = append(s.queued, slices.Clone(asks))
	time.Sleep(time.Second)
	return make([]store.Answer, len(asks)), nil
}

func (s *slow) Release(_ context.Context, claims []store.Claim) ([]store.Verdict, error) {
	s.released = append(s.released, len(claims))
	time.Sleep(time.Second)
	return make([]store.Verdict, len(claims)), nil
}

// Many calls for one key are queued in parts, in their order, so that the key's row is not locked for all of this time.
// Proves: promise 5
func TestACrowdIsQueuedByParts(t *testing.T) {
	const calls = 1000
	synctest.Test(t, func(t *testing.T) {
		st := &slow{}
		ls := lanes.New(types.Config{BatchMax: calls, MaxWaiters: calls, StoreTimeout: time.Minute}, st,
			observe.New(slog.New(slog.DiscardHandler), nil, nil, false), readiness.New(types.Config{}, st), make(chan struct{}))
		for i := range calls {
			if err := ls.Enqueues.Submit(t.Context(), store.Ask{Attempt: store.Attempt{Key: "k"}, Limit: i}, func(store.Answer, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		ls.Enqueues.Stop(t.Context())
		last := -1
		for _, asks := range st.queued {
			if len(asks) > 250 {
				t.Errorf("%d in one statement", len(asks))
			}
			for _, ask := range asks {
				if ask.Limit != last+1 {
					t.Fatalf("call %d after call %d", ask.Limit, last)
				}
				last = ask.Limit
			}
		}
		if last != calls-1 || len(st.queued) > 6 {
			t.Errorf("%d queued by %d statements", last+1, len(st.queued))
		}
	})
}

// A key can have a thousand shared holders. A statement for each would take minutes.
func TestCallsForOneKeyShareAStatement(t *testing.T) {
	const calls = 1000
	synctest.Test(t, func(t *testing.T) {
		st := &slow{}
		ls := lanes.New(types.Config{BatchMax: calls, MaxWaiters: calls, StoreTimeout: time.Minute}, st,
			observe.New(slog.New(slog.DiscardHandler), nil, nil, false), readiness.New(types.Config{}, st), make(chan struct{}))
		for range calls {
			if err := ls.Acquires.Submit(t.Context(), store.Ask{Attempt: store.Attempt{Key: "k"}, Shared: true}, func(store.Answer, error) {}); err != nil {
				t.Fatal(err)
			}
			if err := ls.Releases.Submit(t.Context(), store.Claim{Key: "k"}, func(store.Verdict, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		ls.Acquires.Stop(t.Context())
		ls.Releases.Stop(t.Context())
		for what, sizes := range map[string][]int{"acquires": st.asked, "releases": st.released} {
			// The first goes out alone, and the others together, 50 in a statement.
			if len(sizes) > 1+calls/50 {
				t.Errorf("%d %s had %d statements", calls, what, len(sizes))
			}
		}
	})
}

// Thousands of calls for one key must not delay a call for another key until all of them are answered.
func TestAFrequentKeyDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slow{}
		ls := lanes.New(types.Config{BatchMax: 1000, MaxWaiters: 10_001, StoreTimeout: time.Minute}, st,
			observe.New(slog.New(slog.DiscardHandler), nil, nil, false), readiness.New(types.Config{}, st), make(chan struct{}))
		began := time.Now()
		soon := func(what string) {
			if d := time.Since(began); d > 2*time.Second { // the statement under way, and its own
				t.Errorf("the %s of another key took %v", what, d)
			}
		}
		acquire := func(key string, done func(store.Answer, error)) {
			if err := ls.Acquires.Submit(t.Context(), store.Ask{Attempt: store.Attempt{Key: key}, Shared: true}, done); err != nil {
				t.Fatal(err)
			}
		}
		release := func(key string, done func(store.Verdict, error)) {
			if err := ls.Releases.Submit(t.Context(), store.Claim{Key: key}, done); err != nil {
				t.Fatal(err)
			}
		}
		for range 10_000 {
			acquire("frequent", func(store.Answer, error) {})
			release("frequent", func(store.Verdict, error) {})
		}
		acquire("other", func(store.Answer, error) { soon("acquire") })
		release("other", func(store.Verdict, error) { soon("release") })
		ls.Acquires.Stop(t.Context())
		ls.Releases.Stop(t.Context())
	})
}

// joining is a store that acquires and releases with the same request.
type joining struct {
	slow
	together int
}

func (s *joining) AcquireAndRelease(_ context.Context, asks []store.Ask, claims []store.Claim) ([]store.Answer, error, []store.Verdict, error) {
	s.together++
	time.Sleep(time.Second)
	return make([]store.Answer, len(asks)), nil, make([]store.Verdict, len(claims)), nil
}

func TestAcquiresAndReleasesShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &joining{}
		ls := lanes.New(types.Config{BatchMax: 10, MaxWaiters: 10, StoreTimeout: time.Minute}, st,
			observe.New(slog.New(slog.DiscardHandler), nil, nil, false), readiness.New(types.Config{}, st), make(chan struct{}))
		for _, key := range []string{"a", "b", "c"} {
			if err := ls.Acquires.Submit(t.Context(), store.Ask{Attempt: store.Attempt{Key: key}}, func(store.Answer, error) {}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := ls.Releases.Submit(t.Context(), store.Claim{Key: key}, func(store.Verdict, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		ls.Acquires.Stop(t.Context())
		ls.Releases.Stop(t.Context())
		if len(st.asked) != 1 || len(st.released) != 0 || st.together != 1 {
			t.Errorf("%d requests to acquire, %d to release, %d for both", len(st.asked), len(st.released), st.together)
		}
	})
}

// TestTogether: how many acquires share a statement is an average over the calls, not over the statements, and follows the last ones.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slow{}
		ls := lanes.New(types.Config{BatchMax: 100, MaxWaiters: 1000, StoreTimeout: time.Minute}, st,
			observe.New(slog.New(slog.DiscardHandler), nil, nil, false), readiness.New(types.Config{}, st), make(chan struct{}))
		if n := ls.Together(); n != 1 {
			t.Errorf("before the first statement: %v", n)
		}
		asks := func(n int) { // the first one alone, and the others behind it
			for i := range n {
				ask := store.Ask{Attempt: store.Attempt{Key: time.Duration(i).String()}}
				if err := ls.Acquires.Submit(t.Context(), ask, func(store.Answer, error) {}); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					synctest.Wait()
				}
			}
			time.Sleep(time.Minute)
		}
		for range 100 {
			asks(1 + 20)
		}
		if n := ls.Together(); n < 18 || n > 20 {
			t.Errorf("20 of 21 acquires share a statement: %.1f", n)
		}
		for range 2000 {
			asks(1)
		}
		if n := ls.Together(); n > 1.1 {
			t.Errorf("each acquire has a statement of its own by now: %.1f", n)
		}
		ls.Acquires.Stop(t.Context())
	})
}
