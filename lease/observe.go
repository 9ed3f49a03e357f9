package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// recorder is what [metrics.Locks] does, which may be nil. Tests put another one in.
type recorder interface {
	Acquired(ctx context.Context, key, result string, waited time.Duration)
	Waits(key string, change int)
	Ended(ctx context.Context, key, reason string, held time.Duration)
	Releases(key, result string)
	HandedOff(ctx context.Context, took time.Duration)
	Cached(kind string)
	Renewed(took time.Duration, kept, lost, failed int)
	SessionEnded(reason string)
	Observe(state func() metrics.State)
}

// Kinds of answers that need no statement.
const (
	cachedDenied = "denial"
	cachedHeld   = "held_here"
	cachedEntry  = "entry"
	cachedRepeat = "repeat"
	cachedRead   = "read"
	cachedCheck  = "check"
	cachedEnd    = "ended"
)

// How a session's lock ends that is not lost.
const (
	endReleased = "released"
	endSession  = "session_ended"
)

var sessionEnds = map[EndReason]string{EndDropped: "dropped", EndDeleted: "deleted", EndShutdown: "shutdown"}

// Codes of problems that have something to do with a lock, in the words of the
// contract; but abandoned, which nobody hears.
const (
	codeHeld       = "held"
	codeTimeout    = "wait_timeout"
	codeLimit      = "limit"
	codeSession    = "session_ended"
	codeDraining   = "draining"
	codeStore      = "store_unavailable"
	codeLost       = "lock_lost"
	codeNotHolder  = "not_holder"
	codeNotHeld    = "not_held"
	codeInvalid    = "invalid_request"
	codeCallerLeft = "abandoned"
	codeInternal   = "internal"
)

// codeOf is the code of an error of this package.
func codeOf(err error) string {
	switch {
	case is[*HeldError](err): // the most frequent first
		return codeHeld
	case is[*TimeoutError](err):
		return codeTimeout
	case is[*SkippedError](err):
		return metrics.Skipped
	case errors.Is(err, ErrCallerLeft), errors.Is(err, ErrWithdrawn):
		return codeCallerLeft
	case errors.Is(err, ErrSessionEnded):
		return codeSession
	case errors.Is(err, ErrDraining):
		return codeDraining
	case is[*LimitError](err):
		return codeLimit
	case is[*LostError](err):
		return codeLost
	case is[*NotHolderError](err):
		return codeNotHolder
	case is[*NotHeldError](err):
		return codeNotHeld
	case is[*ReentryError](err):
		return codeOfReentry(err)
	case is[*HoldsError](err), is[*TTLOnSessionError](err):
		return codeInvalid
	case store.Unavailable(err):
		return codeStore
	default:
		return codeInternal
	}
}

// codeOfReentry tells a repeated release from one that comes too early.
func codeOfReentry(err error) string {
	if wrong, _ := errors.AsType[*ReentryError](err); wrong.Given > wrong.Have {
		return codeNotHolder
	}
	return codeInvalid
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// resultOf is how an acquire ended.
func resultOf(g *Grant, err error) string {
	switch {
	case err != nil:
		return codeOf(err)
	case g.Reentry > 1:
		return metrics.Reentered
	default:
		return metrics.Granted
	}
}

// begins is when a call begins that may wait. The others are refused at once, or know.
func (m *Manager) begins(req *Request) (began time.Time) {
	if req.Wait != 0 {
		began = m.clk.Now()
	}
	return began
}

// acquired tells how an acquire of one key ended.
func (m *Manager) acquired(ctx context.Context, req *Request, began time.Time, g *Grant, err error) {
	waited := g.Waited
	if err != nil && !began.IsZero() {
		waited = m.clk.Now().Sub(began)
	}
	result := resultOf(g, err)
	m.recorder.Acquired(ctx, req.Key, result, waited)
	if err != nil {
		m.denied(ctx, err)
		m.logRefusal(ctx, "acquire", req.Key, req.Traceparent, result, err)
	}
}

// acquiredAll tells how a call for several keys ended: for each of them, as all or none.
func (m *Manager) acquiredAll(ctx context.Context, keys []string, req *Request, began time.Time, grants []Grant, err error) {
	if err == nil {
		for i := range grants {
			m.recorder.Acquired(ctx, grants[i].Key, metrics.Granted, grants[i].Waited)
		}
		return
	}
	var waited time.Duration
	if !began.IsZero() {
		waited = m.clk.Now().Sub(began)
	}
	code := codeOf(err)
	for _, key := range keys {
		m.recorder.Acquired(ctx, key, code, waited)
	}
	m.denied(ctx, err)
	m.logRefusal(ctx, "acquire", keyOfRefusal(keys, err), req.Traceparent, code, err)
}

// keyOfRefusal is the key because of which a call for several failed, if it is known.
func keyOfRefusal(keys []string, err error) string {
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held.Lock.Key
	}
	if timeout, ok := errors.AsType[*TimeoutError](err); ok {
		return timeout.Lock.Key
	}
	return keys[0]
}

