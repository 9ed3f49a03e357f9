package heartbeat

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/beat"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// times are when the managers of a process have renewed.
type times struct {
	mu  sync.Mutex
	all []time.Time
}

// timed is a store that notes when it renews.
type timed struct {
	*memory.Store
	times *times
}

func (s timed) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	s.times.mu.Lock()
	s.times.all = append(s.times.all, time.Now())
	s.times.mu.Unlock()
	return s.Store.Renew(ctx, leases)
}

// since returns how many renewals there were since then, and at how many different times.
func (s *times) since(t time.Time) (renewals, moments int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := slices.DeleteFunc(slices.Clone(s.all), func(at time.Time) bool { return at.Before(t) })
	return len(found), len(slices.Compact(found))
}

// Managers that share a beat renew at the same moments, whenever their leases were opened. Those that do not share one keep their own times.
func TestManagersRenewTogether(t *testing.T) {
	const managers, rounds = 20, 10
	for name, shared := range map[string]*beat.Beat{"with a beat": {}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := &times{}
				space := memory.NewSpace()
				for i := range managers {
					st := timed{space.Open(store.Identity{Namespace: "n", Instance: string(rune('a' + i)), Pod: "p"}), at}
					if err := st.Start(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
					ls := member(t, st, shared)
					l := ls.Pin(context.Background(), usual)
					<-l.Opened()
					time.Sleep(every / managers)
				}
				sleep(every) // they come together
				began := time.Now()
				sleep(rounds * every)
				renewals, moments := at.since(began)
				if renewals < managers*rounds {
					t.Errorf("%d renewals, want at least %d", renewals, managers*rounds)
				}
				if together := moments <= rounds*10/9+1; together != (shared != nil) {
					t.Errorf("%d renewals of %d managers came at %d moments", renewals, managers, moments)
				}
			})
		})
	}
}

// member starts the leases of one manager.
func member(t *testing.T, st timed, shared *beat.Beat) *Leases {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cfg := types.Config{StoreTimeout: every, BatchMax: 10, MaxWaiters: 10}
	obs := observe.New(slog.New(slog.DiscardHandler), nil, nil, false)
	ls := lanes.New(cfg, st, obs, readiness.New(cfg, st), nil)
	run := background.New(ctx, clocktest.Bubble{})
	leases := New(ctx, Config{
		TTL: usual, RenewInterval: every, StoreTimeout: every,
		Store: st, Lanes: ls, Clock: clocktest.Bubble{}, Log: slog.New(slog.DiscardHandler), Observer: obs, Background: run,
		Beat: shared, Users: &bench{},
	})
	run.Spawn(func() { leases.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Join()
		ls.Openings.Stop(context.Background())
		ls.Revocations.Stop(context.Background())
		leases.RevokeAll(context.Background())
	})
	return leases
}

// A lease with a short TTL in one manager does not make another one renew its long ones more often.
func TestAShortTTLBeatsForShortOnesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space, shared := memory.NewSpace(), &beat.Beat{}
		hasty, calm := &times{}, &times{}
		for at, ttl := range map[*times]time.Duration{hasty: time.Second, calm: usual} {
			st := timed{space.Open(store.Identity{Namespace: "n", Instance: ttl.String(), Pod: "p"}), at}
			if err := st.Start(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			<-member(t, st, shared).Pin(context.Background(), ttl).Opened()
		}
		began := time.Now()
		sleep(20 * every)
		often, _ := hasty.since(began)
		seldom, _ := calm.since(began)
		if often < 200 || seldom > 20*10/8 {
			t.Errorf("%d renewals of the short lease, %d of the long one in %d intervals", often, seldom, 20)
		}
	})
}
