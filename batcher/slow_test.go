package batcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// rows is an operation that finds the rows of some keys locked by somebody else.
type rows struct {
	mu     sync.Mutex
	locked map[string]bool
	// done are the items for which something was done, alone those that were asked
	// for alone, and when.
	done    []string
	alone   []string
	aloneAt []time.Time
	// relock: when that item is done, the row is locked again.
	relock string
	// takes is how long an operation takes that finds a row locked.
	takes time.Duration
}

const blocked = "blocked"

func (r *rows) flush(ctx context.Context, items []string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(items) == 1 {
		r.alone, r.aloneAt = append(r.alone, items[0]), append(r.aloneAt, time.Now())
	}
	if slices.ContainsFunc(items, func(item string) bool { return r.locked[rowOf(item)] }) && r.takes > 0 {
		r.mu.Unlock()
		time.Sleep(r.takes)
		r.mu.Lock()
	}
	answers := slices.Clone(items)
	for i, item := range items {
		if r.locked[rowOf(item)] {
			answers[i] = blocked
		} else {
			r.done = append(r.done, item)
			r.locked[rowOf(item)] = item == r.relock
		}
	}
	return answers, ctx.Err()
}

func (r *rows) lock(keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.locked = map[string]bool{}
	for _, k := range keys {
		r.locked[k] = true
	}
}

// counts of the questions for an item alone.
func (r *rows) asked(item string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.alone {
		if a == item {
			n++
		}
	}
	return n
}

// what is before the dash is the key.
func rowOf(item string) string {
	k, _, _ := strings.Cut(item, "-")
	return k
}

// all are the answers, in their order.
func (a *answers) all() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint(a.got)
}

func isBlocked(answer string) bool { return answer == blocked }

func slowLane(r *rows, cfg Config) *Lane[string, string] {
	return New(cfg, rowOf, r.flush, isBlocked)
}

// nothingKept checks that a lane without work has nothing in its books.
func nothingKept(t *testing.T, l *Lane[string, string]) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue)+len(l.keys)+len(l.slow.lines)+len(l.room) != 0 || l.running || l.slow.running {
		t.Errorf("kept: queue %v, keys %v, slow %v, room %d", l.queue, l.keys, l.slow.lines, len(l.room))
	}
}

// One locked key delays no other, and is answered when its row is free.
// Proves: trap locked row
func TestLockedKeyDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rows{takes: 10 * time.Millisecond}
		r.lock("locked")
		var a, locked answers
		l := slowLane(&r, Config{Max: 100, Room: 1000, Timeout: 5 * time.Second})
		submitAll(t, l, &locked, "locked-1")
		time.Sleep(time.Second)
		began := time.Now()
		for i := range 500 {
			if err := l.Submit(context.Background(), strconv.Itoa(i), a.done); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if strings.Count(a.all(), " ") != 499 || time.Since(began) != 0 {
			t.Errorf("%s answered after %s", a.all(), time.Since(began))
		}
		if locked.all() != "[]" {
			t.Errorf("answered %v", locked.got)
		}
		r.lock()
		time.Sleep(againMax)
		if locked.all() != "[locked-1]" {
			t.Errorf("answered %v, %v", locked.got, locked.err)
		}
		nothingKept(t, l)
		stop(l)
	})
}

// The pauses grow, and no question is asked in between.
func TestLockedKeyIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 10, Timeout: 10 * time.Second})
		submitAll(t, l, &a, "k-1")
		stop(l)
		first := r.aloneAt[1].Sub(r.aloneAt[0])
		if n := len(r.alone); first > againMin || n < 15 || n > 60 {
			t.Errorf("asked %d times, again after %s", n, first)
		}
		for i := range r.aloneAt[1:] {
			if d := r.aloneAt[i+1].Sub(r.aloneAt[i]); d > againMax || d < againMin/2 {
				t.Errorf("a pause of %s", d)
			}
		}
	})
}

// An item that stays locked is told so after the lane's timeout, and with it those
// that have stood behind it as long.
func TestLockedForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 10, Room: 10, Timeout: 5 * time.Second})
		submitAll(t, l, &a, "k-1", "k-2")
		time.Sleep(3 * time.Second)
		submitAll(t, l, &a, "k-3", "x")
		time.Sleep(5*time.Second - 3*time.Second - time.Millisecond)
		if a.all() != "[x]" {
			t.Errorf("answered %v too early", a.got)
		}
		time.Sleep(againMax + time.Millisecond)
		if a.all() != "[x blocked blocked]" {
			t.Errorf("answered %v", a.got)
		}
		r.lock()
		time.Sleep(againMax)
		if a.all() != "[x blocked blocked k-3]" || //nolint:dupword // two were
			r.asked("k-2") != 0 {
			t.Errorf("answered %v", a.got)
		}
		nothingKept(t, l)
		stop(l)
	})
}

