package lease

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// watcher is a stream of a test.
type watcher struct {
	t    tester
	view types.View
	stop func()

	mu    sync.Mutex
	heard []Event
	at    []time.Time
}

func (r *rig) watch(s *holdings.Session, key string) *watcher {
	r.t.Helper()
	w := &watcher{t: r.t}
	var err error
	w.view, w.stop, err = r.m.Watch(context.Background(), s, key, w.hear)
	r.must(err)
	return w
}

func (w *watcher) hear(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard, w.at = append(w.heard, e), append(w.at, time.Now())
}

// want checks the events since the last call.
func (w *watcher) want(kinds ...store.EventKind) []Event {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []store.EventKind
	for _, e := range w.heard {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, kinds) {
		w.t.Fatalf("events %v, want %v", got, kinds)
	}
	acknowledged := w.heard
	w.heard = nil
	return acknowledged
}

// settle is the time until a second read confirms the first.
const settle = 100 * time.Millisecond

const (
	acquired = store.EventAcquired
	released = store.EventReleased
	expired  = store.EventExpired
	stopping = store.EventStopping
)

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		s, other := r.eitherSession(), b.eitherSession()
		w := r.watch(s, "k")
		if w.view.Held || w.view.Key != "k" {
			t.Errorf("got %+v", w.view)
		}
		far := b.watch(other, "k")
		for _, r := range []*rig{r, b} { // granted by this sidecar, and by another
			g := r.lock(map[*rig]*holdings.Session{r: s, b: other}[r], "k")
			for _, w := range []*watcher{w, far} {
				e := w.want(acquired)[0]
				if e.Lock.Token != g.Token || !e.Lock.Held || e.Lock.Holder.Instance != r.m.cfg.Instance || e.Lock.Holder.ExpiresIn <= 0 {
					t.Errorf("got %+v", e)
				}
			}
			reason := "go"
			r.must(b.m.AskToStop(context.Background(), "k", 0, &reason))
			for _, w := range []*watcher{w, far} {
				if e := w.want(stopping)[0]; *e.Stopping.Reason != "go" || e.Stopping.At.IsZero() {
					t.Errorf("got %+v", e)
				}
			}
			_, err := r.m.Release(context.Background(), map[*rig]*holdings.Session{r: s, b: other}[r],
				types.ReleaseRequest{Key: "k", Token: g.Token, Outcome: store.Success, Result: json.RawMessage("1")})
			r.must(err)
			for _, w := range []*watcher{w, far} {
				if e := w.want(released)[0]; e.Outcome != store.Success || string(e.Result) != "1" {
					t.Errorf("got %+v", e)
				}
			}
		}
		time.Sleep(time.Minute) // polls do not repeat events
		w.want()
		far.want()
		w.stop()
		w.stop()
		b.lock(other, "k")
		w.want()
		far.want(acquired)
		far.stop()
		s.End(types.EndDeleted)
		other.End(types.EndDeleted)
		r.nothingLeft()
		b.nothingRemembered()
	})
}

// The store watches a key once for all streams of the sidecar, and stops with the last stream.
func TestWatchShares(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		first := r.watch(s, "k")
		g := r.lock(s, "k")
		first.want(acquired)
		second := r.watch(s, "k")
		if !second.view.Held || !second.view.Mine || r.st.count("Watch") != 1 {
			t.Errorf("got %+v, %d watches", second.view, r.st.count("Watch"))
		}
		r.release(s, g)
		first.want(released)
		second.want(released)
		first.stop()
		synctest.Wait()
		if r.st.count("Unwatch") != 0 {
			t.Error("unwatched although a stream watches")
		}
		second.stop()
		synctest.Wait()
		if r.st.count("Unwatch") != 1 {
			t.Errorf("unwatched %d times", r.st.count("Unwatch"))
		}
		third := r.watch(s, "k")
		r.lock(s, "k")
		third.want(acquired)
		third.stop()
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

// Within a second after its lease ends, a holder's death is reported once, even if the key has no
// waiters. A holder whose renewal is only late is not reported.
// Proves: promise 16
func TestWatchExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		w := r.watch(nil, "k")
		b.lock(b.eitherSession(), "k")
		w.want(acquired)
		time.Sleep(7 * time.Second)
		b.st.setAll(fault{refuse: true}) // its sidecar can no longer reach the store
		var end time.Time
		for l := r.stored("k"); l.Held; l = r.stored("k") {
			end = time.Now().Add(l.Holder.ExpiresIn)
			time.Sleep(l.Holder.ExpiresIn)
		}
		time.Sleep(time.Until(end.Add(time.Second)))
		w.want(expired)
		time.Sleep(time.Minute)
		w.want()
		b.st.lift(everyOp...)
		ttl := r.lockTTL("k", 2*time.Second)
		w.want(acquired)
		time.Sleep(time.Until(ttl.AcquiredAt.Add(3 * time.Second)))
		w.want(expired)
		w.stop()
	})
}

