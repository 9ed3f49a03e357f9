package lease

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// begins is when a call begins that may wait. The others are refused at once, or know.
func (m *Manager) begins(req *types.Request) (began time.Time) {
	if req.Wait != 0 {
		began = m.clk.Now()
	}
	return began
}

// sinceBegin is how long a call has taken that began then; zero if it does not wait.
func (m *Manager) sinceBegin(began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	return m.clk.Now().Sub(began)
}

// acquired tells how an acquire of one key ended.
func (m *Manager) acquired(ctx context.Context, req *types.Request, began time.Time, g *types.Grant, err error) {
	result := types.ResultOf(g, err)
	if err == nil {
		m.obs.Acquired(ctx, req.Key, result, g.Waited)
		return
	}
	m.obs.Acquired(ctx, req.Key, result, m.sinceBegin(began))
	m.acquireRefused(ctx, req.Key, req.Traceparent, result, err)
}

// acquiredAll tells how a call for several keys ended: for each of them, as all or none.
func (m *Manager) acquiredAll(ctx context.Context, keys []string, req *types.Request, began time.Time, grants []types.Grant, err error) {
	if err == nil {
		for i := range grants {
			m.obs.Acquired(ctx, grants[i].Key, observe.Granted, grants[i].Waited)
		}
		return
	}
	waited, code := m.sinceBegin(began), types.CodeOf(err)
	for _, key := range keys {
		m.obs.Acquired(ctx, key, code, waited)
	}
	m.acquireRefused(ctx, keyOfRefusal(keys, err), req.Traceparent, code, err)
}

func (m *Manager) acquireRefused(ctx context.Context, key, traceparent, code string, err error) {
	if held, ok := errors.AsType[*types.HeldError](err); ok {
		m.obs.Denied(ctx, &held.Lock)
	}
	m.obs.Refused(ctx, observe.Refusal{Operation: "acquire", Key: key, Traceparent: traceparent, Code: code, Err: err})
}

// keyOfRefusal is the key because of which a call for several failed, if it is known.
func keyOfRefusal(keys []string, err error) string {
	if held, ok := errors.AsType[*types.HeldError](err); ok {
		return held.Lock.Key
	}
	if timeout, ok := errors.AsType[*types.TimeoutError](err); ok {
		return timeout.Lock.Key
	}
	return keys[0]
}

// released tells how a release ended.
func (m *Manager) released(ctx context.Context, req *types.ReleaseRequest, out types.Released, err error) {
	switch {
	case err != nil:
		code := types.CodeOf(err)
		m.obs.Releases(req.Key, code)
		m.obs.Refused(ctx, observe.Refusal{Operation: "release", Key: req.Key, Traceparent: req.Traceparent, Code: code, Err: err})
	case out.Nothing:
	case out.Reentry > 0:
		m.obs.Releases(req.Key, observe.Reentered)
	default:
		m.obs.Releases(req.Key, observe.Released)
	}
}

// state is what the gauges show.
func (m *Manager) state() observe.State {
	st := observe.State{Ready: m.Ready() == nil, Draining: m.isDraining()}
	st.Leases, st.LeaseExpiry, st.LeaseLeft = m.leases.left(clock.Read(m.clk))
	m.holdings.observe(&st)
	return st
}