// Several locked keys take turns, each is answered when its row is free.
func TestTwoLockedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rows{takes: 200 * time.Millisecond}
		r.lock("a", "b")
		var a answers
		l := slowLane(&r, Config{Max: 10, Timeout: 20 * time.Second})
		submitAll(t, l, &a, "a-1", "b-1")
		time.Sleep(10 * time.Second)
		if x, y := r.asked("a-1"), r.asked("b-1"); x < 10 || y < 10 || max(x, y)-min(x, y) > 5 {
			t.Errorf("asked %d and %d times", x, y)
		}
		r.lock("a")
		time.Sleep(2 * time.Second)
		if a.all() != "[b-1]" {
			t.Errorf("answered %v", a.got)
		}
		r.lock()
		time.Sleep(2 * time.Second)
		if a.all() != "[b-1 a-1]" {
			t.Errorf("answered %v", a.got)
		}
		stop(l)
		nothingKept(t, l)
	})
}

// Items that come for a locked key stay behind it, in their order, wherever they stood
// when the key got locked.
func TestLockedKeyKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rows{takes: 50 * time.Millisecond}
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 2, Timeout: 5 * time.Second})
		submitAll(t, l, &a, "k-1", "x", "k-2", "y", "k-3") // while the first is under way
		time.Sleep(time.Second)
		submitAll(t, l, &a, "k-4", "z")
		r.lock()
		time.Sleep(time.Second)
		stop(l)
		var order []string
		for _, item := range r.done {
			if rowOf(item) == "k" {
				order = append(order, item)
			}
		}
		if fmt.Sprint(order) != "[k-1 k-2 k-3 k-4]" || len(a.got) != 7 {
			t.Errorf("carried out %v, answered %v", order, a.got)
		}
		nothingKept(t, l)
	})
}

// A row that is locked again as soon as one item was done.
func TestLockedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rows{relock: "k-1"}
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 2, Timeout: 5 * time.Second})
		submitAll(t, l, &a, "k-1", "k-2", "k-3", "x")
		r.lock()
		time.Sleep(time.Second)
		if got := a.all(); got != "[x k-1]" {
			t.Errorf("answered %v", got)
		}
		r.lock()
		time.Sleep(time.Second)
		stop(l)
		if got := a.all(); got != "[x k-1 k-2 k-3]" {
			t.Errorf("answered %v", got)
		}
		nothingKept(t, l)
	})
}

// Stop waits for locked items while it may, and answers them when it gives up.
func TestStopDuringSlowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.lock("k", "l")
		var a answers
		l := slowLane(&r, Config{Max: 10, Room: 10, Timeout: time.Hour})
		submitAll(t, l, &a, "k-1", "k-2", "l-1")
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began := time.Now()
		time.AfterFunc(time.Second, func() { r.lock("k") })
		l.Stop(ctx)
		if time.Since(began) != 2*time.Second || a.all() != "[l-1]" || len(a.err) != 2 {
			t.Errorf("answered %v, %v after %s", a.got, a.err, time.Since(began))
		}
		for _, err := range a.err {
			if !errors.Is(err, ErrStopped) {
				t.Errorf("told %v", err)
			}
		}
		nothingKept(t, l)
	})
}

// A locked item takes its room until it is answered.
func TestLockedItemsTakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 10, Room: 2, Timeout: time.Hour})
		submitAll(t, l, &a, "k-1", "k-2")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Submit(ctx, "x", a.done); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told %v", err)
		}
		r.lock()
		if err := l.Submit(context.Background(), "x", a.done); err != nil {
			t.Errorf("told %v", err)
		}
		stop(l)
		if len(a.got) != 3 {
			t.Errorf("answered %v", a.got)
		}
		nothingKept(t, l)
	})
}

// However many keys are locked, none is answered long after the timeout, and the one that
// has come free does not wait for the others.
func TestManyLockedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, oneWait = time.Second, 100 * time.Millisecond
		var freed atomic.Bool
		ask := func(_ context.Context, keys []int) ([]bool, error) {
			time.Sleep(oneWait)
			answers := make([]bool, len(keys))
			for i, key := range keys {
				answers[i] = key != 0 || !freed.Load()
			}
			return answers, nil
		}
		l := New(Config{Max: 1000, Timeout: timeout}, strconv.Itoa, ask, func(locked bool) bool { return locked })
		began, took := time.Now(), make(chan time.Duration, 500)
		free := make(chan time.Duration, 1)
		for key := range cap(took) {
			err := l.Submit(t.Context(), key, func(locked bool, err error) {
				if !locked && err == nil {
					free <- time.Since(began)
				}
				took <- time.Since(began)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(oneWait)
		freed.Store(true)
		for range cap(took) {
			if d := <-took; d > timeout+againMax+2*oneWait {
				t.Fatalf("answered after %s", d)
			}
		}
		if d := <-free; d > 6*oneWait {
			t.Errorf("the freed key was had after %s", d)
		}
		l.Stop(t.Context())
	})
}

