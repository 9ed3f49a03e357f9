package heartbeat

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is the leases of a sidecar, on a store that can fail over.
type bench struct {
	*memory.Store
	t      *testing.T
	leases *Leases
	run    *background.Runner
	cancel context.CancelFunc

	mu       sync.Mutex
	history  store.History
	openedIn map[store.LeaseID]store.History
	renewed  int
	unheard  bool        // renewals fail
	silent   atomic.Bool // renewals are not answered
	log      logtest.Log
	lost     []types.LostReason
	verified []store.LeaseID
	retired  []*Lease
}

func (b *bench) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range leases {
		b.openedIn[l.ID] = b.history
	}
	return b.Store.OpenLeases(ctx, leases)
}

func (b *bench) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if b.silent.Load() {
		<-ctx.Done()
		return store.Renewal{}, &store.Error{Op: "Renew", Err: ctx.Err(), Unknown: true}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unheard {
		return store.Renewal{}, &store.Error{Op: "Renew", Err: context.DeadlineExceeded, Unknown: true}
	}
	b.renewed++
	r, err := b.Store.Renew(ctx, leases)
	r.History = b.history
	for _, id := range r.Renewed {
		if b.openedIn[id] != b.history {
			r.Reconcile = append(r.Reconcile, id)
		}
	}
	return r, err
}

func (b *bench) LeaseLost(_ *Lease, reason types.LostReason) (locks, waits int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = append(b.lost, reason)
	return 0, 0
}

func (b *bench) LeaseRetired(l *Lease) { b.retired = append(b.retired, l) }

func (b *bench) SignalsWait() {}

func (b *bench) Verify(_ context.Context, leases []*Lease, _ store.History, trusted func(*Lease)) error {
	for _, l := range leases {
		b.verified = append(b.verified, l.ID())
		trusted(l)
	}
	return nil
}

const usual, every = 15 * time.Second, 5 * time.Second

// inBubble runs a test with leases, and stops them.
func inBubble(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		st := memory.NewSpace().Open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
		b := &bench{Store: st, t: t, run: background.New(ctx, clocktest.Bubble{}), cancel: cancel, openedIn: map[store.LeaseID]store.History{}}
		cfg := types.Config{StoreTimeout: every, BatchMax: 10, MaxWaiters: 10}
		obs := observe.New(slog.New(slog.DiscardHandler), nil, nil, false)
		ls := lanes.New(cfg, b, obs, readiness.New(cfg, b), nil)
		b.leases = New(ctx, Config{
			TTL: usual, RenewInterval: every, StoreTimeout: every,
			Store: b, Lanes: ls, Clock: clocktest.Bubble{}, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Observer: obs, Background: b.run,
			Users: b,
		})
		if err := st.Start(ctx, func(store.News) {}); err != nil {
			t.Fatal(err)
		}
		b.run.Spawn(func() { b.leases.Run(ctx) })
		test(b)
		cancel()
		b.run.Join()
		ls.Openings.Stop(context.Background())
		ls.Revocations.Stop(context.Background())
		b.leases.RevokeAll(context.Background())
		if !b.leases.LeftNothing() || len(b.leases.All()) > 0 {
			t.Error("leases are left")
		}
		st.Stop()
	})
}

// pin returns a lease that is open and alive.
func (b *bench) pin(ttl time.Duration) *Lease {
	b.t.Helper()
	l := b.leases.Pin(context.Background(), ttl)
	<-l.Opened()
	if l.Err() != nil || !b.alive(l) {
		b.t.Fatalf("not open: %v", l.Err())
	}
	return l
}

func (b *bench) alive(l *Lease) bool { return l.Alive(clock.Read(clocktest.Bubble{})) }

// sleep lets all happen that is due until then.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestStepsOfTTLs: locks with many TTLs share few leases, none of which lasts more than twice as long as a lock needs.
func TestStepsOfTTLs(t *testing.T) {
	leases := map[time.Duration]bool{}
	for ttl := 500 * time.Millisecond; ttl <= 24*time.Hour; ttl += ttl/100 + time.Millisecond {
		leases[stepOf(ttl, usual)] = true
	}
	if len(leases) > 22 {
		t.Errorf("%d leases for locks of all TTLs, want one for each step", len(leases))
	}
	for ttl := 500 * time.Millisecond; ttl < 48*time.Hour; ttl += ttl/7 + time.Millisecond {
		for _, configured := range []time.Duration{time.Second, 17 * time.Second, time.Hour} {
			step := stepOf(ttl, configured)
			if step < ttl || step > 2*ttl || stepOf(step, configured) != step {
				t.Errorf("%s beside %s: %s, then %s", ttl, configured, step, stepOf(step, configured))
			}
		}
	}
}

