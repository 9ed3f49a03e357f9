package batcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is an operation that remembers its batches and can be held up.
type recorder struct {
	mu      sync.Mutex
	batches [][]string
	gate    chan struct{}
	err     error
}

func (r *recorder) flush(ctx context.Context, items []string) ([]string, error) {
	r.mu.Lock()
	r.batches = append(r.batches, slices.Clone(items))
	gate, err := r.gate, r.err
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	return items, nil
}

// hold holds up the operations from now on, until the returned function is called.
func (r *recorder) hold() (proceed func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate = gate
	return func() {
		r.mu.Lock()
		r.gate = nil
		r.mu.Unlock()
		close(gate)
	}
}

// the first letter is the key.
func key(item string) string { return item[:1] }

type answers struct {
	mu  sync.Mutex
	got []string
	err []error
}

func (a *answers) done(r string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.err = append(a.err, err)
		return
	}
	a.got = append(a.got, r)
}

func submitAll(t *testing.T, l *Lane[string, string], a *answers, items ...string) {
	t.Helper()
	for _, item := range items {
		if err := l.Submit(context.Background(), item, a.done); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
}

func stop(l interface{ Stop(context.Context) }) { l.Stop(context.Background()) }

func (r *recorder) want(t *testing.T, batches ...string) {
	t.Helper()
	if got := fmt.Sprint(r.batches); got != fmt.Sprint(batches) {
		t.Errorf("batches %s, want %s", got, batches)
	}
}

// Items that arrive while an operation runs form the next one. A lone item waits for
// nothing.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 10, Timeout: time.Second}, key, r.flush, nil)
		began := time.Now()
		submitAll(t, l, &a, "a")
		proceed := r.hold()
		submitAll(t, l, &a, "b", "c", "d", "e")
		proceed()
		synctest.Wait()
		submitAll(t, l, &a, "f")
		r.want(t, "[a]", "[b]", "[c d e]", "[f]")
		if len(a.got) != 6 || time.Since(began) != 0 {
			t.Errorf("answered %v after %s", a.got, time.Since(began))
		}
		stop(l)
	})
}

func TestMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 2, Timeout: time.Second}, key, r.flush, nil)
		proceed := r.hold()
		submitAll(t, l, &a, "a", "b", "c", "d", "e", "f")
		proceed()
		stop(l)
		r.want(t, "[a]", "[b c]", "[d e]", "[f]")
	})
}

// A key stands once in a batch, and its items keep their order.
func TestSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 3, Timeout: time.Second}, key, r.flush, nil)
		proceed := r.hold()
		submitAll(t, l, &a, "x", "a1", "a2", "b1", "a3", "b2", "c1", "d1")
		proceed()
		stop(l)
		r.want(t, "[x]", "[a1 b1 c1]", "[d1 a2 b2]", "[a3]")
	})
}

func TestManyCallers(t *testing.T) {
	t.Parallel()
	const callers, each = 20, 200
	last := map[string]int{}
	l := New(Config{Max: 7, Room: 10, Timeout: time.Minute}, key, func(_ context.Context, items []string) ([]string, error) {
		seen := map[string]bool{}
		for _, item := range items {
			k := key(item)
			n, _ := strconv.Atoi(item[1:])
			if seen[k] || n != last[k]+1 {
				return nil, fmt.Errorf("%s after %d in %v", item, last[k], items)
			}
			seen[k], last[k] = true, n
		}
		return items, nil
	}, nil)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				item := string(rune('a'+c)) + strconv.Itoa(i+1)
				err := l.Submit(context.Background(), item, func(r string, err error) {
					if err != nil || r != item {
						t.Errorf("%s was answered %s, %v", item, r, err)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stop(l)
	for k, n := range last {
		if n != each {
			t.Errorf("%s: %d", k, n)
		}
	}
}

// A full lane that refuses makes nobody wait, and accepts what it has room for.
func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		refuse := make(chan struct{})
		l := New(Config{Max: 1, Room: 2, Refuse: refuse, Timeout: time.Hour}, key, r.flush, nil)
		proceed := r.hold()
		submitAll(t, l, &a, "a", "b")
		waiting := make(chan error, 1)
		go func() { waiting <- l.Submit(context.Background(), "c", a.done) }()
		synctest.Wait()
		close(refuse)
		if err := <-waiting; !errors.Is(err, ErrStopped) {
			t.Errorf("told %v", err)
		}
		proceed()
		synctest.Wait()
		submitAll(t, l, &a, "d")
		stop(l)
		r.want(t, "[a]", "[b]", "[d]")
	})
}

