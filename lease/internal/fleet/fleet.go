// Package fleet counts what the whole database holds, for the metrics. One sidecar is elected to count. A
// sidecar stands for election only while its metrics are read.
package fleet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// Term is how long a sidecar is elected.
	Term = 5 * time.Minute
	// Interval is the least pause between two counts. It is restShare times the count's time if that is
	// longer: at most 1% load.
	Interval  = time.Minute
	restShare = 100
	// Watched is how long metrics are kept ready after a read.
	Watched = 10 * time.Minute
	// Age is after how many intervals metrics are too old to be shown.
	Age = 3
)

// Counter is a sidecar's part in the count.
type Counter struct {
	census  store.Census // nil if the engine cannot count
	clk     clock.Clock
	log     *slog.Logger
	timeout time.Duration // of an operation of the store
	ctx     context.Context
	spawn   func(func()) bool

	mu      sync.Mutex
	running bool
	// looked is when the metrics were last read.
	looked time.Time
	// until is when our election ends; zero: not elected.
	until time.Time
	// suspended is how long the machine was suspended by then: the store's clock goes on meanwhile.
	suspended time.Duration
	// known may be shown until knownUntil.
	known      observe.Fleet
	knownUntil time.Time

	// The fields below belong to the loop.

	// ours: the store may believe that this sidecar is elected.
	ours    bool
	countAt time.Time
	// failing: the last count failed, and was logged.
	failing bool
}

// New makes a counter that counts until ctx ends. spawn runs it.
func New(ctx context.Context, cfg types.Config, st store.Store, spawn func(func()) bool) *Counter {
	census, _ := st.(store.Census)
	return &Counter{census: census, clk: cfg.Clock, log: cfg.Logger, timeout: cfg.StoreTimeout, ctx: ctx, spawn: spawn}
}

func (f *Counter) shownFor(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.knownUntil.Sub(now))
}

// Current returns the metrics if they are ours to show, and starts the loop. It does not block.
func (f *Counter) Current() (observe.Fleet, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked = f.clk.Now()
	if !f.running && f.census != nil {
		f.running = f.spawn(func() { f.run(f.ctx) })
	}
	if !f.looked.Before(f.until) || !f.looked.Before(f.knownUntil) || f.clk.Suspended(f.looked)-f.suspended >= clock.SuspensionLimit {
		return observe.Fleet{}, false
	}
	return f.known, true
}

// run stands for election, and counts while elected, until nobody reads the metrics any more or ctx ends.
func (f *Counter) run(ctx context.Context) {
	defer f.rest()
	for f.watched() {
		timer := time.NewTimer(f.round(ctx))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (f *Counter) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clk.Now().Before(f.looked.Add(Watched))
}

// rest ends the election early: another sidecar whose metrics are read need not wait for the term's end.
func (f *Counter) rest() {
	f.hold(time.Time{}, 0)
	if f.ours {
		ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
		defer cancel()
		if _, err := f.census.Elect(ctx, 0); err != nil {
			f.log.Debug("the office of counting the fleet's locks is not given up, it ends by itself", "error", err)
		}
	}
	f.ours, f.countAt = false, time.Time{}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
}

// round stands for election, counts if due, and returns the time until the next round.
func (f *Counter) round(ctx context.Context) time.Duration {
	left, err := f.elect(ctx)
	if err != nil {
		f.log.Debug("no election of who counts the fleet's locks, trying again later", "error", err)
		return clock.Jittered(Interval)
	}
	if !f.ours { // the losers must not all come in the same moment
		// A longer time than a term comes from a store whose clock was wrong.
		return min(max(left, 0), Term) + rand.N(Interval)
	}
	if !f.clk.Now().Before(f.countAt) {
		f.count(ctx)
	}
	// The election is prolonged while the counting rests.
	return min(max(f.countAt.Sub(f.clk.Now()), 0), Term/2)
}

// elect returns how long another's term lasts, if this sidecar is not elected.
func (f *Counter) elect(ctx context.Context) (left time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	sent := f.clk.Now()
	suspended := f.clk.Suspended(sent)
	election, err := f.census.Elect(ctx, Term)
	switch {
	case err != nil:
		f.ours = f.ours || store.OutcomeUnknown(err)
	case election.Elected:
		f.ours = true
		f.hold(sent.Add(Term), suspended)
	default:
		f.ours = false
		f.hold(time.Time{}, 0)
	}
	return election.Left, err
}

// hold notes until when this sidecar is elected, unless the machine is suspended.
func (f *Counter) hold(until time.Time, suspended time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.suspended = until, suspended
	if until.IsZero() {
		f.known, f.knownUntil = observe.Fleet{}, time.Time{}
	}
}

func (f *Counter) count(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	began := f.clk.Now()
	stats, err := f.census.Stats(ctx)
	ended := f.clk.Now()
	interval := max(Interval, restShare*ended.Sub(began))
	f.countAt = ended.Add(interval)
	if err != nil {
		level := slog.LevelDebug
		if !f.failing {
			level = slog.LevelWarn
		}
		f.failing = true
		f.log.Log(ctx, level, "the fleet's locks cannot be counted, so its metrics become old, and are missing after a while",
			"error", err, "shown_for", f.shownFor(ended).String(), "next_try_in", interval.String())
		return
	}
	if f.failing {
		f.failing = false
		f.log.Info("the fleet's locks are counted again")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known, f.knownUntil = observe.FleetOf(stats), ended.Add(Age*interval)
}
