package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// sweepInterval is the pause between two sweeps. The store decides how much a sweep deletes, and how fast.
const sweepInterval = 10 * time.Minute

// sweeping decides whether a sweep may find something: a bind:ttl lock that was not released, or a free
// key's row, some time after its end. A sidecar that stops granting also stops sweeping.
type sweeping struct {
	store store.Reaper // nil: the engine needs no sweep
	clk   clock.Clock
	log   *slog.Logger
	began time.Time
	// until is when the last grant has ended and been swept, in nanoseconds after began.
	until atomic.Int64
}

func newSweeping(st store.Store, clk clock.Clock, log *slog.Logger) *sweeping {
	s := &sweeping{clk: clk, log: log, began: clk.Now()}
	s.store, _ = st.(store.Reaper)
	return s
}

// granted records a grant that may last for ttl.
func (s *sweeping) granted(now time.Time, ttl time.Duration) {
	until := int64(now.Add(ttl + 2*sweepInterval).Sub(s.began))
	for {
		noted := s.until.Load()
		// A precision of a minute suffices, so most grants need not write.
		if until-noted < int64(time.Minute) || s.until.CompareAndSwap(noted, until) {
			return
		}
	}
}

func (s *sweeping) run(ctx context.Context) {
	if s.store == nil {
		return
	}
	for clock.Rest(ctx, clock.Jittered(sweepInterval)) == nil {
		if int64(s.clk.Now().Sub(s.began)) > s.until.Load() {
			continue
		}
		if err := s.store.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("the store was not swept, trying again later", "error", err)
		}
	}
}
