package lease

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
)

// The pauses between the tries of background work grow from one to the other.
const (
	retryPauseMin = 50 * time.Millisecond
	retryPauseMax = 5 * time.Second
)

// background is the goroutines of a manager: all are waited for at its end, and
// none begins afterwards.
type background struct {
	mu     sync.Mutex
	joined bool
	wg     sync.WaitGroup
}

// spawn runs f in a goroutine. It reports false, without running it, when the
// manager has stopped.
func (bg *background) spawn(f func()) bool {
	bg.mu.Lock()
	defer bg.mu.Unlock()
	if bg.joined {
		return false
	}
	bg.wg.Go(f)
	return true
}

// join refuses further goroutines and waits for those that run.
func (bg *background) join() {
	bg.mu.Lock()
	bg.joined = true
	bg.mu.Unlock()
	bg.wg.Wait()
}

// retries are what is tried again after a pause, until the manager stops.
type retries struct {
	mu      sync.Mutex
	stopped bool
	pending map[*retry]struct{}
}

type retry struct {
	f     func()
	timer *time.Timer
}

// after runs f after a pause. It reports false, and f never runs, when the
// manager has stopped.
func (rt *retries) after(pause time.Duration, f func()) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.stopped {
		return false
	}
	if rt.pending == nil {
		rt.pending = make(map[*retry]struct{})
	}
	r := &retry{f: f}
	r.timer = time.AfterFunc(pause, func() {
		if rt.take(r) {
			f()
		}
	})
	rt.pending[r] = struct{}{}
	return true
}

// take takes a retry: whoever does runs it.
func (rt *retries) take(r *retry) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	_, ok := rt.pending[r]
	delete(rt.pending, r)
	return ok
}

// hurry runs what is pending now, for the last time.
func (rt *retries) hurry() {
	rt.mu.Lock()
	rt.stopped = true
	pending := rt.pending
	rt.pending = nil
	rt.mu.Unlock()
	for r := range pending {
		r.timer.Stop()
		r.f()
	}
}

// inBackground tries something again and again, with growing pauses, until it
// succeeds, until it has been tried for so long, or until the manager stops. Then
// it calls settled.
func (m *Manager) inBackground(try func(context.Context) bool, limit time.Duration, settled func()) {
	ok := m.spawn(func() {
		defer settled()
		until := m.clk.Now().Add(limit)
		for pause := retryPauseMin; ; pause = min(2*pause, retryPauseMax) {
			ctx, cancel := context.WithTimeout(m.ctx, m.cfg.StoreTimeout)
			done := try(ctx)
			cancel()
			if done || m.clk.Now().After(until) {
				return
			}
			timer := time.NewTimer(clock.Jittered(pause))
			select {
			case <-timer.C:
			case <-m.ctx.Done():
				timer.Stop()
				return
			}
		}
	})
	if !ok {
		settled()
	}
}
