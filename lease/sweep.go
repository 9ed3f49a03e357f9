package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// sweepInterval is the pause between two sweeps. The store decides how much it tidies then, and how fast.
const sweepInterval = 10 * time.Minute

// sweeping decides whether there may be something to tidy: remains (a bind:ttl lock that nobody released,
// a free key's row) some time after their end. A sidecar that grants nothing any more sends no sweep.
type sweeping struct {
	store store.Reaper // nil: the store tidies itself
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

// granted notes a grant that may last for ttl.
func (s *sweeping) granted(now time.Time, ttl time.Duration) {
	until := int64(now.Add(ttl + 2*sweepInterval).Sub(s.began))
	for {
		noted := s.until.Load()
		// A minute more or less does not matter, and most grants need not write.
		if until-noted < int64(time.Minute) || s.until.CompareAndSwap(noted, until) {
			return
		}
	}
}

func (s *sweeping) run(ctx context.Context) {
	if s.store == nil {
		return
	}
	for {
		timer := time.NewTimer(clock.Jittered(sweepInterval))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if int64(s.clk.Now().Sub(s.began)) > s.until.Load() {
			continue
		}
		if err := s.store.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("the store was not swept, trying again later", "error", err)
		}
	}
}
