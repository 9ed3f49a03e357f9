package gather_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/store/internal/gather"
)

// rig is a lane whose requests end when the test says so.
type rig struct {
	*gather.Lane[int, string]
	mu    sync.Mutex
	asked [][]int
	ended []error // of the contexts, at the end of the requests
	gate  chan error
}

func newRig(pause time.Duration) *rig {
	r := &rig{gate: make(chan error)}
	r.Lane = gather.New(func() time.Duration { return pause }, func(ctx context.Context, items []int) (string, error) {
		r.mu.Lock()
		r.asked = append(r.asked, slices.Clone(items))
		r.mu.Unlock()
		select {
		case err := <-r.gate:
			return "done", err
		case <-ctx.Done():
			r.mu.Lock()
			r.ended = append(r.ended, ctx.Err())
			r.mu.Unlock()
			return "", ctx.Err()
		}
	})
	return r
}

type answer struct {
	text string
	err  error
}

func (r *rig) ask(ctx context.Context, items ...int) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		text, err := r.Ask(ctx, items)
		got <- answer{text, err}
	}()
	synctest.Wait()
	return got
}

func (r *rig) want(t *testing.T, asked ...[]int) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.EqualFunc(r.asked, asked, slices.Equal) {
		t.Errorf("asked %v, want %v", r.asked, asked)
	}
}

// Calls that come while a request is under way share the next one. If a request fails, all who share it get its error, and nobody else does.
func TestGathersDuringARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0)
		one := r.ask(t.Context(), 1)
		two, three := r.ask(t.Context(), 2), r.ask(t.Context(), 3, 4)
		r.want(t, []int{1})
		r.gate <- nil
		if a := <-one; a.text != "done" || a.err != nil {
			t.Errorf("the first caller got %v", a)
		}
		r.want(t, []int{1}, []int{2, 3, 4})
		failed := errors.New("failed")
		r.gate <- failed
		for _, got := range []<-chan answer{two, three} {
			if a := <-got; !errors.Is(a.err, failed) {
				t.Errorf("a caller of the failed request got %v", a)
			}
		}
		again := r.ask(t.Context(), 5)
		r.gate <- nil
		if a := <-again; a.err != nil {
			t.Errorf("after a failed request: %v", a)
		}
	})
}

// A lane with a pause puts calls of about the same time into one request.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(2 * time.Millisecond)
		one := r.ask(t.Context(), 1)
		time.Sleep(time.Millisecond)
		two := r.ask(t.Context(), 2)
		r.want(t)
		time.Sleep(time.Millisecond)
		r.want(t, []int{1, 2})
		r.gate <- nil
		<-one
		<-two
	})
}

// A caller that leaves takes nothing from the others. When all have left, the request is cancelled, or not begun.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(0)
		hurry, leave := context.WithCancel(t.Context())
		one := r.ask(t.Context(), 1)
		gone, stays := r.ask(hurry, 2), r.ask(t.Context(), 3)
		leave()
		var left *gather.LeftError
		if a := <-gone; !errors.As(a.err, &left) || left.Begun || !errors.Is(a.err, context.Canceled) {
			t.Errorf("who left before the request began got %v", a)
		}
		r.gate <- nil
		<-one
		r.gate <- nil
		if a := <-stays; a.err != nil {
			t.Errorf("who stayed got %v", a)
		}

		last, leave := context.WithCancel(t.Context())
		gone = r.ask(last, 4)
		leave()
		if a := <-gone; !errors.As(a.err, &left) || !left.Begun {
			t.Errorf("who left a request got %v", a)
		}
		synctest.Wait()
		if len(r.ended) != 1 {
			t.Errorf("%d requests were cancelled, want 1", len(r.ended))
		}

		one = r.ask(t.Context(), 5)
		last, leave = context.WithCancel(t.Context())
		gone = r.ask(last, 6)
		leave()
		<-gone
		joins := r.ask(t.Context(), 8) // what all have left so far
		r.gate <- nil
		<-one
		r.gate <- nil
		if a := <-joins; a.err != nil {
			t.Errorf("who joined a request that others had left got %v", a)
		}

		one = r.ask(t.Context(), 5)
		last, leave = context.WithCancel(t.Context())
		gone = r.ask(last, 6)
		leave()
		<-gone
		r.gate <- nil
		<-one
		synctest.Wait()
		if again := r.ask(t.Context(), 7); len(r.asked) == 0 || !slices.Equal(r.asked[len(r.asked)-1], []int{7}) {
			t.Errorf("asked %v: a request that nobody waited for was sent", r.asked)
			_ = again
		}
		r.gate <- nil
	})
}
