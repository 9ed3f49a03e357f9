package batcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type callKey struct{}

// callAs is a context that says which call it is of.
func callAs(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callKey{}, name)
}

// tracer writes down the operations that were traced, and how they ended.
type tracer struct {
	mu    sync.Mutex
	began []string
	ended []error
}

func (tr *tracer) trace(ctx context.Context, calls []context.Context) (context.Context, func(error)) {
	var names []string
	for _, c := range calls {
		names = append(names, fmt.Sprint(c.Value(callKey{})))
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.began = append(tr.began, fmt.Sprint(names))
	return callAs(ctx, fmt.Sprintf("operation %d", len(tr.began))), func(err error) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.ended = append(tr.ended, err)
	}
}

// Each operation is traced with the calls that it carries, in the order of its items,
// and runs under what the tracer made of the lane's context, not of a call's.
func TestTraceOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr tracer
		var ran []string
		refused := errors.New("refused")
		l := New(Config{Max: 10, Timeout: time.Second, Trace: tr.trace}, func(s string) string { return s },
			func(ctx context.Context, items []string) ([]string, error) {
				time.Sleep(time.Millisecond)
				ran = append(ran, fmt.Sprint(ctx.Value(callKey{}), items, ctx.Err()))
				if items[0] == "bad" {
					return nil, refused
				}
				return items, nil
			}, nil)
		left, leave := context.WithCancel(context.Background())
		submit := func(call, item string) {
			if err := l.Submit(callAs(left, call), item, func(string, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		submit("1", "a")
		synctest.Wait()
		submit("2", "b")
		submit("3", "c")
		submit("4", "b") // goes with a later batch
		leave()          // which is nothing to what runs
		time.Sleep(time.Second)
		submit("5", "bad")
		l.Stop(context.Background())
		if got := fmt.Sprint(tr.began); got != "[[1] [2 3] [4] [5]]" {
			t.Errorf("traced %s", got)
		}
		if got := fmt.Sprint(ran); got != "[operation 1[a] <nil> operation 2[b c] <nil> operation 3[b] <nil> operation 4[bad] <nil>]" {
			t.Errorf("ran %s", got)
		}
		if !slices.Equal(tr.ended, []error{nil, nil, nil, refused}) {
			t.Errorf("ended with %v", tr.ended)
		}
	})
}

// An item that is asked again, alone, is traced too.
func TestTraceOfALockedItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		var a answers
		var tr tracer
		r.lock("k")
		l := slowLane(&r, Config{Max: 10, Timeout: 5 * time.Second, Trace: tr.trace})
		for _, item := range []string{"k-1", "k-2"} {
			if err := l.Submit(callAs(context.Background(), item), item, a.done); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.lock()
		time.Sleep(time.Second)
		stop(l)
		if got := fmt.Sprint(tr.began); got != "[[k-1] [k-1] [k-2]]" || len(tr.ended) != 3 {
			t.Errorf("traced %s, ended %d", got, len(tr.ended))
		}
		nothingKept(t, l)
	})
}

// Nothing is kept of a call when nobody traces, and nothing is traced that takes no time.
func TestNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.lock("k")
		var a answers
		l := slowLane(&r, Config{Max: 10, Timeout: time.Second})
		submitAll(t, l, &a, "k-1", "k-2")
		l.mu.Lock()
		for _, e := range l.slow.lines["k"].entries {
			if e.ctx != nil {
				t.Errorf("%s keeps its call", e.item)
			}
		}
		l.mu.Unlock()
		stop(l)
		var tr tracer
		inline := New(Config{Max: 10, Inline: true, Trace: tr.trace}, rowOf, r.flush, nil)
		submitAll(t, inline, &a, "x-1")
		stop(inline)
		if len(tr.began) != 0 {
			t.Errorf("traced %v", tr.began)
		}
	})
}
