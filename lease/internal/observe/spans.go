package observe

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// maxHolderLinks limits the holders to which the span of one wait links.
const maxHolderLinks = 8

// Trace contains the spans of a call for one key. It is nil if the call is not recorded.
type Trace struct {
	tracer *tracing.Tracer
	key    string
	shared bool
	// call contains the span of the call, without the rest of its context.
	call context.Context

	// The mutex is taken last, also under an attempt's mutex. Only spans are written under it.
	mu sync.Mutex
	// wait is the span of the wait, nil while the call is not queued. at contains it then, and otherwise the
	// span of the call.
	wait trace.Span
	at   context.Context
	// holder is the token of the last known holder; with several holders, the greatest one.
	holder  int64
	holders int
	placed  bool // the queue position is known
	left    bool // the call has left, so a later wait would not be ended
}

// Trace begins the trace of a call for a key, whose span is in ctx.
func (o *Observer) Trace(ctx context.Context, key string, shared bool) *Trace {
	if !o.recorded(ctx) {
		return nil
	}
	call := tracing.Carry(context.Background(), ctx)
	return &Trace{tracer: o.tracer, key: key, shared: shared, call: call, at: call}
}

// Carry returns ctx with the present span of the call.
func (c *Trace) Carry(ctx context.Context) context.Context {
	if c == nil {
		return ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return tracing.Carry(ctx, c.at)
}

// Enqueue begins the span of the wait, unless it has begun. lock may be the zero value.
func (c *Trace) Enqueue(lock *store.Lock) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wait == nil && !c.left {
		c.holder, c.holders, c.placed = 0, 0, false
		c.at, c.wait = c.tracer.Start(c.call, "lock.wait", trace.SpanKindInternal, ofKey(c.key, modeOf(c.shared))...)
	}
	c.see(lock, 0)
}

// See records the holders of the key, and the queue position, or 0 if unknown.
func (c *Trace) See(lock *store.Lock, position int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(lock, position)
}

func (c *Trace) see(lock *store.Lock, position int) {
	if c.wait == nil {
		return
	}
	if position > 0 && !c.placed {
		c.placed = true
		c.wait.SetAttributes(tracing.Position.Int(position))
	}
	if !lock.Shared {
		if lock.Token != c.holder {
			c.link(lock.Token, &lock.Holder)
		}
		return
	}
	for i := range lock.Holders { // in token order
		if share := &lock.Holders[i]; share.Token > c.holder {
			c.link(share.Token, &share.Holder)
		}
	}
}

// link links the wait to the acquire of a holder that was not known before.
func (c *Trace) link(token int64, h *store.Holder) {
	if token == 0 || h.Instance == "" || c.holders >= maxHolderLinks {
		return
	}
	c.holder = token
	if c.holders++; c.holders == 1 {
		c.wait.SetAttributes(holderOf(h)...)
	}
	linkHolder(c.wait, token, h)
}

// FoundFree records that the call found its key free, so it was not granted by a hand-off.
func (c *Trace) FoundFree() { c.granted("free", "") }

func (c *Trace) granted(how, by string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wait == nil {
		return
	}
	c.wait.SetAttributes(tracing.GrantedBy.String(how))
	if link, ok := tracing.LinkTo(by, tracing.LinkRelease); ok {
		c.wait.AddLink(link)
	}
}

// Leave records that the call is over. If an attempt is queued after that, it begins no span.
func (c *Trace) Leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
}

// EndWait ends the span of the wait, if any.
func (c *Trace) EndWait(result string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wait == nil {
		return
	}
	c.wait.SetAttributes(tracing.Result.String(result))
	c.wait.End()
	c.wait, c.at = nil, c.call
}

// Hold prepares the span of the lock that the call gets.
func (c *Trace) Hold(shared bool) *Hold {
	if c == nil {
		return nil
	}
	return &Hold{tracer: c.tracer, at: c.call, shared: shared}
}

func (o *Observer) recorded(ctx context.Context) bool {
	return o.tracer != nil && tracing.Recorded(ctx)
}

// Along returns ctx, which outlives the call, with the span of the call.
func (o *Observer) Along(ctx, call context.Context) context.Context {
	if !o.recorded(call) {
		return ctx
	}
	return tracing.Carry(ctx, call)
}

// Denied records the holder of the key in the span of a call that did not wait.
func (o *Observer) Denied(ctx context.Context, lock *store.Lock) {
	if o.recorded(ctx) {
		span := trace.SpanFromContext(ctx)
		span.SetAttributes(holderOf(&lock.Holder)...)
		linkHolder(span, lock.Token, &lock.Holder)
	}
}

