package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	acquired = store.EventAcquired
	released = store.EventReleased
	expired  = store.EventExpired
	stopping = store.EventStopping
)

// tester is what testing's T and rapid's T have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// bench is the watches of one key, on a store of the test.
type bench struct {
	t  tester
	ws *Watches

	mu      sync.Mutex
	lock    store.Lock    // the key's true state
	takes   time.Duration // how long a read takes after it has seen the state
	slow    time.Duration // how long Watch takes
	err     error         // of all operations
	unheard error         // of Watch, which is carried out
	watched int
	// pinned are the users of the lease, lost: it is not alive.
	pinned int
	lost   bool
}

func newBench(t tester) (b *bench, stop func()) {
	b = &bench{t: t, lock: store.Lock{Key: "k"}}
	always := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	b.ws = New(Config{
		Store: b, Get: b.Get, Clock: clocktest.Bubble{}, Log: slog.New(slog.DiscardHandler), Needs: hearing.New(nil), Pin: b.pin,
		Every: always(5 * time.Second), Retry: always(time.Second), Timeout: 5 * time.Second, BatchMax: 10, MaxStreams: 10,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.ws.Run(ctx) })
	return b, func() {
		cancel()
		running.Wait()
	}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newBench(t)
		defer stop()
		test(b)
	})
}

func (b *bench) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// is sets the key's true state.
func (b *bench) is(lock store.Lock) {
	lock.Key = "k"
	b.change(func() { b.lock = lock })
}

func (b *bench) fails(err error) { b.change(func() { b.err = err }) }

func (b *bench) Get(_ context.Context, keys []string) ([]store.Lock, error) {
	b.mu.Lock()
	lock, takes, err := b.lock, b.takes, b.err
	b.mu.Unlock()
	time.Sleep(takes)
	return slices.Repeat([]store.Lock{lock}, len(keys)), err
}

func (b *bench) Watch(_ context.Context, keys []string, _ store.LeaseID) error {
	b.mu.Lock()
	slow := b.slow
	b.mu.Unlock()
	time.Sleep(slow)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.watched += len(keys)
	}
	return cmp.Or(b.err, b.unheard)
}

func (b *bench) Unwatch(_ context.Context, keys []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.watched -= len(keys)
	}
	return b.err
}

func (b *bench) pin(context.Context) (Lease, error) {
	b.change(func() { b.pinned, b.lost = b.pinned+1, false })
	return b, nil
}

func (b *bench) ID() store.LeaseID { return uuid.UUID{1} }
func (b *bench) Unpin()            { b.change(func() { b.pinned-- }) }
func (b *bench) Alive() (alive bool) {
	b.change(func() { alive = !b.lost })
	return alive
}

// reader is a stream of a test.
type reader struct {
	*Stream
	t    tester
	mu   sync.Mutex
	all  []Event
	next int // the first event that was not wanted yet
}

func (b *bench) open() *reader {
	b.t.Helper()
	r := &reader{t: b.t}
	var err error
	if r.Stream, err = b.ws.Open("k", r.told); err != nil {
		b.t.Fatalf("%v", err)
	}
	return r
}

// begin opens a stream and waits for its state.
func (b *bench) begin() *reader {
	b.t.Helper()
	r := b.open()
	if _, err := r.State(); err != nil {
		b.t.Fatalf("%v", err)
	}
	return r
}

func (r *reader) told(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *reader) events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// want checks the events since the last time.
func (r *reader) want(kinds ...store.EventKind) []Event {
	r.t.Helper()
	synctest.Wait()
	fresh := r.events()[r.next:]
	r.next += len(fresh)
	var got []store.EventKind
	for _, e := range fresh {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, kinds) {
		r.t.Fatalf("told %v, not %v", got, kinds)
	}
	return fresh
}

func held(token int64) store.Lock {
	return store.Lock{Held: true, Token: token, Holder: store.Holder{ExpiresIn: time.Hour}}
}

func push(b *bench, kind store.EventKind, token int64) {
	e := store.Event{Kind: kind, Key: "k", Token: token}
	switch kind {
	case stopping:
		e.Stopping = &store.Stopping{}
	case released:
		e.Outcome, e.Result = store.Success, strconv.AppendInt(nil, token, 10)
	}
	b.ws.Receive(e)
}

