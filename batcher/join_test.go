package batcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// both are two joined lanes, and what their operations were.
type both struct {
	a, b        recorder
	together    []string
	left, right *Lane[string, string]
}

func join(cfg Config) *both {
	r := &both{}
	r.left, r.right = New(cfg, key, r.a.flush, nil), New(cfg, key, r.b.flush, nil)
	Join(r.left, r.right, func(ctx context.Context, as, bs []string) ([]string, error, []string, error) {
		r.together = append(r.together, fmt.Sprint(as, bs))
		as, bs = slices.Clone(as), slices.Clone(bs)
		_, failed := r.a.flush(ctx, as)
		_, failedToo := r.b.flush(ctx, bs)
		return as, failed, bs, failedToo
	})
	return r
}

func TestJoinedLanesShareAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := join(Config{Max: 10, Timeout: time.Minute, PerKey: 2})
		var a, b answers
		proceed := r.a.hold()
		submitAll(t, r.left, &a, "a1")
		submitAll(t, r.right, &b, "b1") // waits for the left lane
		submitAll(t, r.left, &a, "a2", "a3", "c1", "a4")
		submitAll(t, r.right, &b, "b2", "b3", "a1")
		r.b.want(t)
		proceed()
		synctest.Wait()
		submitAll(t, r.right, &b, "d1")
		if got := fmt.Sprint(r.together); got != "[[a2 a3 c1] [b1 b2 a1]]" && got != "[[a2 a3 c1] [b1 b2 a1] [a4] [b3]]" {
			t.Errorf("together: %s", got)
		}
		if fmt.Sprint(a.got) != "[a1 a2 a3 c1 a4]" || fmt.Sprint(b.got) != "[b1 b2 a1 b3 d1]" {
			t.Errorf("answers %s and %s", a.got, b.got)
		}
		stop(r.left)
		stop(r.right)
	})
}

// A caller's own operation counts, too: what comes meanwhile on the other lane is not forgotten.
func TestJoinedLanesGoOnAfterACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := join(Config{Max: 10, Timeout: time.Minute})
		var a, b answers
		proceed := r.a.hold()
		go func() { _ = r.left.Do(context.Background(), "a", a.done) }()
		synctest.Wait()
		submitAll(t, r.right, &b, "b")
		r.b.want(t)
		proceed()
		stop(r.left)
		stop(r.right)
		if len(a.got) != 1 || len(b.got) != 1 {
			t.Errorf("answers %s and %s", a.got, b.got)
		}
	})
}

func TestJoinedLanesHaveTheirOwnErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := join(Config{Max: 10, Timeout: time.Minute})
		var a, b answers
		proceed := r.a.hold()
		submitAll(t, r.left, &a, "a", "b")
		submitAll(t, r.right, &b, "c")
		r.b.err = errors.New("no")
		proceed()
		stop(r.left)
		stop(r.right)
		if len(r.together) != 1 || len(a.got) != 2 || len(a.err) != 0 || len(b.err) != 1 {
			t.Errorf("together %v, answers %v, errors %v and %v", r.together, a.got, a.err, b.err)
		}
	})
}

// If one lane's stop runs out of time, the shared operation ends, and the other lane goes on.
func TestStopOfAJoinedLane(t *testing.T) {
	for _, of := range []string{"left", "right"} {
		synctest.Test(t, func(t *testing.T) {
			r := join(Config{Max: 10, Timeout: time.Hour})
			var a, b answers
			first := r.a.hold()
			submitAll(t, r.left, &a, "a", "b")
			submitAll(t, r.right, &b, "c")
			second := r.b.hold()
			first()
			synctest.Wait() // now they share an operation, which hangs
			out, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			began := time.Now()
			other := r.left
			if of == "left" {
				other = r.right
				r.left.Stop(out)
			} else {
				r.right.Stop(out)
			}
			if took := time.Since(began); took != time.Second || len(r.together) != 1 {
				t.Errorf("%s: the stop took %v, together %v", of, took, r.together)
			}
			second()
			submitAll(t, other, &b, "d")
			if !slices.Contains(b.got, "d") {
				t.Errorf("%s: answers %v, errors %v", of, b.got, b.err)
			}
			stop(r.left)
			stop(r.right)
		})
	}
}

// Each lane has a span of its own for the shared operation.
func TestTraceOfJoinedLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spans []int
		ended := 0
		r := join(Config{Max: 10, Timeout: time.Minute, Trace: func(ctx context.Context, calls []context.Context) (context.Context, func(error)) {
			spans = append(spans, len(calls))
			return ctx, func(error) { ended++ }
		}})
		var a, b answers
		proceed := r.a.hold()
		submitAll(t, r.left, &a, "a", "b", "c")
		submitAll(t, r.right, &b, "d")
		proceed()
		stop(r.left)
		stop(r.right)
		if slices.Sort(spans); fmt.Sprint(spans) != "[1 1 2]" || ended != 3 {
			t.Errorf("spans of %v calls, %d ended", spans, ended)
		}
	})
}
