package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// Hold is the span of a lock that a session holds. It is nil where the acquire is not recorded. The
// session's mutex guards it until the lock is taken from the session.
type Hold struct {
	tracer *tracing.Tracer
	shared bool
	span   trace.Span // nil while the app does not know of the lock
	// at has the span, else that of the acquire.
	at context.Context
}

// Context has the span of the lock, for what is done when the lock has left its session.
func (h *Hold) Context() context.Context {
	if h == nil {
		return context.Background()
	}
	return h.at
}

// Begin begins the span: the lock is the app's from now on.
func (h *Hold) Begin(key string, token int64, session string) {
	if h == nil {
		return
	}
	_, h.span = h.tracer.Start(h.at, "lock.held", trace.SpanKindInternal,
		ofKey(key, tracing.Token.Int64(token), tracing.Session.String(session), modeOf(h.shared))...)
	// Without the span of the call, which would stay in memory for as long as the lock is held.
	h.at = trace.ContextWithSpan(context.Background(), h.span)
}

// HoldEnded tells that a session's lock has ended: why (Released, SessionEnded, or the reason of
// the loss), and after how long.
func (o *Observer) HoldEnded(h *Hold, key, reason string, held time.Duration) {
	if h != nil && h.span != nil {
		h.span.SetAttributes(tracing.EndReason.String(reason))
		if reason != Released && reason != SessionEnded && reason != Shutdown {
			h.span.SetStatus(codes.Error, "the lock was lost: "+reason)
		}
		h.span.End()
	}
	o.Ended(h.Context(), key, reason, held)
}

// HeldUntilNow makes the span of a bind:ttl lock, which no session here held, when it is released here.
func (o *Observer) HeldUntilNow(lock *store.Lock, token int64) {
	if o.tracer != nil {
		o.tracer.Past(lock.Holder.Traceparent, "lock.held", time.Now().Add(-lock.Holder.HeldFor),
			ofKey(lock.Key, tracing.Token.Int64(token), tracing.EndReason.String(Released))...)
	}
}