// Every event is sent once, in the order of the grants, whatever pushes come and how often.
// Proves: promise 16
func TestPushesInAnyOrder(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.is(held(6))
		r := b.begin()
		b.is(held(7))
		push(b, acquired, 7)
		if e := r.want(acquired)[0]; e.Lock.Token != 7 || !e.Lock.Held {
			t.Errorf("%+v", e)
		}
		push(b, released, 6) // the push of the next grant has overtaken it
		push(b, acquired, 7)
		push(b, acquired, 6)
		r.want()
		push(b, stopping, 7)
		push(b, stopping, 7)
		push(b, stopping, 6)
		r.want(stopping)
		b.is(store.Lock{Token: 7, Expired: true})
		push(b, expired, 7)
		push(b, expired, 7)
		push(b, stopping, 7)
		push(b, acquired, 7)
		r.want(expired)
		b.is(store.Lock{Token: 8})
		push(b, acquired, 8) // it has ended when it is read
		r.want()
		push(b, released, 8)
		told := r.want(acquired, released)
		if told[0].Lock.Held || told[0].Lock.Key != "k" || told[1].Outcome != store.Success || string(told[1].Result) != "8" {
			t.Errorf("%+v", told)
		}
		push(b, released, 10) // its beginning was missed
		push(b, released, 9)
		r.want(acquired, released)
		b.is(held(11))
		push(b, stopping, 11) // the push of its beginning comes later
		r.want(acquired)
		push(b, acquired, 11)
		push(b, stopping, 11)
		r.want(stopping)
		time.Sleep(time.Minute)
		r.want()
	})
}

// A single read is not told: an expired holder may be renewed, and a push on its way
// knows the outcome.
func TestReadsAreConfirmed(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.is(held(6))
		r := b.begin()
		b.is(store.Lock{Token: 6, Expired: true})
		b.ws.Recheck()
		synctest.Wait()
		b.is(held(6)) // renewed in time
		time.Sleep(time.Minute)
		r.want()

		b.is(store.Lock{Token: 6})
		b.ws.Recheck()
		time.Sleep(settle - 1)
		r.want()
		push(b, released, 6)
		if e := r.want(released)[0]; e.Outcome != store.Success {
			t.Errorf("%+v", e)
		}
		time.Sleep(time.Minute)
		r.want()
	})
}

// Two reads tell what no push says.
func TestReadsTellWhatPushesMissed(t *testing.T) {
	inBubble(t, func(b *bench) {
		r := b.begin()
		looks := func(lock store.Lock, kinds ...store.EventKind) {
			t.Helper()
			b.is(lock)
			b.ws.Recheck()
			time.Sleep(settle)
			r.want(kinds...)
		}
		looks(held(7), acquired)
		asked := held(7)
		asked.Stopping = &store.Stopping{Reason: new("one")}
		looks(asked, stopping)
		asked.Stopping = &store.Stopping{Reason: new("two")}
		looks(asked, stopping)
		looks(asked)
		looks(store.Lock{Token: 7, Expired: true}, expired)
		looks(held(7), acquired) // it was renewed late
		looks(held(8), acquired)
		looks(store.Lock{}, released) // the store has forgotten the grant
		looks(held(9), acquired)
		// After a failover to a server that knew less.
		looks(held(8), acquired)
		looks(store.Lock{Token: 7}, released)
		looks(store.Lock{Token: 6})
		b.is(held(7))
		push(b, acquired, 7)
		r.want(acquired)
	})
}

// A released lock that is kept until its hold is over does not seem to be acquired again.
func TestHoldIsNoEvent(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.is(held(6))
		r := b.begin()
		pending := held(6)
		pending.Holder.HoldPending = true
		b.is(pending)
		push(b, released, 6)
		r.want(released)
		late := b.begin() // sees it held
		time.Sleep(time.Minute)
		r.want()
		b.is(store.Lock{Token: 6})
		time.Sleep(time.Minute)
		r.want()
		late.want(released)
	})
}

// Pushes that come during a read are newer than it.
func TestPushesDuringRead(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.is(held(6))
		b.takes = time.Second
		r := b.open()
		time.Sleep(500 * time.Millisecond)
		b.is(store.Lock{Token: 6})
		push(b, released, 6)
		if lock, err := r.State(); !lock.Held || err != nil {
			t.Errorf("%+v, %v", lock, err)
		}
		r.want(released)
		b.ws.Recheck()
		time.Sleep(500 * time.Millisecond)
		push(b, acquired, 7)
		push(b, released, 7)
		r.want(acquired, released)
		time.Sleep(time.Minute)
		r.want()
	})
}

// A read that began before a push does not confirm what was found before that push.
func TestPushesBetweenReads(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.is(store.Lock{Token: 6})
		r := b.begin()
		b.is(held(7))
		b.ws.Recheck()
		synctest.Wait()
		b.change(func() { b.takes = time.Second })
		time.Sleep(settle)
		synctest.Wait() // the second read has seen it, too
		b.is(store.Lock{Token: 7})
		push(b, released, 7)
		r.want(acquired, released)
		time.Sleep(time.Minute)
		r.want()
	})
}

