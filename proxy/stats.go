package proxy

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// statsCache is what is known of the whole database. To count it may mean to read every
// lock that there is, so whoever asks, and how often: it is counted once at a time,
// and a count is told for a while.
type statsCache struct {
	locks Locks
	fresh time.Duration // how long a count is told at least
	// turn is held by who counts, and by who looks whether somebody has counted. It
	// guards what stands below.
	turn chan struct{}

	until time.Time // how long it is told
	stats store.Stats
	err   error
}

func newStatsCache(locks Locks, fresh time.Duration) *statsCache {
	return &statsCache{locks: locks, fresh: fresh, turn: make(chan struct{}, 1)}
}

// censusRest is how often as long as the counting took a count is told: at most a tenth
// of the time is spent on it, however many ask.
const statsRest = 9

// count returns the last count, if it is fresh, or counts. Failures are told again as
// well: a store that is in trouble is not asked more often. A count that has begun is
// finished, also when who asked has gone: else whoever asks and hangs up, again and again,
// would keep the database busy, and cost a connection each time.
func (c *statsCache) count(ctx context.Context) (store.Stats, error) {
	select {
	case c.turn <- struct{}{}:
	default:
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return store.Stats{}, lease.ErrCallerLeft
		}
	}
	defer func() { <-c.turn }()
	began := time.Now()
	if began.Before(c.until) {
		return c.stats, c.err
	}
	c.stats, c.err = c.locks.Stats(context.WithoutCancel(ctx))
	ended := time.Now()
	c.until = ended.Add(max(c.fresh, statsRest*ended.Sub(began)))
	return c.stats, c.err
}

// stats is GET /v1/stats.
func (k *call) stats() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	r, p := wire.ParseStats(k.Query)
	if p != nil {
		return p
	}
	if p := wire.ParseBody(k.ctx.Request.Body(), nil); p != nil {
		return p
	}
	counted, err := k.srv.statsCache.count(k.c.watch.begin(true))
	k.c.watch.end()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(wire.AppendStats(k.buffer(), counted, r, k.srv.cfg.Namespace))
}