// A store that does not answer does not hold up the items behind a locked one.
func TestLockedThenOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, keys = time.Second, 20
		var away atomic.Bool
		ask := func(ctx context.Context, keys []int) ([]bool, error) {
			if away.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return slices.Repeat([]bool{true}, len(keys)), nil
		}
		l := New(Config{Max: 1000, Timeout: timeout}, strconv.Itoa, ask, func(locked bool) bool { return locked })
		began, done := time.Now(), make(chan struct{}, keys)
		for key := range keys {
			if err := l.Submit(t.Context(), key, func(bool, error) { done <- struct{}{} }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		away.Store(true)
		for range keys {
			<-done
		}
		if took := time.Since(began); took > 3*timeout {
			t.Errorf("answered after %s", took)
		}
		l.Stop(t.Context())
	})
}

// A caller that runs its item itself does not wait for a locked row, and overtakes none.
func TestDoWithALockedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rows{takes: 10 * time.Millisecond}
		r.lock("locked")
		var a answers
		l := slowLane(&r, Config{Max: 100, Room: 1000, Timeout: 5 * time.Second})
		began := time.Now()
		for _, item := range []string{"locked-1", "locked-2"} {
			if err := l.Do(context.Background(), item, a.done); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != r.takes || len(a.got) != 0 {
			t.Errorf("%v after %s", a.got, took)
		}
		r.lock()
		time.Sleep(2 * againMax)
		if got := a.all(); got != "[locked-1 locked-2]" {
			t.Errorf("answered %s", got)
		}
		nothingKept(t, l)
		stop(l)
	})
}

// Where items of one key share a batch, they do so in their order; once they are locked,
// they are asked for one by one, still in it, and what comes later waits behind them.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rows{takes: 10 * time.Millisecond}
		var mu sync.Mutex
		var batches [][]string
		goOn := make(chan struct{})
		l := New(Config{Max: 10, Timeout: time.Minute, PerKey: 10}, rowOf, func(ctx context.Context, items []string) ([]string, error) {
			<-goOn
			mu.Lock()
			batches = append(batches, slices.Clone(items))
			mu.Unlock()
			return r.flush(ctx, items)
		}, func(answer string) bool { return answer == blocked })
		defer l.Stop(context.Background())
		var answered []string
		submit := func(items ...string) { submitInOrder(t, l, &mu, &answered, items...) }
		r.lock()
		submit("c")
		synctest.Wait() // it is under way, and the others come meanwhile
		submit("a-1", "a-2", "b-1", "a-3")
		close(goOn)
		synctest.Wait()
		if want := [][]string{{"c"}, {"a-1", "a-2", "b-1", "a-3"}}; !slices.EqualFunc(batches, want, slices.Equal) {
			t.Errorf("batches %q, want %q", batches, want)
		}
		r.lock("a")
		submit("a-4", "a-5", "b-2")
		time.Sleep(15 * time.Millisecond)
		submit("a-6", "b-3")
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []string{"c", "a-1", "a-2", "b-1", "a-3", "b-2", "b-3"}; !slices.Equal(answered, want) {
			t.Errorf("answered %q while a is locked, want %q", answered, want)
		}
		r.lock()
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := answered[7:], []string{"a-4", "a-5", "a-6"}; !slices.Equal(got, want) {
			t.Errorf("then %q, want %q", got, want)
		}
	})
}

// submitInOrder submits items, and appends their answers to answered, under mu, as they come.
func submitInOrder(t *testing.T, l *Lane[string, string], mu *sync.Mutex, answered *[]string, items ...string) {
	t.Helper()
	for _, item := range items {
		if err := l.Submit(t.Context(), item, func(answer string, err error) {
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			*answered = append(*answered, answer)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// If an item's row is locked, the queued items of its key wait behind it, and then those that are not queued yet.
func TestLockedKeyKeepsTheOrderOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rows{takes: 10 * time.Millisecond}
		l := New(Config{Max: 10, Timeout: time.Minute, PerKey: 2}, rowOf, r.flush, func(answer string) bool { return answer == blocked })
		defer l.Stop(context.Background())
		var mu sync.Mutex
		var answered []string
		r.lock("a")
		want := []string{"a-1", "a-2", "a-3", "a-4", "a-5", "a-6"}
		submitInOrder(t, l, &mu, &answered, want[0])
		synctest.Wait() // the first is under way, and the others come meanwhile
		submitInOrder(t, l, &mu, &answered, want[1:]...)
		time.Sleep(time.Second)
		r.lock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(answered, want) {
			t.Errorf("answered %q, want %q", answered, want)
		}
	})
}