// Took records in a call's span, and counts, that the call got a kept key.
func (o *Observer) Took(ctx context.Context) {
	o.KeptGranted()
	if o.recorded(ctx) {
		trace.SpanFromContext(ctx).SetAttributes(tracing.Kept.Bool(true))
	}
}

// LinkAcquire links the span of a release to the acquire of its lock.
func (o *Observer) LinkAcquire(ctx context.Context, traceparent string) {
	if !o.recorded(ctx) {
		return
	}
	if link, ok := tracing.LinkTo(traceparent, tracing.LinkAcquire); ok {
		trace.SpanFromContext(ctx).AddLink(link)
	}
}

// HandedOver records that an attempt has won its lock by a hand-off: how long ago, and by which release.
func (o *Observer) HandedOver(c *Trace, by string, ago time.Duration) {
	c.granted("hand_off", by)
	o.HandedOff(c.Carry(context.Background()), ago)
}

// Lane returns cfg for the lane of an operation, with spans.
func (o *Observer) Lane(operation string, cfg batcher.Config) batcher.Config {
	if o.batches {
		cfg.Trace = func(ctx context.Context, calls []context.Context) (context.Context, func(error)) {
			return o.tracer.Batch(ctx, operation, calls, len(calls))
		}
	}
	return cfg
}

// Batch begins the span of an operation that carries out several items for one call.
func (o *Observer) Batch(ctx context.Context, operation string, of *Trace, items int) (context.Context, func(error)) {
	if !o.batches {
		return ctx, func(error) {}
	}
	return o.tracer.Batch(ctx, operation, []context.Context{of.Carry(ctx)}, items)
}

// Mode is the attribute value for a mode.
func Mode(shared bool) string {
	if shared {
		return "shared"
	}
	return "exclusive"
}

func modeOf(shared bool) attribute.KeyValue { return tracing.Mode.String(Mode(shared)) }

func ofKey(key string, others ...attribute.KeyValue) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 2+len(others)+1) // and what is common to all spans
	return append(append(all, tracing.Key.String(key), tracing.Type.String(store.TypeOf(key))), others...)
}

func holderOf(h *store.Holder) []attribute.KeyValue {
	return []attribute.KeyValue{
		tracing.HolderPod.String(h.Pod), tracing.HolderSession.String(h.Session), tracing.HolderInstance.String(h.Instance),
	}
}

func linkHolder(from trace.Span, token int64, h *store.Holder) {
	if link, ok := tracing.LinkTo(h.Traceparent, tracing.LinkHolder, tracing.Token.Int64(token)); ok {
		from.AddLink(link)
	}
}

// Hold is the span of a lock that a session holds. It is nil if the acquire is not recorded. The session's
// mutex guards it until the lock leaves the session.
type Hold struct {
	tracer  *tracing.Tracer
	shared  bool
	token   int64
	session string
	span    trace.Span // nil until the lock is delivered
	// at contains the span, or before its begin the span of the acquire.
	at context.Context
}

// Context contains the span of the lock, for work after the lock has left its session.
func (h *Hold) Context() context.Context {
	if h == nil {
		return context.Background()
	}
	return h.at
}

// Begin begins the span when the lock is delivered.
func (h *Hold) Begin(token int64, session string) {
	if h == nil {
		return
	}
	h.token, h.session = token, session
	_, h.span = h.tracer.Begin(h.at, "lock.held", trace.SpanKindInternal)
	// Without the span of the call, because this would stay in memory while the lock is held.
	h.at = trace.ContextWithSpan(context.Background(), h.span)
}

// HoldEnded reports the end of a session's lock with the reason (Released, SessionEnded, or that of the
// loss), and how long it was held.
func (o *Observer) HoldEnded(h *Hold, key, reason string, held time.Duration) {
	if h != nil && h.span != nil {
		if reason != Released && reason != SessionEnded && reason != Shutdown {
			h.span.SetStatus(codes.Error, "the lock was lost: "+reason)
		}
		h.tracer.End(h.span, ofKey(key, tracing.Token.Int64(h.token), tracing.Session.String(h.session), modeOf(h.shared), tracing.EndReason.String(reason)))
	}
	o.Ended(h.Context(), key, reason, held)
}

// HeldUntilNow makes the span of a bind:ttl lock when it is released here, because the lock had no session.
func (o *Observer) HeldUntilNow(key string, token int64, was *store.Verdict) {
	if o.tracer != nil {
		o.tracer.Past(was.Traceparent, "lock.held", time.Now().Add(-was.HeldFor),
			ofKey(key, tracing.Token.Int64(token), tracing.EndReason.String(Released))...)
	}
}
