package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// maxHolderLinks is the most holders to which the span of one wait leads.
const maxHolderLinks = 16

// callTrace is what the spans of a call for one key hang from. It is nil where the
// call is not recorded: its methods do nothing then.
type callTrace struct {
	m   *Manager
	key string
	// call has the span of the call, and nothing else of its context.
	call context.Context

	// The mutex is taken last: under an attempt's, and nothing is done under it but writing
	// the span.
	mu sync.Mutex
	// wait is the span of the wait, nil while the call does not be queued; at has
	// it then, else that of the call.
	wait trace.Span
	at   context.Context
	// holder is the token of who held the key as last heard, holders how many did.
	holder  int64
	holders int
	placed  bool // the queue position is known
	left    bool // the call has left: nobody would end another wait
}

// traceOf begins what is kept of a call for a key, whose span is in ctx.
func (m *Manager) traceOf(ctx context.Context, key string) *callTrace {
	if m.cfg.Tracer == nil || !tracing.Recorded(ctx) {
		return nil
	}
	call := tracing.Carry(context.Background(), ctx)
	return &callTrace{m: m, key: key, call: call, at: call}
}

// carry returns ctx with the span under which the call is now.
func (t *callTrace) carry(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return tracing.Carry(ctx, t.at)
}

// along returns ctx, which does not end with a call, with the span of the call.
func (m *Manager) along(ctx, call context.Context) context.Context {
	if m.cfg.Tracer == nil || !tracing.Recorded(call) {
		return ctx
	}
	return tracing.Carry(ctx, call)
}

// enqueueContext begins the span of the wait, unless an attempt before has, and returns ctx
// with it. The holder may be known from an answer, or because the key is held here.
func (b *attempt) enqueueContext(ctx context.Context) context.Context {
	if b.tr == nil {
		return ctx
	}
	var lock store.Lock
	b.mu.Lock()
	if b.seen != nil {
		lock = *b.seen
	}
	b.mu.Unlock()
	if h := b.m.held.get(b.req.Key); lock.Key == "" && h != nil {
		lock = b.m.lockOf(h)
	}
	b.tr.begin()
	b.tr.sees(lock, 0)
	return b.tr.carry(ctx)
}

func (t *callTrace) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wait != nil || t.left {
		return
	}
	t.holder, t.holders, t.placed = 0, 0, false
	t.at, t.wait = t.m.cfg.Tracer.Start(t.call, "lock.wait", trace.SpanKindInternal,
		tracing.Key.String(t.key), tracing.Type.String(store.TypeOf(t.key)))
}

// sees hears who holds the key, and the queue position: 0 if it is not known.
func (t *callTrace) sees(lock store.Lock, position int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wait == nil {
		return
	}
	if position > 0 && !t.placed {
		t.placed = true
		t.wait.SetAttributes(tracing.Position.Int(position))
	}
	if lock.Token == 0 || lock.Token == t.holder || lock.Holder.Instance == "" || t.holders >= maxHolderLinks {
		return
	}
	t.holder = lock.Token
	if t.holders++; t.holders == 1 {
		t.wait.SetAttributes(holderOf(&lock)...)
	}
	linkHolder(t.wait, &lock)
}

func holderOf(lock *store.Lock) []attribute.KeyValue {
	return []attribute.KeyValue{
		tracing.HolderPod.String(lock.Holder.Pod), tracing.HolderSession.String(lock.Holder.Session),
		tracing.HolderInstance.String(lock.Holder.Instance),
	}
}

// linkHolder leads from a span to the acquire of a lock.
func linkHolder(from trace.Span, lock *store.Lock) {
	if link, ok := tracing.LinkTo(lock.Holder.Traceparent, tracing.LinkHolder, tracing.Token.Int64(lock.Token)); ok {
		from.AddLink(link)
	}
}

// denied shows in the span of a call that did not wait who holds the key.
func (m *Manager) denied(ctx context.Context, err error) {
	if m.cfg.Tracer == nil || !tracing.Recorded(ctx) {
		return
	}
	if held, ok := errors.AsType[*HeldError](err); ok {
		span := trace.SpanFromContext(ctx)
		span.SetAttributes(holderOf(&held.Lock)...)
		linkHolder(span, &held.Lock)
	}
}

