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
const maxHolderLinks = 16

// Call has the spans of a call for one key. It is nil where the call is not recorded.
type Call struct {
	tracer *tracing.Tracer
	key    string
	// call has the span of the call, and nothing else of its context.
	call context.Context

	// The mutex is taken last, also under an attempt's. Under it only the span is written.
	mu sync.Mutex
	// wait is the span of the wait, nil while the call is not queued. at has it then, else the span
	// of the call.
	wait trace.Span
	at   context.Context
	// holder is the token of the last known holder.
	holder  int64
	holders int
	placed  bool // the queue position is known
	left    bool // the call has left: nobody would end another wait
}

// Call begins the trace of a call for a key, whose span is in ctx.
func (o *Observer) Call(ctx context.Context, key string) *Call {
	if !o.recorded(ctx) {
		return nil
	}
	call := tracing.Carry(context.Background(), ctx)
	return &Call{tracer: o.tracer, key: key, call: call, at: call}
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
		c.at, c.wait = c.tracer.Start(c.call, "lock.wait", trace.SpanKindInternal, ofKey(c.key)...)
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
	if lock.Token == 0 || lock.Token == c.holder || lock.Holder.Instance == "" || c.holders >= maxHolderLinks {
		return
	}
	c.holder = lock.Token
	if c.holders++; c.holders == 1 {
		c.wait.SetAttributes(holderOf(lock)...)
	}
	linkHolder(c.wait, lock)
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
func (c *Call) Hold() *Hold {
	if c == nil {
		return nil
	}
	return &Hold{tracer: c.tracer, at: c.call}
}

func ofKey(key string, others ...attribute.KeyValue) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 2+len(others))
	return append(append(all, tracing.Key.String(key), tracing.Type.String(store.TypeOf(key))), others...)
}

func holderOf(lock *store.Lock) []attribute.KeyValue {
	return []attribute.KeyValue{
		tracing.HolderPod.String(lock.Holder.Pod), tracing.HolderSession.String(lock.Holder.Session),
		tracing.HolderInstance.String(lock.Holder.Instance),
	}
}

func linkHolder(from trace.Span, lock *store.Lock) {
	if link, ok := tracing.LinkTo(lock.Holder.Traceparent, tracing.LinkHolder, tracing.Token.Int64(lock.Token)); ok {
		from.AddLink(link)
	}
}
