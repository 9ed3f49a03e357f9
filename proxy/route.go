package proxy

import (
	"bytes"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// call is a request under way. Each connection has one and uses it again.
type call struct {
	srv *Server
	c   *connection
	ctx *fasthttp.RequestCtx
	wire.Target
	headers
	span *callSpan // nil if it has none
	out  []byte    // is used again
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	c := ctx.Conn().(*connection)
	c.BeginRequest()
	k := &c.call
	k.ctx, k.Target = ctx, wire.Target{}
	k.readHeaders()
	defer k.finish()
	if c.Refusal != nil {
		k.problem(c.Refusal)
		ctx.SetConnectionClose()
		return
	}
	p := k.admit()
	if p == nil {
		p = k.route()
	}
	if p != nil {
		k.problem(p)
	}
}

// finish ends a call. After a panic the connection ends, and its sessions.
func (k *call) finish() {
	if v := recover(); v != nil {
		k.logger().Error("panic in a call", "method", string(k.ctx.Method()), "panic", v, "stack", string(debug.Stack()))
		k.c.EndCall()
		k.ctx.Response.Header.Del("Content-Encoding") // of what was to be said
		k.problem(wire.Internal())
		k.ctx.SetConnectionClose()
	}
	if k.srv.conns.Stopping() || k.c.CallerLeft() || k.closes || k.c.Kind == conn.Admin {
		k.ctx.SetConnectionClose()
	}
	k.span.end(k.ctx.Response.StatusCode())
	k.ctx, k.span = nil, nil
}

// noteHeadRead tells the connection that a head is complete. fasthttp offers only a deadline for this.
func noteHeadRead(*fasthttp.RequestHeader) fasthttp.RequestConfig {
	return fasthttp.RequestConfig{ReadTimeout: 1}
}

func (s *Server) handleBadRequest(ctx *fasthttp.RequestCtx, err error) {
	c := ctx.Conn().(*connection)
	if !c.Asked() {
		return
	}
	c.Linger()
	k := &c.call
	k.ctx, k.Target, k.headers = ctx, wire.Target{}, headers{}
	k.problem(badRequest(c, err))
	k.ctx = nil
}

// admit checks the framing, reads the target, and refuses forbidden calls.
func (k *call) admit() *wire.Problem {
	if k.badFraming {
		k.closes = true // where the next request begins is not certain
		k.c.Linger()
		return wire.Invalid("the request has Content-Length and Transfer-Encoding, a Transfer-Encoding other than chunked, " +
			"a Trailer, or a line in its head that does not end in CR and LF; send Content-Length or chunks, and no trailer")
	}
	var p *wire.Problem
	if k.Target, p = wire.ParseTarget(k.ctx.Request.Header.RequestURI()); p != nil {
		return p
	}
	if k.c.Kind == conn.TCP {
		return k.checkHostAndOrigin()
	}
	return nil
}

const locksPath = "/v1/locks/"

const documentURL = "https://github.com/locksidecar/locksidecar/blob/main/api/openapi.yaml"

// methodsGet are those of a path that can only be read. fasthttp leaves out the body for HEAD.
const methodsGet = "GET, HEAD"

// route makes the call. The problem that it returns is the answer.
func (k *call) route() *wire.Problem {
	if k.c.Kind == conn.Admin {
		return k.routeOperator()
	}
	path := k.Path
	switch {
	case bytes.HasPrefix(path, []byte(locksPath)):
		return k.routeLock(path[len(locksPath):])
	case string(path) == "/v1/locks":
		return k.routeLocks()
	case string(path) == "/v1/waiters":
		return k.allWaiters()
	case string(path) == "/v1/sessions" || bytes.HasPrefix(path, []byte(sessionsPath)):
		return k.routeSessions()
	case string(path) == "/v1/stats":
		return k.stats()
	case string(path) == "/v1":
		return k.fixed(k.srv.about)
	case string(path) == "/":
		return k.fixed([]byte(`{"api":"/v1","document":"` + documentURL + `"}`))
	}
	return k.routeOperator()
}

func (k *call) routeLock(part []byte) *wire.Problem {
	if before, rest, found := bytes.Cut(part, []byte{'/'}); found {
		switch string(rest) {
		case "release":
			return k.ofLock(before, "POST", k.releasePosted)
		case "stop":
			return k.ofLock(before, "POST", k.askToStop)
		case "waiters":
			return k.ofLock(before, methodsGet, k.waiters)
		case "events": // not for HEAD: a stream is nothing but its body
			return k.ofLock(before, "GET", k.keyEvents)
		}
	}
	key, p := wire.ParseKey(part)
	if p != nil {
		return p
	}
	switch string(k.ctx.Method()) {
	case "PUT":
		return k.acquire(key)
	case "DELETE":
		return k.release(key)
	case "PATCH":
		return k.amend(key)
	case "GET", "HEAD":
		return k.get(key)
	}
	return k.wrongMethod(methodsGet + ", PUT, PATCH, DELETE")
}

// ofLock makes the one call of a path behind a key.
func (k *call) ofLock(part []byte, allow string, f func(key string) *wire.Problem) *wire.Problem {
	key, p := wire.ParseKey(part)
	if p != nil {
		return p
	}
	if p := k.only(allow); p != nil {
		return p
	}
	return f(key)
}

func (k *call) routeLocks() *wire.Problem {
	switch string(k.ctx.Method()) {
	case "GET", "HEAD":
		return k.list()
	case "POST":
		return k.acquireAll()
	}
	return k.wrongMethod(methodsGet + ", POST")
}

// routeOperator makes the calls for operators: the only ones on the admin address.
func (k *call) routeOperator() *wire.Problem {
	switch string(k.Path) {
	case "/healthz":
		// It asks nobody: a store that is down is no reason for a restart.
		return k.fixed([]byte(`{"status":"ok"}`))
	case "/readyz":
		return k.ready()
	case "/metrics":
		if k.srv.cfg.MetricsHandler != nil {
			return k.metrics()
		}
	}
	return wire.Problemf(wire.CodeNotFound, "there is nothing at this path; the calls stand under /v1")
}

// ready reports why locks cannot be had, but not on the admin address: an error of the
// store names hosts, users and databases.
func (k *call) ready() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	err := k.srv.locks.Ready()
	if err == nil {
		return k.fixed([]byte(`{"status":"ready"}`))
	}
	p := wire.ProblemOf(err)
	if p == nil {
		p = wire.Problemf(wire.CodeStoreUnavailable, "%v", err)
	}
	if k.c.Kind == conn.Admin && p.Code == wire.CodeStoreUnavailable {
		p.Detail = "the store cannot be used now; GET /readyz on the socket says why"
	}
	return p
}