// granted hears how the wait came to its lock.
func (t *callTrace) granted(handedOver bool, by string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wait == nil {
		return
	}
	how := "free"
	if handedOver {
		how = "hand_off"
	}
	t.wait.SetAttributes(tracing.GrantedBy.String(how))
	if link, ok := tracing.LinkTo(by, tracing.LinkRelease); ok {
		t.wait.AddLink(link)
	}
}

// leave hears that the call is over. An attempt that it has left may be about to stand in
// line all the same.
func (t *callTrace) leave() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = true
}

// over ends the span of the wait, if there is one, with what the call hears.
func (t *callTrace) over(g *Grant, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wait == nil {
		return
	}
	t.wait.SetAttributes(tracing.Result.String(resultOf(g, err)))
	t.wait.End()
	t.wait, t.at = nil, t.call
}

// terms are the terms of a lock with room for its span: a copy, for the others are
// shared.
func (t *callTrace) terms(of *terms) *terms {
	if t == nil {
		return of
	}
	own := *of
	own.held = &holding{at: t.call}
	return &own
}

// holding is the span of a lock that a session holds, guarded by the session's mutex
// until the lock was taken from it.
type holding struct {
	span trace.Span // nil for a part of a group, which nobody was told of
	// at has it, else that of the acquire.
	at context.Context
}

// traced is a context for what is done when the lock has left its session.
func (h *heldLock) traced() context.Context {
	if h.held == nil {
		return context.Background()
	}
	return h.held.at
}

// beginHeld begins the span of a lock that is the app's from now on. s.mu is held.
func (h *heldLock) beginHeld() {
	if h.held == nil {
		return
	}
	_, h.held.span = h.s.m.cfg.Tracer.Start(h.held.at, "lock.held", trace.SpanKindInternal, h.attributes()...)
	// Without the call's span, which would stay in memory for as long as the lock is held.
	h.held.at = trace.ContextWithSpan(context.Background(), h.held.span)
}

func (h *heldLock) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{
		tracing.Key.String(h.key), tracing.Type.String(store.TypeOf(h.key)),
		tracing.Token.Int64(h.token), tracing.Session.String(h.s.name),
	}
}

// endHeld ends it. s.mu is held.
func (h *heldLock) endHeld(reason string, loss bool) {
	if h.held == nil || h.held.span == nil {
		return
	}
	h.held.span.SetAttributes(tracing.EndReason.String(reason))
	if loss {
		h.held.span.SetStatus(codes.Error, "the lock was lost: "+reason)
	}
	h.held.span.End()
}

// heldUntilNow makes the span of a bind:ttl lock, which belonged to nobody here, now
// that it is released here.
func (m *Manager) heldUntilNow(lock *store.Lock, token int64) {
	if m.cfg.Tracer == nil {
		return
	}
	m.cfg.Tracer.Past(lock.Holder.Traceparent, "lock.held", time.Now().Add(-lock.Holder.HeldFor),
		tracing.Key.String(lock.Key), tracing.Type.String(store.TypeOf(lock.Key)),
		tracing.Token.Int64(token), tracing.EndReason.String(endReleased))
}

// linkAcquire leads from the span of a release to the acquire of its lock.
func (m *Manager) linkAcquire(ctx context.Context, traceparent string) {
	if m.cfg.Tracer == nil || !tracing.Recorded(ctx) {
		return
	}
	if link, ok := tracing.LinkTo(traceparent, tracing.LinkAcquire); ok {
		trace.SpanFromContext(ctx).AddLink(link)
	}
}

// traced is cfg for the lane of an operation. Where operations take no time there are no
// spans of them.
func (m *Manager) traced(operation string, cfg batcher.Config) batcher.Config {
	if m.cfg.Tracer != nil && !m.inline {
		cfg.Trace = func(ctx context.Context, calls []context.Context) (context.Context, func(error)) {
			return m.cfg.Tracer.Batch(ctx, operation, calls, len(calls))
		}
	}
	return cfg
}

// batchOfGroup begins the trace of one question for several keys of a call.
func (m *Manager) batchOfGroup(ctx context.Context, attempts []*attempt) (context.Context, func(error)) {
	if m.cfg.Tracer == nil || m.inline {
		return ctx, func(error) {}
	}
	return m.cfg.Tracer.Batch(ctx, "acquire", []context.Context{attempts[0].tr.carry(ctx)}, len(attempts))
}
