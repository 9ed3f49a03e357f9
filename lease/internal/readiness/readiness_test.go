package readiness

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a store that says that it is usable, and may grant nothing.
type server struct {
	*memory.Store

	mu     sync.Mutex
	broken map[string]bool // operations
	quiet  time.Duration
	slow   time.Duration // leases are opened in this time
	late   chan struct{} // the answers of acquires come when it is closed
	probes int
}

var errBroken = &store.Error{Op: "test", Err: errors.New("broken on purpose")}

// breaks makes an operation fail, or not any more.
func (s *server) breaks(op string, so bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[op] = so
}

func (s *server) fails(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken[op] {
		return errBroken
	}
	return nil
}

func (*server) Traits() store.Traits { return store.Traits{} } // memory is inline, and needs no probes

func (s *server) Quiet() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet
}

func (s *server) setQuiet(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = d
}

func (s *server) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	time.Sleep(s.slow)
	s.mu.Lock()
	s.probes++
	s.mu.Unlock()
	if err := s.fails("OpenLeases"); err != nil {
		return err
	}
	return s.Store.OpenLeases(ctx, leases)
}

func (s *server) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	if err := s.fails("Acquire"); err != nil {
		return nil, err
	}
	if left := s.Quiet(); left > 0 {
		return []store.Answer{{Outcome: store.Quiet, QuietFor: left}}, nil
	}
	answers, err := s.Store.Acquire(ctx, asks)
	if s.late != nil {
		<-s.late
	}
	return answers, err
}

func (s *server) Revoke(ctx context.Context, leases []store.LeaseID) error {
	if err := s.fails("Revoke"); err != nil {
		return err
	}
	return s.Store.Revoke(ctx, leases)
}

// bench is a judge of a store.
type bench struct {
	*Judge
	t    *testing.T
	st   *server
	log  *logtest.Log
	stop func() // and wait until the judge has stopped
}

// newBench makes a judge that does not run yet.
func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, log: &logtest.Log{}, st: &server{
		Store: memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "a", Pod: "a"}), broken: map[string]bool{},
	}}
	if err := b.st.Start(t.Context(), func(store.News) {}); err != nil {
		t.Fatal(err)
	}
	b.Judge = New(types.Config{
		Probes: true, TTL: 15 * time.Second, StoreTimeout: 5 * time.Second, Clock: clocktest.Bubble{}, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}, b.st)
	return b
}

// run lets the judge run until the end of the test.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
	}
	b.t.Cleanup(func() {
		b.stop()
		b.st.Stop()
	})
	synctest.Wait()
}

// after lets virtual time pass, and all that follows happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// held counts the locks in the store.
func (b *bench) held() int {
	b.t.Helper()
	locks, err := b.st.List(context.Background(), store.Query{Limit: 10})
	if err != nil {
		b.t.Fatal(err)
	}
	return len(locks)
}

// TestReadyNeedsAGrant: a store that says that it is usable and grants nothing makes the sidecar not ready, from the start on. The log names
// the cause once.
// Proves: rule readiness
func TestReadyNeedsAGrant(t *testing.T) {
	for _, op := range []string{"OpenLeases", "Acquire"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.st.breaks(op, true)
			if b.Ready() == nil {
				t.Errorf("%s: ready before the first probe", op)
			}
			b.run()
			if !errors.Is(b.Ready(), errBroken) {
				t.Errorf("%s fails, ready: %v", op, b.Ready())
			}
			after(time.Minute)
			if n := strings.Count(b.log.String(), "the store grants no locks"); n != 1 || !strings.Contains(b.log.String(), "broken on purpose") {
				t.Errorf("%s: %d lines of the cause, want 1:\n%s", op, n, b.log)
			}
			b.st.breaks(op, false)
			after(interval)
			if b.Ready() != nil || !strings.Contains(b.log.String(), "the store grants locks again") {
				t.Errorf("%s: not ready again: %v\n%s", op, b.Ready(), b.log)
			}
		})
	}
}

