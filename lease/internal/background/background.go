// Package background runs the work that outlives a call, until the manager stops.
package background

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
)

// The pauses between the tries of [Runner.Persist] grow up to pauseMax.
const (
	pauseMin = 50 * time.Millisecond
	pauseMax = 5 * time.Second
)

// Runner contains a manager's goroutines and later tries.
type Runner struct {
	ctx context.Context
	clk clock.Clock

	mu      sync.Mutex
	joined  bool // goroutines no longer begin
	hurried bool // later tries no longer wait
	pending map[*retry]struct{}
	wg      sync.WaitGroup
}

type retry struct {
	f     func()
	timer *time.Timer
}

// New makes a runner. Its Persist gives up when ctx ends.
func New(ctx context.Context, clk clock.Clock) *Runner {
	return &Runner{ctx: ctx, clk: clk, pending: make(map[*retry]struct{})}
}

// Spawn runs f in a goroutine. After Join, it returns false without running f.
func (r *Runner) Spawn(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joined {
		return false
	}
	r.wg.Go(f)
	return true
}

// Join refuses further goroutines and waits for the running ones.
func (r *Runner) Join() {
	r.mu.Lock()
	r.joined = true
	r.mu.Unlock()
	r.wg.Wait()
}

// After runs f after a pause. After Hurry, it returns false, and f never runs.
func (r *Runner) After(pause time.Duration, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hurried {
		return false
	}
	again := &retry{f: f}
	again.timer = time.AfterFunc(pause, func() {
		if r.take(again) {
			f()
		}
	})
	r.pending[again] = struct{}{}
	return true
}

// Retry runs f after the usual pause before another try: see After.
func (r *Runner) Retry(f func()) bool { return r.After(clock.Jittered(clock.RetryPause), f) }

// take reports whether the caller may run the retry.
func (r *Runner) take(again *retry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.pending[again]
	delete(r.pending, again)
	return ok
}

// Hurry runs all later tries now, as their last try.
func (r *Runner) Hurry() {
	r.mu.Lock()
	r.hurried = true
	pending := r.pending
	r.pending = nil
	r.mu.Unlock()
	for again := range pending {
		again.timer.Stop()
		again.f()
	}
}

// Persist repeats try with growing pauses, until it succeeds, limit is over, or the runner's context ends.
// Each try may take up to timeout. Then Persist calls settled.
func (r *Runner) Persist(try func(context.Context) bool, timeout, limit time.Duration, settled func()) {
	ok := r.Spawn(func() {
		defer settled()
		began := r.clk.Now()
		for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
			ctx, cancel := context.WithTimeout(r.ctx, timeout)
			done := try(ctx)
			cancel()
			if done || r.clk.Now().Sub(began) > limit || clock.Rest(r.ctx, clock.Jittered(pause)) != nil {
				return
			}
		}
	})
	if !ok {
		settled()
	}
}