func TestLeaseIsRenewedWhileItHasUsers(t *testing.T) {
	inBubble(t, func(b *bench) {
		l := b.pin(usual)
		if again := b.pin(usual - time.Second); again != l || l.Users() != 2 {
			b.t.Errorf("another lease, or %d users", l.Users())
		}
		l.Unpin()
		sleep(time.Minute)
		if n := b.renewed; !b.alive(l) || n < 12 || n > 14 || !slices.Equal(b.leases.InUse(), []store.LeaseID{l.ID()}) {
			b.t.Errorf("renewed %d times in a minute, in use: %v", n, b.leases.InUse())
		}
		l.Unpin()
		sleep(3 * every)
		if len(b.leases.All()) > 0 || b.leases.Get(usual) != nil || len(b.lost) > 0 {
			b.t.Errorf("not closed, or lost: %v", b.lost)
		}
	})
}

func TestLeaseIsLostOnce(t *testing.T) {
	for name, end := range map[string]func(b *bench, l *Lease){
		"renewals fail": func(b *bench, _ *Lease) {
			b.mu.Lock()
			b.unheard = true
			b.mu.Unlock()
			sleep(usual)
		},
		"declared lost": func(b *bench, l *Lease) {
			b.leases.Lose(l, types.LostStore)
			b.leases.Lose(l, types.LostExpired)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				l := b.pin(usual)
				end(b, l)
				synctest.Wait()
				if b.alive(l) || !l.Lost() || !slices.Equal(b.lost, []types.LostReason{types.LostStore}) {
					b.t.Errorf("lost %v", b.lost)
				}
				if fresh := b.pin(usual); fresh == l {
					b.t.Error("a lost lease is pinned")
				}
			})
		})
	}
}

// The log says whose time was over when a renewal was not answered: the store's, or that of the leases.
func TestARenewalWithoutAnAnswerSaysWhatWasOver(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.pin(usual)
		b.silent.Store(true)
		sleep(usual)
		for _, want := range []string{
			`error="the store has not answered for 5s: store: renewing leases: `,
			`, and the last deadline of these leases is over: store: renewing leases: `,
		} {
			if log := b.log.String(); strings.Count(log, want) != 1 {
				b.t.Errorf("not once: %s\n%s", want, log)
			}
		}
	})
}

// A lease whose time is not over ends in the store only if the store loses it, whatever became of the lease to which its locks are being moved.
func TestALeaseThatTheStoreDoesNotKnow(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		moved bool
		want  types.LostReason
	}{
		"before its deadline": {0, false, types.LostStore},
		"during a move":       {0, true, types.LostStore},
		"after its deadline":  {usual, false, types.LostExpired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				l := b.pin(usual)
				b.cancel() // so that nothing but this test finds it past its deadline
				synctest.Wait()
				if test.moved {
					l.MoveTo(newLease(usual)) // which is not open
				}
				time.Sleep(test.after)
				b.leases.LoseUnknown(l)
				synctest.Wait()
				if !slices.Equal(b.lost, []types.LostReason{test.want}) {
					t.Errorf("lost %v, want %s", b.lost, test.want)
				}
			})
		})
	}
}

func TestLeaseOfAnotherHistoryIsRetired(t *testing.T) {
	inBubble(t, func(b *bench) {
		l := b.pin(usual)
		b.mu.Lock()
		b.history = uuid.New()
		b.mu.Unlock()
		sleep(2 * every)
		if !b.alive(l) || !b.leases.Retired(l) || len(b.retired) != 1 || len(b.verified) < 2 {
			b.t.Errorf("retired %d times, verified %d times", len(b.retired), len(b.verified))
		}
		fresh := b.pin(usual)
		if fresh == l || b.leases.Retired(fresh) {
			b.t.Error("something new is held under a retired lease")
		}
		l.Unpin()
		sleep(every)
		if all := b.leases.All(); len(all) != 1 || all[0] != fresh || len(b.lost) > 0 {
			b.t.Errorf("%d leases, lost %v", len(all), b.lost)
		}
	})
}

func TestWhatIsMovedNeedsBothLeases(t *testing.T) {
	inBubble(t, func(b *bench) {
		old, next := b.pin(usual), b.pin(time.Minute)
		old.MoveTo(next)
		if now := clock.Read(clocktest.Bubble{}); !b.alive(old) || !old.Covers(next.ID()) || next.Covers(old.ID()) || old.Remaining(now) > usual {
			b.t.Error("not trusted while both are")
		}
		old.Moved()
		if !b.alive(old) || old.Covers(next.ID()) {
			b.t.Error("not trusted after the move")
		}
		old.MoveTo(next)
		b.leases.Lose(next, types.LostStore)
		if b.alive(old) {
			b.t.Error("trusted without the other one")
		}
		synctest.Wait()
		if !old.Lost() {
			b.t.Error("not lost with the other one")
		}
		if want := []types.LostReason{types.LostStore, types.LostStore}; !slices.Equal(b.lost, want) { // its own time is not over
			b.t.Errorf("lost %v, want %v", b.lost, want)
		}
	})
}

func TestNothingIsOpenedAfterTheStop(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.cancel()
		b.run.Join()
		l := b.leases.Pin(context.Background(), usual)
		<-l.Opened()
		if l.Err() == nil || b.alive(l) || b.leases.Get(usual) != nil {
			b.t.Errorf("opened: %v", l.Err())
		}
	})
}
