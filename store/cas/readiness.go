package cas

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

var errEnded = errors.New("the store is stopped")

// Readiness says whether the servers of a backend can be used. It checks them once at the start, then until they can be used,
// after each doubt, and regularly. Backends embed it, so they also warn once and have details through it:
//
//	type Server struct {
//		cas.Readiness // its Ready and Details are the backends'
//		…
//	}
//
//	func NewServer(config Config) (*Server, error) { // connects to nothing
//		b := &Server{Readiness: cas.Readiness{Name: "store/mine", Log: config.Logger, Limit: config.Timeout}}
//		b.Init(b.check, errors.New("the server has not been reached yet"))
//		return b, nil
//	}
//
//	func (b *Server) Start(ctx context.Context) error {
//		return b.Readiness.Start(ctx, b.listen) // and what else runs in the background
//	}
//
//	func (b *Server) check(ctx context.Context) error // asks the server, and says what an operator must mend
//
//	func (b *Server) Stop() {
//		b.Readiness.Stop() // ends and awaits listen
//		b.connections.Close()
//	}
//
// Each request first asks Ready, so nothing is sent before the first check or after the end, and calls Doubt if it failed in a way that
// a check may explain.
type Readiness struct {
	// Name is that of the backend's package.
	Name string
	// Log gets each change.
	Log *slog.Logger
	// Limit is the longest time of a check.
	Limit time.Duration
	// Every is the time between two checks while nothing is wrong. With zero, there are none.
	Every time.Duration

	check  func(ctx context.Context) error
	doubts chan struct{}
	said   map[string]bool // warnings that were logged; of the goroutine that checks

	mu      sync.Mutex
	why     error // why the servers cannot be used
	details map[string]string
	end     context.CancelFunc
	work    sync.WaitGroup
}

// Init is called when the backend is made. check says why the servers cannot be used, and why says so before the first check.
func (r *Readiness) Init(check func(ctx context.Context) error, why error) {
	r.check, r.why, r.doubts, r.said = check, why, make(chan struct{}, 1), map[string]bool{}
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
}

// Start starts the other background work of the backend, checks the servers once, and goes on with that until Stop.
func (r *Readiness) Start(ctx context.Context, others ...func(ctx context.Context)) error {
	running, end := context.WithCancel(context.Background())
	r.mu.Lock()
	if r.end != nil || errors.Is(r.why, errEnded) {
		r.mu.Unlock()
		end()
		return errors.New(r.Name + ": started twice, or stopped")
	}
	r.end = end
	for _, other := range others {
		r.work.Go(func() { other(running) })
	}
	r.work.Add(1) // the first check
	defer r.work.Done()
	r.mu.Unlock()
	first, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	defer context.AfterFunc(running, cancel)()
	r.Become(r.check(first))
	r.work.Go(func() { r.keepChecking(running) })
	return nil
}

// Stop ends the background work and the first check, and waits for them. It reports whether there was any.
func (r *Readiness) Stop() bool {
	r.mu.Lock()
	end, ended := r.end, errors.Is(r.why, errEnded)
	r.why = errEnded
	r.mu.Unlock()
	first := end != nil && !ended
	if first {
		end()
	}
	r.work.Wait()
	return first
}

// Ready implements [Backend].
func (r *Readiness) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil {
		return nil
	}
	return &store.Error{Op: "ready", Err: r.why}
}

// Become notes why the servers cannot be used, or that they can, and logs each change.
func (r *Readiness) Become(why error) {
	r.mu.Lock()
	was := r.why
	if errors.Is(was, errEnded) {
		r.mu.Unlock()
		return
	}
	r.why = why
	r.mu.Unlock()
	switch {
	case why == nil && was != nil:
		r.Log.Info("the store is ready")
	case why != nil && (was == nil || was.Error() != why.Error()):
		r.Log.Warn("the store is not ready", "error", why)
	}
}

// Doubt requests a check of the servers, and returns at once.
func (r *Readiness) Doubt() {
	select {
	case r.doubts <- struct{}{}:
	default:
	}
}

// keepChecking checks the servers until ctx ends.
func (r *Readiness) keepChecking(ctx context.Context) {
	var failures Backoff
	for {
		var next <-chan time.Time
		doubts := r.doubts
		if r.Ready() != nil {
			next, doubts = time.After(failures.Next()), nil
		} else if failures.Reset(); r.Every > 0 {
			next = time.After(r.Every)
		}
		select {
		case <-ctx.Done():
			return
		case <-doubts:
		case <-next:
		}
		limited, cancel := context.WithTimeout(ctx, r.Limit)
		err := r.check(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if r.Become(err); err != nil {
			continue
		}
		if !Pause(ctx, FirstPause) { // many requests may fail for another reason, and each is a doubt
			return
		}
	}
}

// WarnOnce logs a warning if a check has not logged it before. Only checks may call it.
func (r *Readiness) WarnOnce(about, text string, attrs ...slog.Attr) {
	if !r.said[about] {
		r.said[about] = true
		r.Log.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...) //nolint:sloglint // constants of the callers
	}
}

// Details implements [store.Described].
func (r *Readiness) Details() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.details)
}

// Tell replaces the details, and returns the earlier ones.
func (r *Readiness) Tell(details map[string]string) (before map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.details = r.details, details
	return before
}