// TestADoubtIsNoVerdict: a call of the sidecar that failed causes one probe, which decides. Without failures there are no probes. What the
// caller caused says nothing of the store.
// Proves: rule readiness
func TestADoubtIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		after(time.Hour)
		b.Heard(nil)
		b.Heard(context.Canceled)
		b.Heard(&store.Error{Op: "test", Err: context.Canceled, Unknown: true})
		b.HeardAnswers([]store.Answer{{Outcome: store.Granted}, {Outcome: store.Held}}, nil)
		after(time.Minute)
		if b.Ready() != nil || b.st.probes != 1 {
			t.Errorf("ready: %v after %d probes, want the first one only", b.Ready(), b.st.probes)
		}
		for name, doubt := range map[string]func(){
			"a failure":    func() { b.Heard(errBroken) },
			"a quiet time": func() { b.HeardAnswers([]store.Answer{{Outcome: store.Granted}, {Outcome: store.Quiet}}, nil) },
		} {
			before := b.st.probes
			doubt()
			if b.Ready() != nil {
				t.Errorf("%s: not ready before a probe: %v", name, b.Ready())
			}
			after(time.Minute)
			if n := b.st.probes - before; n != 1 || b.Ready() != nil {
				t.Errorf("%s: %d probes, ready: %v", name, n, b.Ready())
			}
		}
		b.st.breaks("Acquire", true)
		before := b.st.probes
		for range 100 {
			b.Heard(errBroken)
			after(100 * time.Millisecond)
		}
		if n := b.st.probes - before; n < 5 || n > 11 || !errors.Is(b.Ready(), errBroken) {
			t.Errorf("%d probes in 10 s of failures, ready: %v", n, b.Ready())
		}
	})
}

// TestQuietTimeIsNotReady: the sidecar tells for how long, and is ready afterwards.
// Proves: rule readiness
func TestQuietTimeIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		b.st.setQuiet(7 * time.Second)
		if b.Ready() != nil { // and it asks the store
			t.Errorf("%v before a probe", b.Ready())
		}
		after(1500 * time.Millisecond)
		quiet, ok := errors.AsType[*types.QuietError](b.Ready())
		if !ok || quiet.Left <= 5*time.Second || quiet.Left > 7*time.Second {
			t.Errorf("ready: %v", b.Ready())
		}
		b.st.setQuiet(0)
		after(interval)
		if b.Ready() != nil {
			t.Errorf("not ready after it: %v", b.Ready())
		}
	})
}

// TestQuietTimeIsNamedBeforeTheFirstProbe: the store has heard of it before the first probe has its answer.
// Proves: rule quiet time
func TestQuietTimeIsNamedBeforeTheFirstProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.st.setQuiet(7 * time.Second)
		b.st.slow = time.Second
		b.run()
		if quiet, ok := errors.AsType[*types.QuietError](b.Ready()); !ok || quiet.Left != 7*time.Second {
			t.Errorf("ready: %v", b.Ready())
		}
	})
}

// TestProbesLeaveNothing: neither leases nor locks, also if a probe was under way at the stop, or its lease could not be revoked.
// Proves: rule readiness
func TestProbesLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		left := func(when string, want int) {
			t.Helper()
			if n := b.held(); n != want {
				t.Errorf("%s: %d locks of probes are left, want %d", when, n, want)
			}
		}
		b.st.breaks("Revoke", true)
		b.run()
		left("the first probe was not revoked", 1)
		b.st.breaks("Revoke", false)
		after(interval)
		left("nothing fails", 0)
		b.st.breaks("Revoke", true)
		b.Heard(errBroken)
		after(3 * interval)
		left("probes cannot be revoked", 1)
		if !errors.Is(b.Ready(), errBroken) {
			t.Errorf("ready, but no lease can be revoked: %v", b.Ready())
		}
		b.st.breaks("Revoke", false)
		after(interval)
		left("they are revoked", 0)
		if b.Ready() != nil {
			t.Errorf("not ready again: %v", b.Ready())
		}
		b.st.late = make(chan struct{})
		b.Heard(errBroken)
		after(interval)
		left("a probe is under way", 1)
		go func() {
			time.Sleep(time.Millisecond)
			close(b.st.late)
		}()
		b.stop()
		left("after the stop", 0)
	})
}
