package fair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// crowd are calls that note when they get a place.
type crowd struct {
	t      *testing.T
	places *Places[string]
	mu     sync.Mutex
	got    []string
	calls  sync.WaitGroup
}

// waits makes a call that waits, and returns how to end its ctx.
func (c *crowd) waits(user, call string) context.CancelFunc {
	ctx, cancel := context.WithCancel(c.t.Context())
	c.calls.Go(func() {
		if c.places.Enter(ctx, user) == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got = append(c.got, call)
		}
	})
	synctest.Wait()
	return cancel
}

func (c *crowd) leave(times int) {
	for range times {
		c.places.Leave()
		synctest.Wait()
	}
}

func (c *crowd) want(want ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.got, want) {
		c.t.Errorf("places went to %v, want %v", c.got, want)
	}
}

// A user with many calls gets one place a turn, and his calls keep their order.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{t: t, places: New[string](2)}
		c.waits("noisy", "1")
		c.waits("noisy", "2") // alone he has all places
		for i := 3; i <= 6; i++ {
			c.waits("noisy", fmt.Sprint(i))
		}
		c.waits("quiet", "q1")
		c.waits("other", "o1")
		c.waits("quiet", "q2")
		c.leave(7)
		c.want("1", "2", "3", "q1", "o1", "4", "q2", "5", "6")
		c.leave(2)
		c.calls.Wait()
		if c.places.free != 2 || len(c.places.waiting)+len(c.places.turns) != 0 {
			t.Errorf("left: %+v", c.places)
		}
	})
}

// A call whose ctx ends leaves its line, and its user his turn if he has no other call.
func TestCallsThatGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{t: t, places: New[string](1)}
		c.waits("a", "a1")
		giveUp := []context.CancelFunc{c.waits("b", "b1"), c.waits("c", "c1")}
		c.waits("b", "b2")
		c.waits("d", "d1")
		for _, cancel := range giveUp {
			cancel()
		}
		synctest.Wait()
		c.leave(2)
		c.want("a1", "b2", "d1")
		c.leave(1)
		c.calls.Wait()
		if c.places.free != 1 || len(c.places.waiting)+len(c.places.turns) != 0 {
			t.Errorf("left: %+v", c.places)
		}
	})
}

// A place is not lost if it comes at the moment when the ctx of its call ends.
// Proves: threat flood
func TestAPlaceThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{t: t, places: New[string](1)}
		c.waits("a", "a1")
		cancel := c.waits("b", "b1")
		c.places.mu.Lock()
		cancel() // the call sees this first, and waits for the mutex
		c.places.pass()
		c.places.mu.Unlock()
		c.calls.Wait()
		c.want("a1")
		if c.places.free != 1 || len(c.places.waiting)+len(c.places.turns) != 0 {
			t.Errorf("left: %+v", c.places)
		}
	})
}

// Many users come and give up at random: never are more places taken than there are, and all come back.
func TestManyUsers(t *testing.T) {
	t.Parallel()
	const places, users, calls = 3, 20, 200
	p := New[int](places)
	var taken, most atomic.Int64
	var work sync.WaitGroup
	for user := range users {
		for range 3 {
			work.Go(func() {
				for range calls {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(500))*time.Microsecond)
					if err := p.Enter(ctx, user); err == nil {
						for now, old := taken.Add(1), most.Load(); now > old && !most.CompareAndSwap(old, now); {
							old = most.Load()
						}
						taken.Add(-1)
						p.Leave()
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	work.Wait()
	if most.Load() > places || p.free != places || len(p.waiting)+len(p.turns) != 0 {
		t.Errorf("%d places were taken of %d; left: %+v", most.Load(), places, p)
	}
}

// A place that is free is taken at once, and nobody takes one while others wait. Who has waited is counted, with the time.
func TestTryEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{t: t, places: New[string](0)} // at least one
		if !c.places.TryEnter() || c.places.TryEnter() {
			t.Fatal("there is not one place")
		}
		c.waits("a", "a1")
		c.waits("b", "b1")
		if a, b, none := c.places.Waiting("a"), c.places.Waiting("b"), c.places.Waiting("c"); a != 1 || b != 1 || none != 0 {
			t.Errorf("%d, %d and %d calls wait", a, b, none)
		}
		time.Sleep(time.Second)
		c.leave(1)
		c.want("a1")
		if c.places.TryEnter() {
			t.Error("a place that is taken is given away")
		}
		c.leave(1)
		c.want("a1", "b1")
		if calls, all := c.places.Waited(); calls != 2 || all != 2*time.Second {
			t.Errorf("%d calls have waited for %s", calls, all)
		}
		c.leave(1)
		c.calls.Wait()
		if !c.places.TryEnter() {
			t.Error("the place has not come back")
		}
	})
}