// fixed answers a call that takes neither parameters nor a body.
func (k *call) fixed(body []byte) *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	if p := k.noInput(); p != nil {
		return p
	}
	k.json(body)
	return nil
}

func (k *call) noInput() *wire.Problem { return wire.NoInput(k.Query, k.ctx.Request.Body()) }

func (k *call) only(allow string) *wire.Problem {
	if slices.Contains(strings.Split(allow, ", "), string(k.ctx.Method())) {
		return nil
	}
	return k.wrongMethod(allow)
}

func (k *call) wrongMethod(allow string) *wire.Problem {
	p := wire.Problemf(wire.CodeMethodNotAllowed, "the method %s is not known here; known: %s", k.ctx.Method(), allow)
	p.Allow = allow
	return p
}

func (k *call) json(body []byte) {
	k.ctx.Response.Header.SetContentType("application/json")
	k.ctx.Response.SetBodyRaw(body)
}

// buffer is the memory for an answer. It is written before the next call.
func (k *call) buffer() []byte { return k.out[:0] }

func (k *call) answer(b []byte) {
	if cap(b) <= conn.MaxScratch {
		k.out = b
	}
	k.json(b)
}

// answerGrants is answer for grants, which are delivered when it is written.
func (k *call) answerGrants(b []byte) {
	k.answer(b)
	if len(k.c.unwritten) > 0 {
		k.c.delivery.body = b
		k.ctx.Response.SetBodyStream(&k.c.delivery, len(b))
	}
}

func (k *call) problem(p *wire.Problem) {
	k.recordProblem(p)
	r := &k.ctx.Response
	r.SetStatusCode(p.Status())
	if p.Allow != "" {
		r.Header.Set("Allow", p.Allow)
	}
	if after := p.RetryAfter(); after != "" {
		r.Header.Set("Retry-After", after)
	}
	k.answer(p.Append(k.buffer()))
	r.Header.SetContentType("application/problem+json")
}

func (k *call) failed(err error) *wire.Problem {
	return k.srv.problemFor(err, string(k.ctx.Method()), string(k.Path), k.traceparent())
}

// problemFor makes the answer of an error of package lease, and logs an unknown one.
func (s *Server) problemFor(err error, call, on, traceparent string) *wire.Problem {
	if p := wire.ProblemOf(err); p != nil {
		return p
	}
	tracing.Logger(s.log, traceparent).Error("call failed", "call", call, "on", on, "error", err)
	return wire.Problemf(wire.CodeInternal, "the sidecar has logged what went wrong")
}
