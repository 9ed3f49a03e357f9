package signal

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const storeTimeout = 5 * time.Second

// sidecar is what signals see of theirs: its leases, and its sessions.
type sidecar struct {
	sg   *Signals
	st   *mailbox
	came chan struct{}

	mu        sync.Mutex
	leases    []store.LeaseID
	lostEarly bool
	has       map[string]bool // keys that sessions hold
	waiting   map[string]int
	awaited   bool
	told      []string // keys whose holders got a signal
}

// mailbox is a store that has signals only.
type mailbox struct {
	store.Signaler

	mu          sync.Mutex
	signals     []store.Signal
	sent        store.SignalID
	slow        time.Duration // a read takes this time
	during      func()        // happens during the next read
	unread      int           // so many reads fail
	unheard     int           // so many acknowledgements do
	reads, most int           // reads, and the most at a time
	reading     int
	asked       []store.LeaseID // by the last read
}

// inBubble runs a test in virtual time. The sidecar has one lease, and no lock.
func inBubble(t *testing.T, test func(t *testing.T, sc *sidecar)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		later := background.New(ctx, clocktest.Bubble{})
		sc := &sidecar{
			st: &mailbox{}, came: make(chan struct{}, 1), leases: []store.LeaseID{uuid.New()}, has: map[string]bool{}, waiting: map[string]int{},
		}
		sc.sg = New(ctx, Config{
			Config: types.Config{StoreTimeout: storeTimeout, Logger: slog.New(slog.DiscardHandler), Clock: clocktest.Bubble{}},
			Store:  sc.st, Background: later, Leases: sc, Holders: sc, Waiting: func(key string) int { return sc.waiting[key] },
		})
		later.Spawn(func() { sc.sg.Run(ctx) })
		test(t, sc)
		cancel()
		later.Join()
	})
}

// poll asks for a poll, and waits until nothing happens any more.
func (sc *sidecar) poll() {
	sc.sg.Poll()
	time.Sleep(time.Minute)
	synctest.Wait()
}

// grant gives a key to a session.
func (sc *sidecar) grant(key string) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.has[key] = true
	if sc.awaited {
		clock.Wake(sc.came)
	}
}

// want checks whose holders were told, and how many signals are still stored.
func (sc *sidecar) want(t *testing.T, left int, told ...string) {
	t.Helper()
	synctest.Wait()
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if n := len(sc.st.signals); n != left || !slices.Equal(sc.told, told) {
		t.Errorf("told the holders of %q, want %q; %d signals are stored, want %d", sc.told, told, n, left)
	}
}

// InUse and LostEarly make it the [Leases] of its signals, the next four its [Holders].

func (sc *sidecar) InUse() []store.LeaseID { return sc.leases }
func (sc *sidecar) LostEarly() bool        { return sc.lostEarly }

func (sc *sidecar) Came() <-chan struct{} { return sc.came }

func (sc *sidecar) Await(so bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.awaited = so
}

func (sc *sidecar) Empty() bool {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return len(sc.has) == 0
}

func (sc *sidecar) Signal(sig store.Signal) (known bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.has[sig.Key] {
		sc.told = append(sc.told, sig.Key)
	}
	return sc.has[sig.Key]
}

// send stores a signal for the holder of a key.
func (st *mailbox) send(key string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sent++
	st.signals = append(st.signals, store.Signal{ID: st.sent, Kind: store.Stop, Key: key, Token: 1})
}

// fails reports whether an operation fails, and counts down.
func fails(times *int) bool {
	*times--
	return *times >= 0
}

var errBroken = errors.New("broken on purpose")

func (st *mailbox) Signals(_ context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	st.mu.Lock()
	st.reads++
	st.reading++
	st.most, st.asked = max(st.most, st.reading), leases
	found, failed, during := slices.Clone(st.signals), fails(&st.unread), st.during
	st.during = nil
	st.mu.Unlock()
	if during != nil {
		during()
	}
	time.Sleep(st.slow)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.reading--
	if failed {
		return nil, errBroken
	}
	return found, nil
}

func (st *mailbox) Acknowledge(_ context.Context, ids []store.SignalID) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if fails(&st.unheard) {
		return errBroken
	}
	st.signals = slices.DeleteFunc(st.signals, func(sig store.Signal) bool { return slices.Contains(ids, sig.ID) })
	return nil
}