// A full lane makes its callers wait, and those that leave are not accepted.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 1, Room: 2, Timeout: time.Hour}, key, r.flush, nil)
		proceed := r.hold()
		submitAll(t, l, &a, "a", "b")
		why := errors.New("gone")
		ctx, cancel := context.WithCancelCause(context.Background())
		waiting := make(chan error, 2)
		go func() { waiting <- l.Submit(ctx, "c", a.done) }()
		synctest.Wait()
		go func() { waiting <- l.Submit(context.Background(), "d", a.done) }()
		synctest.Wait()
		if len(waiting) != 0 {
			t.Fatal("accepted beyond the room")
		}
		cancel(why)
		if err := <-waiting; !errors.Is(err, why) {
			t.Errorf("told %v", err)
		}
		proceed()
		if err := <-waiting; err != nil {
			t.Errorf("told %v", err)
		}
		stop(l)
		r.want(t, "[a]", "[b]", "[d]")
	})
}

// An accepted item is carried out and answered though its caller has left.
func TestAbandonedCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 2, Timeout: time.Hour}, key, r.flush, nil)
		proceed := r.hold()
		ctx, cancel := context.WithCancel(context.Background())
		for _, item := range []string{"a", "b", "c"} {
			if err := l.Submit(ctx, item, a.done); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		proceed()
		stop(l)
		r.want(t, "[a]", "[b c]")
		if len(a.got) != 3 {
			t.Errorf("answered %v", a.got)
		}
	})
}

func TestErrorsAndTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recorder{err: errors.New("broken")}
		var a answers
		l := New(Config{Max: 2, Timeout: time.Second}, key, r.flush, nil)
		submitAll(t, l, &a, "a")
		r.hold() // for ever
		began := time.Now()
		submitAll(t, l, &a, "b", "c", "d")
		stop(l)
		if len(a.err) != 4 || len(a.got) != 0 || time.Since(began) != 2*time.Second {
			t.Errorf("answered %v, %v after %s", a.got, a.err, time.Since(began))
		}
	})
}

func TestWrongNumberOfAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		l := New(Config{Max: 2, Timeout: time.Second}, key, func(context.Context, []string) ([]string, error) { return nil, nil }, nil)
		submitAll(t, l, &a, "a")
		stop(l)
		if len(a.err) != 1 {
			t.Errorf("answered %v, %v", a.got, a.err)
		}
	})
}

// Stop answers all that was accepted, those that wait for room are refused.
func TestStopAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 1, Room: 3, Timeout: time.Hour}, key, r.flush, nil)
		proceed := r.hold()
		submitAll(t, l, &a, "a", "b", "c")
		waiting := make(chan error, 1)
		go func() { waiting <- l.Submit(context.Background(), "d", a.done) }()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			stop(l)
			stop(l)
			close(stopped)
		}()
		synctest.Wait()
		proceed()
		<-stopped
		if err := <-waiting; !errors.Is(err, ErrStopped) {
			t.Errorf("told %v", err)
		}
		if err := l.Submit(context.Background(), "e", a.done); !errors.Is(err, ErrStopped) {
			t.Errorf("told %v", err)
		}
		if len(a.got) != 3 {
			t.Errorf("answered %v", a.got)
		}
	})
}

// If Stop gives up, items that have not begun get an answer, too.
func TestStopGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 1, Timeout: time.Hour}, key, r.flush, nil)
		r.hold()
		submitAll(t, l, &a, "a", "b", "c")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		l.Stop(ctx)
		if time.Since(began) != time.Second || len(a.err) != 3 || len(r.batches) != 1 {
			t.Fatalf("answered %v after %s, carried out %v", a.err, time.Since(began), r.batches)
		}
		if errors.Is(a.err[0], ErrStopped) || !errors.Is(a.err[1], ErrStopped) || !errors.Is(a.err[2], ErrStopped) {
			t.Errorf("answered %v", a.err)
		}
	})
}

