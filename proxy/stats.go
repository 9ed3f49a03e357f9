package proxy

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// statsCache keeps the last count of the whole database, because a count may read every lock.
type statsCache struct {
	fresh time.Duration // the least time for which a count is repeated
	// turn is held to count or to read the last count. It guards the following fields.
	turn chan struct{}

	until time.Time // the end of the repetition
	stats store.Stats
	err   error
}

func newStatsCache(fresh time.Duration) *statsCache {
	return &statsCache{fresh: fresh, turn: make(chan struct{}, 1)}
}

// statsRest: a count is repeated for this multiple of its duration, so counting takes at most a tenth of the time.
const statsRest = 9

// count returns the last count if it is fresh, or counts anew. Failures are repeated, too. A count continues if
// its caller leaves, because such callers must not keep the database busy.
func (c *statsCache) count(ctx context.Context, anew func(context.Context) (store.Stats, error)) (store.Stats, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return store.Stats{}, lease.ErrCallerLeft
	}
	defer func() { <-c.turn }()
	began := time.Now()
	if began.Before(c.until) {
		return c.stats, c.err
	}
	c.stats, c.err = anew(context.WithoutCancel(ctx))
	ended := time.Now()
	c.until = ended.Add(max(c.fresh, statsRest*ended.Sub(began)))
	return c.stats, c.err
}

// stats is GET /v1/stats.
func (k *call) stats() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	r, p := wire.ParseStats(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	if k.srv.cfg.OneNamespace {
		return wire.Refusef(wire.CodeForbidden, "this socket shows its own namespace only, and GET /v1/stats counts all of them")
	}
	counted, err := k.srv.statsCache.count(k.beginCancelable(), k.srv.locks.Stats)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(wire.AppendStats(k.buffer(), counted, r, k.srv.cfg.Namespace))
}

// metrics is GET /metrics, with its query. It is a call, so that a close is noticed: it may take long.
func (k *call) metrics() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	k.begin()
	k.srv.cfg.MetricsHandler(k.ctx)
	k.c.EndCall()
	r := &k.ctx.Response
	if r.IsBodyStream() {
		return nil // it is not completely in memory
	}
	p := k.roomFor(len(r.Body()))
	if p != nil {
		r.Header.Del("Content-Encoding") // the problem is sent uncompressed
	}
	return p
}