// Missed events are found when the key is read.
// Proves: promise 16
func TestWatchMissesNews(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		w := r.watch(nil, "k")
		r.st.mu.Lock()
		r.st.dropNews = true
		r.st.mu.Unlock()
		s := b.eitherSession()
		g := b.lock(s, "k")
		w.want()
		time.Sleep(5*time.Second + 2*settle) // keys are read as often as leases are renewed
		if e := w.want(acquired)[0]; e.Lock.Token != g.Token {
			t.Errorf("got %+v", e)
		}
		r.must(b.m.AskToStop(context.Background(), "k", 0, nil))
		r.m.News(store.EveryWait) // the store reports missed news
		time.Sleep(2 * attempt.CheckPause)
		w.want(stopping)
		b.release(s, g)
		r.m.News(store.EveryWait)
		time.Sleep(2 * attempt.CheckPause)
		if e := w.want(released)[0]; e.Outcome != store.NoOutcome {
			t.Errorf("got %+v", e)
		}
		r.st.polls(true)
		r.m.News(store.EveryWait)
		synctest.Wait()
		b.lock(s, "k")
		time.Sleep(time.Second + 2*settle) // the poll interval
		w.want(acquired)
		w.stop()
	})
}

// If the lease of the watches is lost, they continue under a fresh lease.
func TestWatchLosesLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		b := r.another(opt)
		s := b.eitherSession()
		w := r.watch(nil, "k")
		g := b.lock(s, "k")
		w.want(acquired)
		r.m.leases.Lose(r.m.leases.Get(15*time.Second), types.LostStore)
		synctest.Wait()
		if r.st.count("Watch") != 2 {
			t.Fatalf("%d watches", r.st.count("Watch"))
		}
		b.release(s, g)
		w.want(released)
		w.stop()
		s.End(types.EndDeleted)
		r.nothingLeft()
	})
}

func TestWatchFails(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.MaxWaiters = 2 }))
		ask := func(ctx context.Context) error {
			_, stop, err := r.m.Watch(ctx, nil, "k", func(Event) {})
			if err == nil {
				stop()
			}
			return err
		}
		r.st.set("Watch", fault{refuse: true})
		if err := ask(context.Background()); !store.Unavailable(err) {
			t.Errorf("%v", err)
		}
		r.st.lift("Watch")
		r.st.set("Get", fault{refuse: true})
		if err := ask(context.Background()); !store.Unavailable(err) {
			t.Errorf("%v", err)
		}
		r.st.lift("Get")
		synctest.Wait() // the watch has ended
		release := r.st.hold("Watch")
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		if err := ask(ctx); !errors.Is(err, types.ErrCallerLeft) {
			t.Errorf("%v", err)
		}
		release()
		first, second := r.watch(nil, "k"), r.watch(nil, "k")
		var limit *LimitError
		if err := ask(context.Background()); !errors.As(err, &limit) {
			t.Errorf("%v", err)
		}
		first.stop()
		if err := ask(context.Background()); err != nil {
			t.Error(err)
		}
		r.m.Drain()
		if err := ask(context.Background()); !errors.Is(err, types.ErrDraining) {
			t.Errorf("%v", err)
		}
		second.stop()
		r.nothingLeft()
	})
}

// The store does not answer while a stream is opened and closed, and another is opened. The failure
// of the first watch does not end the second stream.
// Proves: trap stream in an outage
func TestWatchThatFailsKeepsANewerOne(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		answer := r.st.hold("Watch")
		ctx, leave := context.WithCancel(context.Background())
		time.AfterFunc(700*time.Millisecond, leave)
		if _, _, err := r.m.Watch(ctx, nil, "k", func(Event) {}); !errors.Is(err, types.ErrCallerLeft) {
			t.Fatalf("%v", err)
		}
		opened := make(chan *watcher, 1)
		go func() { opened <- r.watch(nil, "k") }()
		time.Sleep(r.m.cfg.StoreTimeout) // the watch of the first stream fails
		synctest.Wait()
		answer()
		time.Sleep(2 * r.m.cfg.PollInterval)
		synctest.Wait()
		select {
		case w := <-opened:
			s := r.eitherSession()
			r.lock(s, "k")
			w.want(acquired)
			w.stop()
			s.End(types.EndDeleted)
		default:
			t.Fatal("the second stream does not begin")
		}
		r.nothingLeft()
	})
}
