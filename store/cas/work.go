package cas

import (
	"context"
	"errors"
	"sync"

	"github.com/locksidecar/locksidecar/store"
)

// Work is the background work of one view of a [Server]. The zero value is ready.
type Work struct {
	mu    sync.Mutex
	end   context.CancelFunc
	ended bool
	work  sync.WaitGroup
}

// Start begins it. It fails if that happens twice, or after Stop. name is that of the package.
func (w *Work) Start(name string, do ...func(ctx context.Context)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil || w.ended {
		return errors.New(name + ": started twice, or stopped")
	}
	var ctx context.Context
	ctx, w.end = context.WithCancel(context.Background())
	for _, one := range do {
		w.work.Go(func() { one(ctx) })
	}
	return nil
}

// Ready is nil between Start and Stop.
func (w *Work) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
		return &store.Error{Op: "ready", Err: errEnded}
	case w.end == nil:
		return &store.Error{Op: "ready", Err: errNotStarted}
	}
	return nil
}

// Stop ends it and waits for that. It reports whether there was any.
func (w *Work) Stop() bool {
	w.mu.Lock()
	first := w.end != nil && !w.ended
	w.ended = true
	if first {
		w.end()
	}
	w.mu.Unlock()
	w.work.Wait()
	return first
}
