// Package fleet counts the contents of the whole database for the metrics. One sidecar is elected to count.
// A sidecar is a candidate only while its metrics are read.
package fleet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// term is the length of an election's term.
	term = 5 * time.Minute
	// interval is the least pause between two counts. The pause is restShare times the count's duration if
	// that is longer, so the load is at most 1%.
	interval  = time.Minute
	restShare = 100
	// watchedFor is how long counting continues after a read of the metrics.
	watchedFor = 10 * time.Minute
	// age is after how many intervals a count is no longer shown.
	age = 3
)

// Store is the part of a [store.Store] that a Counter needs.
type Store interface {
	store.Census
	store.Elector
}

// Counter elects this sidecar, and counts while it is elected.
type Counter struct {
	store   Store
	clk     clock.Clock
	log     *slog.Logger
	timeout time.Duration // of an operation of the store
	ctx     context.Context
	spawn   func(func()) bool

	mu      sync.Mutex
	running bool
	// looked is when the metrics were last read.
	looked time.Time
	// until is when this sidecar's term ends; zero: not elected.
	until time.Time
	// suspended is how long the machine had been suspended at the election, because the store's clock
	// continues during a suspension.
	suspended time.Duration
	// known may be shown until knownUntil.
	known      store.Stats
	knownUntil time.Time

	// The following fields belong to the loop.

	// ours: the store may believe that this sidecar is elected. elected: it was, and the log says so.
	ours    bool
	elected bool
	countAt time.Time
	// failing: the last count failed, and was logged.
	failing bool
}

// New makes a counter that counts until ctx ends. spawn runs it.
func New(ctx context.Context, cfg types.Config, st Store, spawn func(func()) bool) *Counter {
	return &Counter{store: st, clk: cfg.Clock, log: cfg.Logger, timeout: cfg.StoreTimeout, ctx: ctx, spawn: spawn}
}

func (f *Counter) shownFor(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.knownUntil.Sub(now))
}

// Current returns the count if this sidecar is elected, and starts the loop. It does not block.
func (f *Counter) Current() (store.Stats, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked = f.clk.Now()
	if !f.running {
		f.running = f.spawn(func() { f.run(f.ctx) })
	}
	if !f.looked.Before(f.until) || !f.looked.Before(f.knownUntil) || f.clk.Suspended(f.looked)-f.suspended >= clock.SuspensionLimit {
		return store.Stats{}, false
	}
	return f.known, true
}

// run takes part in elections, and counts while elected, until the metrics are no longer read or ctx ends.
func (f *Counter) run(ctx context.Context) {
	why := "its metrics are not read any more"
	for f.watched() {
		if clock.Rest(ctx, f.round(ctx)) != nil {
			why = "it stops"
			break
		}
	}
	f.resign(why)
}

func (f *Counter) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clk.Now().Before(f.looked.Add(watchedFor))
}

// resign gives up an election that was won, so that another sidecar need not wait for the end of the term.
func (f *Counter) resign(why string) {
	f.hold(time.Time{}, 0)
	f.notElected("it resigns, because " + why)
	if f.ours {
		ctx, cancel := f.within(context.Background())
		defer cancel()
		if _, err := f.store.Elect(ctx, 0); err != nil {
			err = types.WithCause(ctx, err)
			f.log.Debug("this sidecar was elected to count all locks, and could not resign", "error", err)
		}
	}
	f.ours, f.countAt = false, time.Time{}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
}

// round takes part in the election, counts if due, and returns the time until the next round.
func (f *Counter) round(ctx context.Context) time.Duration {
	left, err := f.elect(ctx)
	if err != nil {
		f.log.Debug("could not choose the sidecar that counts all locks, trying again later", "error", err)
		return clock.Jittered(interval)
	}
	if !f.ours { // the others must not all try again at the same moment
		// A time longer than a term comes from a store whose clock was wrong.
		return min(max(left, 0), term) + rand.N(interval)
	}
	if !f.clk.Now().Before(f.countAt) {
		f.count(ctx)
	}
	// The election is renewed during the pause between counts.
	return min(max(f.countAt.Sub(f.clk.Now()), 0), term/2)
}

// elect returns how long another sidecar's term lasts, if this one is not elected.
func (f *Counter) elect(ctx context.Context) (left time.Duration, err error) {
	ctx, cancel := f.within(ctx)
	defer cancel()
	sent := f.clk.Now()
	suspended := f.clk.Suspended(sent)
	election, err := f.store.Elect(ctx, term)
	err = types.WithCause(ctx, err)
	switch {
	case err != nil:
		f.ours = f.ours || store.OutcomeUnknown(err)
		if f.termIsOver() {
			f.notElected("its term is over, and was not prolonged", "error", err)
		}
	case election.Elected:
		f.ours = true
		f.hold(sent.Add(term), suspended)
		if !f.elected {
			f.elected = true
			f.log.Info("this sidecar is elected: it counts all locks for the metrics of the fleet", "term", term.String())
		}
	default:
		f.ours = false
		f.hold(time.Time{}, 0)
		f.notElected("another sidecar is")
	}
	return election.Left, err
}

// notElected logs, once, that this sidecar is elected no more.
func (f *Counter) notElected(why string, attrs ...any) {
	if f.elected {
		f.elected = false
		f.log.Info("this sidecar is not elected any more: it does not count all locks", append(attrs, "reason", why)...)
	}
}

// within limits one operation of the store: see types.WithCause.
func (f *Counter) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, f.timeout, types.NoAnswer(f.timeout))
}

func (f *Counter) termIsOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.clk.Now().Before(f.until)
}

// hold records until when this sidecar is elected, unless the machine is suspended.
func (f *Counter) hold(until time.Time, suspended time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.suspended = until, suspended
	if until.IsZero() {
		f.known, f.knownUntil = store.Stats{}, time.Time{}
	}
}

func (f *Counter) count(ctx context.Context) {
	ctx, cancel := f.within(ctx)
	defer cancel()
	began := f.clk.Now()
	stats, err := f.store.Stats(ctx)
	err = types.WithCause(ctx, err)
	ended := f.clk.Now()
	pause := max(interval, restShare*ended.Sub(began))
	f.countAt = ended.Add(pause)
	if err != nil {
		level := slog.LevelDebug
		if !f.failing {
			level = slog.LevelWarn
		}
		f.failing = true
		f.log.Log(ctx, level, "the fleet's locks cannot be counted, so its metrics become old, and are missing after a while",
			"error", err, "shown_for", f.shownFor(ended).String(), "next_try_in", pause.String())
		return
	}
	if f.failing {
		f.failing = false
		f.log.Info("the fleet's locks are counted again")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known, f.knownUntil = stats, ended.Add(age*pause)
}
