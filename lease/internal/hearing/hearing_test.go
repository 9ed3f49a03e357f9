package hearing

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ears is a store that records what it is told.
type ears struct {
	on    atomic.Bool
	mu    sync.Mutex
	turns []bool
}

func (e *ears) Listen(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.turns = append(e.turns, on)
	e.on.Store(on)
}

// inBubble runs a test in virtual time. turned checks what the store was told so far.
func inBubble(t *testing.T, test func(n *Needs, turned func(want ...bool))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &ears{}
		n := New(e)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { n.Run(ctx) })
		test(n, func(want ...bool) {
			t.Helper()
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			if !slices.Equal(e.turns, want) {
				t.Fatalf("the store was told %v, want %v", e.turns, want)
			}
		})
		cancel()
		running.Wait()
	})
}

// TestNewsAreHeardAtOnceAndForAWhile: the store knows it when Begin returns, and goes on for a while after the last End.
// Proves: trap notifications
func TestNewsAreHeardAtOnceAndForAWhile(t *testing.T) {
	inBubble(t, func(n *Needs, turned func(...bool)) {
		for round := range 3 {
			var before []bool
			for range round {
				before = append(before, true, false)
			}
			turned(before...)
			n.Begin(News)
			if e := n.st.(*ears); !e.on.Load() {
				t.Fatal("Begin has returned, and the store does not know it")
			}
			n.Begin(News)
			n.End(News)
			time.Sleep(time.Hour)
			turned(append(before, true)...)
			n.End(News)
			time.Sleep(Linger / 2)
			n.Begin(News) // shorter than a look apart
			n.End(News)
			time.Sleep(Linger * 4 / 5)
			turned(append(before, true)...)
			time.Sleep(2 * Linger)
			turned(append(before, true, false)...)
			time.Sleep(time.Hour)
		}
	})
}

// TestShortNeedsDoNotFlap: calls that wait again and again keep the store hearing.
// Proves: trap notifications
func TestShortNeedsDoNotFlap(t *testing.T) {
	for _, k := range []Kind{News, Stops} {
		inBubble(t, func(n *Needs, turned func(...bool)) {
			for range 50 {
				n.Begin(k)
				time.Sleep(2 * Patience)
				n.End(k)
				time.Sleep(Linger * 4 / 5)
			}
			turned(true)
		})
	}
}

// TestALockIsHeardOfWhenItLasts: a short lock is not worth a connection, and a long one is heard of from a moment after its beginning to its end.
// Proves: promise 17
func TestALockIsHeardOfWhenItLasts(t *testing.T) {
	inBubble(t, func(n *Needs, turned func(...bool)) {
		for range 100 { // each is noticed, and over before the look
			n.Begin(Stops)
			time.Sleep(Patience / 2)
			n.End(Stops)
			time.Sleep(time.Duration(rand.Int64N(int64(time.Minute))) + Patience)
		}
		turned()
		n.Begin(Stops)
		time.Sleep(Patience * 9 / 10)
		turned()
		time.Sleep(Patience / 5)
		turned(true)
		time.Sleep(time.Hour)
		turned(true)
		n.End(Stops)
		time.Sleep(3 * Linger)
		turned(true, false)
		// A call waits, and its session then holds the lock for long. It was noticed while the store heard already.
		n.Begin(Stops)
		n.Begin(News)
		n.End(News)
		n.End(Stops)
		time.Sleep(3 * Linger)
		turned(true, false, true, false)
		n.Begin(Stops)
		time.Sleep(2 * Patience)
		turned(true, false, true, false, true)
	})
}

// TestTheEndOfTheHearingMissesNobody: who begins in the moment in which the hearing ends is heard of.
// Proves: trap notifications
func TestTheEndOfTheHearingMissesNobody(t *testing.T) {
	const ends = 1000
	e := &ears{}
	n := New(e)
	var ended atomic.Int64
	stop := make(chan struct{})
	var ending, beginning sync.WaitGroup
	ending.Go(func() { // as Run, without its pauses
		for ended.Load() < ends {
			n.used.Store(false)
			if n.on.Load() {
				n.turnOffUnused()
				if !e.on.Load() {
					ended.Add(1)
				}
			}
			runtime.Gosched()
		}
		close(stop)
	})
	var deaf atomic.Int64
	for range 2 {
		beginning.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n.Begin(News)
				runtime.Gosched()
				if !e.on.Load() {
					deaf.Add(1)
				}
				n.End(News)
				runtime.Gosched()
			}
		})
	}
	beginning.Wait()
	ending.Wait()
	if deaf.Load() > 0 {
		t.Errorf("%d times somebody needs news, and the store does not hear", deaf.Load())
	}
	for i, on := range e.turns {
		if on != (i%2 == 0) {
			t.Fatalf("turn %d: %v", i, on)
		}
	}
}

// TestAStoreThatAlwaysHears is told nothing.
func TestAStoreThatAlwaysHears(t *testing.T) {
	n := New(nil)
	n.Begin(News)
	n.End(News)
	n.Run(t.Context()) // returns at once
}
