package observe

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// maxHolderLinks is the most holders to which the span of one wait leads.
const maxHolderLinks = 8

// Call has the spans of a call for one key. It is nil where the call is not recorded.
type Call struct {
	tracer *tracing.Tracer
	key    string
	shared bool
	// call has the span of the call, and nothing else of its context.
	call context.Context

	// The mutex is taken last, also under an attempt's. Under it only the span is written.
	mu sync.Mutex
	// wait is the span of the wait, nil while the call is not queued. at has it then, else the span
	// of the call.
	wait trace.Span
	at   context.Context
	// holder is the token of the last known holder, of several the greatest.
	holder  int64
	holders int
	placed  bool // the queue position is known
	left    bool // the call has left: nobody would end another wait
}

// Call begins the trace of a call for a key, whose span is in ctx.
func (o *Observer) Call(ctx context.Context, key string, shared bool) *Call {
	if !o.recorded(ctx) {
		return nil
	}
	call := tracing.Carry(context.Background(), ctx)
	return &Call{tracer: o.tracer, key: key, shared: shared, call: call, at: call}
}

// Carry returns ctx with the span under which the call is now.
func (c *Call) Carry(ctx context.Context) context.Context {
	if c == nil {
		return ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return tracing.Carry(ctx, c.at)
}

// Enqueue begins the span of the wait, if there is none. lock may be the zero value.
func (c *Call) Enqueue(lock *store.Lock) {
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

// See notes who holds the key, and the queue position: 0 if it is not known.
func (c *Call) See(lock *store.Lock, position int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(lock, position)
}

func (c *Call) see(lock *store.Lock, position int) {
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
	for i := range lock.Holders { // in the order of their tokens
		if share := &lock.Holders[i]; share.Token > c.holder {
			c.link(share.Token, &share.Holder)
		}
	}
}

// link leads from the wait to the acquire of a holder that was not known before.
func (c *Call) link(token int64, h *store.Holder) {
	if token == 0 || h.Instance == "" || c.holders >= maxHolderLinks {
		return
	}
	c.holder = token
	if c.holders++; c.holders == 1 {
		c.wait.SetAttributes(holderOf(h)...)
	}
	linkHolder(c.wait, token, h)
}

// FoundFree notes that the call found its key free, and was not handed it.
func (c *Call) FoundFree() { c.granted("free", "") }

func (c *Call) granted(how, by string) {
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

// Leave notes that the call is over. An attempt that is queued after that begins no span.
func (c *Call) Leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
}

// EndWait ends the span of the wait, if there is one.
func (c *Call) EndWait(result string) {
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
func (c *Call) Hold(shared bool) *Hold {
	if c == nil {
		return nil
	}
	return &Hold{tracer: c.tracer, at: c.call, shared: shared}
}

// Mode is how the span of a call names what it asks for.
func Mode(shared bool) string {
	if shared {
		return "shared"
	}
	return "exclusive"
}

func modeOf(shared bool) attribute.KeyValue { return tracing.Mode.String(Mode(shared)) }

func ofKey(key string, others ...attribute.KeyValue) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 2+len(others))
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