func TestInline(t *testing.T) {
	var r recorder
	testInline(t, New(Config{Max: 1, Room: 1, Timeout: time.Second, Inline: true}, key, r.flush, nil))
}

// TestAlone: what is asked instead of flush gets single items, and none after Stop.
func TestAlone(t *testing.T) {
	flush := func(context.Context, []string) ([]string, error) { panic("asked for several") }
	l := New(Config{Inline: true}, key, flush, nil)
	broken, asked := errors.New("broken"), 0
	l.Alone(func(_ context.Context, item string) (string, error) {
		if asked++; item == "f" {
			return item, broken
		}
		return item, nil
	})
	told := func(want error) func(string, error) {
		return func(_ string, err error) {
			if !errors.Is(err, want) {
				t.Errorf("told %v, want %v", err, want)
			}
		}
	}
	if err := l.Submit(context.Background(), "f", told(broken)); err != nil {
		t.Error(err)
	}
	testInline(t, l)
	if asked != 6 {
		t.Errorf("asked %d times", asked)
	}
	l.giveUp()
	l.work.Add(1)
	l.alone("g", told(ErrStopped)) // accepted before Stop gave up
	if asked != 6 {
		t.Error("asked after Stop gave up")
	}
}

func testInline(t *testing.T, l *Lane[string, string]) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		for _, item := range []string{"a", "a", "b"} {
			if err := l.Submit(context.Background(), item, a.done); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(a.got) != "[a a b]" { // answered before Submit returned
			t.Errorf("answered %v", a.got)
		}
		// An answer may submit to the same lane.
		err := l.Submit(context.Background(), "c", func(string, error) {
			_ = l.Submit(context.Background(), "d", a.done)
		})
		if err != nil || fmt.Sprint(a.got) != "[a a b d]" {
			t.Errorf("answered %v, %v", a.got, err)
		}
		stop(l)
		if err := l.Submit(context.Background(), "e", a.done); !errors.Is(err, ErrStopped) {
			t.Errorf("told %v", err)
		}
	})
}

func BenchmarkLane(b *testing.B) {
	for _, same := range []bool{false, true} {
		b.Run(fmt.Sprintf("same key %v", same), func(b *testing.B) {
			l := New(Config{Max: 1000, Timeout: time.Second}, func(i int) string {
				if same {
					return "k"
				}
				return strconv.Itoa(i)
			}, func(_ context.Context, items []int) ([]int, error) { return items, nil }, nil)
			defer stop(l)
			var wg sync.WaitGroup
			for i := range b.N {
				wg.Add(1)
				if err := l.Submit(context.Background(), i, func(int, error) { wg.Done() }); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
		})
	}
}

// If an item is alone, Do runs its operation in the caller's goroutine. Items that arrive meanwhile
// wait only until this operation ends.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var mine, others answers
		l := New(Config{Max: 10, Timeout: time.Second}, key, r.flush, nil)
		do := func(item string) {
			if err := l.Do(context.Background(), item, mine.done); err != nil {
				t.Error(err)
			}
		}
		do("a")
		if len(mine.got) != 1 {
			t.Error("Do returned before the answer was there")
		}
		proceed := r.hold()
		go do("b1")
		synctest.Wait()
		submitAll(t, l, &others, "c", "b2")
		go do("d") // not idle: it goes with the others
		synctest.Wait()
		r.want(t, "[a]", "[b1]")
		proceed()
		synctest.Wait()
		r.want(t, "[a]", "[b1]", "[c b2 d]")
		if len(mine.got) != 3 || len(others.got) != 2 {
			t.Errorf("answered %v and %v", mine.got, others.got)
		}
		stop(l)
		if err := l.Do(context.Background(), "e", mine.done); !errors.Is(err, ErrStopped) {
			t.Errorf("after Stop: %v", err)
		}
	})
}

// Stop waits for who carries an item out itself, and can give up on it.
func TestStopDuringDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		var a answers
		l := New(Config{Max: 10, Timeout: time.Hour}, key, r.flush, nil)
		defer r.hold()()
		go func() { _ = l.Do(context.Background(), "a", a.done) }()
		synctest.Wait()
		submitAll(t, l, &a, "b")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		l.Stop(ctx)
		if len(a.err) != 2 || time.Since(began) != time.Second {
			t.Errorf("%v after %s", a.err, time.Since(began))
		}
	})
}