// Streams that wait fail with the store. Those that have begun continue.
func TestStreamsInAnOutage(t *testing.T) {
	inBubble(t, func(b *bench) {
		away := errors.New("away")
		b.fails(away)
		if _, err := b.open().State(); !errors.Is(err, away) {
			t.Errorf("%v", err)
		}
		b.fails(nil)
		r := b.begin()
		b.fails(away)
		b.change(func() { b.lost = true })
		b.ws.LeaseEnded()
		time.Sleep(time.Minute)
		late := b.open()
		synctest.Wait()
		b.is(held(6))
		b.fails(nil)
		time.Sleep(2 * time.Second)
		r.want(acquired)
		if _, err := late.State(); !errors.Is(err, away) {
			t.Errorf("%v", err)
		}
		late.Close()
		r.Close()
		r.Close()
		synctest.Wait()
		if b.watched != 1 || b.pinned != 0 || len(b.ws.keys) != 0 || b.ws.streams != 0 { // one watch ended with its lease
			t.Errorf("watched: %d, pinned: %d, keys: %d, streams: %d", b.watched, b.pinned, len(b.ws.keys), b.ws.streams)
		}
	})
}

// A read falls due while the key has no stream and the store is asked to watch it. A stream that is opened
// after that begins all the same.
func TestReadIsDueWithoutStreams(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.change(func() { b.slow = 10 * time.Second })
		first := b.open()
		b.ws.Recheck() // the listener has connected again: the next read is due after 5 s
		time.Sleep(time.Second)
		first.Close()
		time.Sleep(6 * time.Second)
		second := b.open()
		defer second.Close()
		time.Sleep(10 * time.Second)
		select {
		case <-second.Begun():
		default:
			t.Error("the stream has not begun")
		}
	})
}

// A watch whose end the store did not confirm is ended later. If the key is watched again meanwhile, only the end of the last stream ends that.
// Proves: trap kept key
func TestTheEndOfAWatchIsRepeated(t *testing.T) {
	for name, meanwhile := range map[string]func(b *bench){
		"nobody comes": func(b *bench) { b.fails(nil) },
		"the key is watched again": func(b *bench) {
			b.fails(nil)
			r := b.begin()
			time.Sleep(time.Minute)
			if b.watched < 1 {
				t.Error("a key with a stream is not watched")
			}
			b.watched = 1 // the store has one watch of a key, however often it was asked
			r.Close()
		},
		"a watch of the key fails": func(b *bench) {
			r := b.open()
			if _, err := r.State(); err == nil {
				t.Error("it has not failed")
			}
			r.Close()
			b.fails(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				first := b.begin()
				b.fails(errors.New("the row is locked"))
				first.Close()
				synctest.Wait()
				if b.watched != 1 {
					t.Fatalf("watched %d times: the end has not failed", b.watched)
				}
				meanwhile(b)
				time.Sleep(time.Minute)
				synctest.Wait()
				if b.watched != 0 {
					t.Error("still watched")
				}
			})
		})
	}
}

// A watch whose outcome is unknown is ended, because the store may have it. If the key is watched again meanwhile, only the end of the last stream ends that.
// Proves: trap kept key
func TestAWatchOfUnknownOutcomeIsEnded(t *testing.T) {
	for name, meanwhile := range map[string]func(b *bench){
		"nobody comes": func(*bench) {},
		"the key is watched again": func(b *bench) {
			r := b.begin()
			time.Sleep(time.Minute)
			if b.watched < 1 {
				t.Error("a key with a stream is not watched")
			}
			b.watched = 1 // the store has one watch of a key, however often it was asked
			r.Close()
		},
		"its end fails, too": func(b *bench) {
			b.fails(errors.New("the row is locked"))
			time.Sleep(time.Minute)
			b.fails(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.unheard = &store.Error{Op: "watch", Err: errors.New("the answer is lost"), Unknown: true}
				if _, err := b.open().State(); !errors.Is(err, b.unheard) || b.watched != 1 {
					t.Fatalf("watched %d times: %v", b.watched, err)
				}
				b.change(func() { b.unheard = nil })
				meanwhile(b)
				time.Sleep(time.Minute)
				synctest.Wait()
				if b.watched != 0 {
					t.Error("still watched")
				}
			})
		})
	}
}

// A watch that seems to be lost arrives late, after its key was watched again, and that was over. It is ended, too.
// Proves: trap kept key
func TestAWatchThatComesLateIsEnded(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.fails(&store.Error{Op: "watch", Err: errors.New("lost"), Unknown: true})
		if _, err := b.open().State(); err == nil {
			t.Fatal("it has not failed")
		}
		b.fails(nil)
		b.begin().Close()
		time.Sleep(2*b.ws.cfg.Timeout - time.Millisecond)
		b.change(func() { b.watched = 1 })
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.watched > 0 {
			t.Error("still watched")
		}
	})
}