// TestASignalIsAppliedAndForgotten: signals are read under the leases that are in use, and acknowledged when a holder got them. Others stay.
// Proves: promise 17
func TestASignalIsAppliedAndForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, sc *sidecar) {
		sc.leases = append(sc.leases, uuid.New())
		sc.grant("k")
		sc.st.send("k")
		sc.st.send("elsewhere")
		sc.poll()
		sc.want(t, 1, "k")
		if !slices.Equal(sc.st.asked, sc.leases) || sc.st.reads != 1 {
			t.Errorf("%d reads, the last one under %v; in use are %v", sc.st.reads, sc.st.asked, sc.leases)
		}
		sc.leases = nil
		sc.poll()
		if sc.st.reads != 1 {
			t.Error("read without a lease")
		}
	})
}

// TestASidecarWithoutLocksReadsNothing: news of signals concern other sidecars, too. But a lease that was lost early may have locks in the
// store.
// Proves: promise 17
func TestASidecarWithoutLocksReadsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, sc *sidecar) {
		sc.poll()
		if sc.st.reads != 0 {
			t.Error("read without a lock")
		}
		sc.st.send("k") // for a grant whose answer is under way
		sc.poll()
		sc.grant("k")
		time.Sleep(time.Second)
		sc.want(t, 0, "k")
		clear(sc.has)
		sc.lostEarly = true
		before := sc.st.reads
		sc.poll()
		if sc.st.reads != before+1 {
			t.Errorf("%d reads while a lease is lost early", sc.st.reads-before)
		}
	})
}

// TestSignalsAreReadAgain: after a read that failed, or an acknowledgement without an answer.
// Proves: promise 17
func TestSignalsAreReadAgain(t *testing.T) {
	for name, c := range map[string]struct {
		unread, unheard int
		told            []string
	}{"unread": {3, 0, []string{"k"}}, "not acknowledged": {0, 1, []string{"k", "k"}}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, sc *sidecar) {
				sc.grant("k")
				sc.st.send("k")
				sc.st.unread, sc.st.unheard = c.unread, c.unheard
				sc.poll()
				sc.want(t, 0, c.told...)
			})
		})
	}
}

// TestASignalWaitsForItsGrant: the answer with the grant comes after the signal. It comes between two reads, or while a read finds the
// signal. Then the signal is applied without further news.
// Proves: promise 17
func TestASignalWaitsForItsGrant(t *testing.T) {
	for name, during := range map[string]bool{"during the read": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, sc *sidecar) {
				sc.grant("other")
				sc.st.send("k")
				sc.sg.Poll()
				time.Sleep(time.Second)
				sc.want(t, 1)
				if during {
					sc.st.during = func() { sc.grant("k") }
					sc.sg.Poll()
				} else {
					sc.grant("k")
				}
				time.Sleep(time.Second)
				sc.want(t, 0, "k")
				if sc.awaited {
					t.Error("further grants are awaited, although no signal is left")
				}
			})
		})
	}
}

// TestAStaleSignalIsForgotten: a grant cannot come any more when all questions are over that were asked before its signal was read. A call
// that waits may still get it.
// Proves: promise 17
func TestAStaleSignalIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, sc *sidecar) {
		sc.grant("other")
		sc.st.send("ghost")
		sc.st.send("queued")
		sc.waiting["queued"] = 1
		sc.sg.Poll()
		time.Sleep(2 * storeTimeout)
		sc.sg.Poll()
		time.Sleep(time.Second)
		sc.want(t, 2) // an answer may be a little late
		sc.poll()
		sc.want(t, 1)
		sc.waiting["queued"] = 0
		sc.poll()
		sc.want(t, 0)
	})
}

// TestSignalsStorm: many news cause few reads, one at a time. News during a read cause one more, because it may not have found their signal.
func TestSignalsStorm(t *testing.T) {
	inBubble(t, func(t *testing.T, sc *sidecar) {
		sc.grant("k")
		sc.st.slow = time.Millisecond
		for range 1000 {
			sc.sg.Poll()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := sc.st.reads; n < 10 || n > 25 { // about twenty, and a few more before the pauses have grown
			t.Errorf("%d reads in a second of news", n)
		}
		if sc.st.most != 1 {
			t.Errorf("%d reads at a time", sc.st.most)
		}
		sc.poll()
		before := sc.st.reads
		sc.st.during = func() {
			sc.st.send("k")
			for range 10 {
				sc.sg.Poll()
			}
		}
		sc.poll()
		sc.want(t, 0, "k")
		if n := sc.st.reads - before; n != 2 {
			t.Errorf("%d reads, want one that missed the signal and one more", n)
		}
	})
}