// released tells how a release ended.
func (m *Manager) released(ctx context.Context, req *ReleaseRequest, out Released, err error) {
	switch {
	case err != nil:
		code := codeOf(err)
		m.recorder.Releases(req.Key, code)
		m.logRefusal(ctx, "release", req.Key, req.Traceparent, code, err)
	case out.Nothing:
	case out.Reentry > 0:
		m.recorder.Releases(req.Key, metrics.Reentered)
	default:
		m.recorder.Releases(req.Key, metrics.Released)
	}
}

// logRefusal logs that a call is refused. A claim that is wrong has its line already.
// That a lock is held, and that a call gives up, is daily life.
func (m *Manager) logRefusal(ctx context.Context, operation, key, traceparent, code string, err error) {
	level := slog.LevelWarn
	switch code {
	case codeNotHolder, codeLost, metrics.Skipped:
		return
	case codeHeld, codeTimeout, codeCallerLeft, codeSession, codeDraining:
		level = slog.LevelDebug
	}
	if m.log.Enabled(ctx, level) {
		m.logOf(traceparent).Log(ctx, level, "call refused", "operation", operation, "key", key, "code", code, "error", err)
	}
}

// logOf is the log, with the trace of a call if it has one.
func (m *Manager) logOf(traceparent string) *slog.Logger {
	if id := tracing.TraceID(traceparent); id != "" {
		return m.log.With("trace_id", id)
	}
	return m.log
}

// logIn is logOf for calls of which only the context is known here.
func (m *Manager) logIn(ctx context.Context) *slog.Logger {
	if m.cfg.Tracer == nil {
		return m.log
	}
	return m.logOf(tracing.Format(tracing.SpanContext(ctx)))
}

// traceHandedBack logs that what an attempt has won is handed back.
func (b *attempt) traceHandedBack(token int64) {
	if b.m.log.Enabled(b.m.ctx, slog.LevelDebug) {
		b.m.logOf(b.req.Traceparent).Debug("grant given back, its call has left", "key", b.req.Key, "token", token)
	}
}

// renewalDone tells of a renewal that was sent at that time.
func (m *Manager) renewalDone(sent time.Time, due, kept int, err error) {
	lost, failed := due-kept, 0
	if err != nil {
		lost, failed = 0, due-kept
	}
	m.recorder.Renewed(m.clk.Now().Sub(sent), kept, lost, failed)
}

// wonLock tells that an attempt has won, when it is about to be its session's.
func (b *attempt) wonLock(handedOver bool, by string, ago time.Duration) {
	b.tr.granted(handedOver, by)
	if handedOver {
		b.m.recorder.HandedOff(b.tr.carry(context.Background()), ago)
	}
}

// leaves tells that h is not held any more, and why. One that the app never heard of
// is not counted as lost. s.mu is held.
func (s *Session) leaves(h *heldLock, e grantEnd) {
	if h.unpublished {
		return
	}
	reason, loss := endReleased, e.lost != "" && e.lost != LostShutdown
	switch {
	case e.lost != "":
		reason = string(e.lost)
	case e.release != nil && e.release.ofSession:
		reason = endSession
	}
	h.endHeld(reason, loss)
	s.m.recorder.Ended(h.traced(), h.key, reason, s.m.heldFor(h, e))
}

// heldFor is how long a lock was held that has just ended.
func (m *Manager) heldFor(h *heldLock, e grantEnd) time.Duration {
	if e.release != nil {
		return e.release.heldFor
	}
	return h.heldFor(m.clk.Now())
}

// state is what the gauges show.
func (m *Manager) state() metrics.State {
	st := metrics.State{Ready: m.Ready() == nil, Draining: m.isDraining()}
	m.sessionsMu.Lock()
	st.Sessions = len(m.sessions)
	m.sessionsMu.Unlock()
	for _, l := range m.leases.all() {
		if !l.alive(clock.Read(m.clk)) {
			continue
		}
		left := l.remaining(clock.Read(m.clk))
		share := float64(left) / float64(l.ttl)
		if st.Leases == 0 || left < st.LeaseExpiry {
			st.LeaseExpiry = left
		}
		if st.Leases == 0 || share < st.LeaseLeft {
			st.LeaseLeft = share
		}
		st.Leases++
	}
	st.Held, st.OldestHold = m.held.count()
	return st
}

// shownTypes is how many types of held locks are counted apart: more than the metrics
// tell apart, and no more because an app makes a type of each key.
const shownTypes = 1000

// count counts the locks by the type of their keys, and tells how long the one is held
// that is held longest; zero when none is. To be asked now and then costs less than to
// count what each call changes.
func (hs *heldSet) count() (byType map[string]int64, longest time.Duration) {
	var oldest *heldLock
	byType = make(map[string]int64)
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for _, h := range sh.m {
			name := store.TypeOf(h.key)
			if _, known := byType[name]; !known && len(byType) >= shownTypes {
				name = store.Others
			}
			byType[name]++
			if oldest == nil || h.since < oldest.since {
				oldest = h
			}
		}
		sh.mu.Unlock()
	}
	if oldest != nil {
		longest = oldest.heldFor(oldest.s.m.clk.Now())
	}
	return byType, longest
}
