package proxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// call is a running request. Each connection reuses one.
type call struct {
	srv *Server
	c   *connection
	ctx *fasthttp.RequestCtx
	wire.Target
	headers
	span *callSpan // nil without a span
	out  []byte    // reused
}

// handle is called by fasthttp with each complete request. It tells the way of every call. The acquire of a lock
// goes on in route, routeLock, and call.acquire.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	// The request's time limit ends here, and a stop of the sidecar waits for the answer from now on.
	c := ctx.Conn().(*connection)
	c.BeginRequest()

	// The connection has one call, which is used again. finish ends it, also after a panic.
	k := &c.call
	k.ctx, k.Target = ctx, wire.Target{}
	k.readHeaders()
	defer k.finish()

	// A connection above a limit, or of a foreign user, is served only so that it gets the reason.
	if c.Refusal != nil {
		k.problem(c.Refusal)
		ctx.SetConnectionClose()
		return
	}

	// A call over TCP shows who it is. Nothing of a stranger's request is looked at.
	if p := k.authorize(); p != nil {
		k.c.Linger()
		k.problem(p)
		ctx.SetConnectionClose()
		return
	}

	// A request whose end is uncertain, or that a web page sent, does nothing. Any other finds the method for its path, here or, while
	// a server is replaced, in the one that has its session.
	p := k.admit()
	if p == nil {
		p = k.takePlace()
	}
	if p == nil {
		var passed bool
		if passed, p = k.passedOn(); !passed && p == nil {
			p = k.route()
		}
	}
	if p != nil {
		k.problem(p)
	}
}

// finish ends a call. After a panic, the connection and its sessions end.
func (k *call) finish() {
	if v := recover(); v != nil {
		k.logger().Error("panic in a call", "method", string(k.ctx.Method()), "panic", v, "stack", string(debug.Stack()))
		k.c.EndCall()
		k.ctx.Response.Header.Del("Content-Encoding") // of the intended answer
		k.problem(wire.Internal())
		k.ctx.SetConnectionClose()
	}
	if k.srv.conns.Stopping() || k.c.CallerLeft() || k.closes || k.c.Kind == conn.Admin || k.srv.leaving.Load() && k.c.Kind != conn.Passed && !k.c.holds() {
		k.ctx.SetConnectionClose()
	}
	k.span.end(k.ctx.Response.StatusCode())
	k.slim()
	k.ctx, k.span = nil, nil
}

// noteHeadRead makes fasthttp call conn.Conn.SetReadDeadline when a head is complete; see New.
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
	p := badRequest(c, err)
	if errors.Is(err, fasthttp.ErrBodyTooLarge) { // a stranger's body is not read
		k.readHeaders()
		if refused := k.authorize(); refused != nil {
			p = refused
		}
	}
	k.problem(p)
	k.ctx = nil
}

// admit checks the framing, reads the target, and refuses forbidden calls.
func (k *call) admit() *wire.Problem {
	if k.badFraming {
		k.closes = true // the beginning of the next request is uncertain
		k.c.Linger()
		return wire.Invalid("the request has Content-Length and Transfer-Encoding, a Transfer-Encoding other than chunked, " +
			"a header Trailer, or a header line that does not end in CR and LF; send Content-Length or chunks, and no trailer")
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

// methodsGet are the methods of a read-only path. fasthttp omits the body for HEAD.
const methodsGet = "GET, HEAD"

// route handles the call. A returned problem is the answer.
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
		return k.about()
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
		case "events": // not for HEAD, because a stream consists only of its body
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

// ofLock handles a call for a subpath of a key.
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

// routeOperator handles the calls for operators, the only ones on the admin address.
func (k *call) routeOperator() *wire.Problem {
	switch string(k.Path) {
	case "/healthz":
		// It does not check the store, because a failed store is not a reason for a restart.
		return k.fixed([]byte(`{"status":"ok"}`))
	case "/readyz":
		return k.ready()
	case "/metrics":
		if k.srv.cfg.MetricsHandler != nil {
			return k.metrics()
		}
	}
	return wire.Problemf(wire.CodeNotFound, "there is nothing at this path; the paths of the API begin with /v1")
}

// ready reports why locks cannot be acquired. On the admin address it omits the reason, because an error of
// the store names hosts, users and databases.
func (k *call) ready() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	ready := k.srv.cfg.Ready
	if ready == nil {
		ready = k.srv.locks.Ready
	}
	err := ready()
	if err == nil {
		return k.fixed(wire.AppendReady(nil, k.details()))
	}
	p := wire.ProblemOf(err)
	if p == nil {
		p = wire.Problemf(wire.CodeStoreUnavailable, "%v", err)
	}
	if p.Code == wire.CodeStoreUnavailable {
		switch {
		case k.srv.cfg.OneNamespace:
			p.Detail = "no locks can be granted now; the log of the lock server says why"
		case k.c.Kind == conn.Admin:
			p.Detail = "the store cannot be used now; GET /readyz on the socket says why"
		}
	}
	return p
}

// details are facts about the store's server. The admin address omits them, as it omits errors.
func (k *call) details() map[string]string {
	if k.c.Kind == conn.Admin || k.srv.cfg.OneNamespace || k.srv.cfg.Details == nil {
		return nil
	}
	return k.srv.cfg.Details()
}

// fixed answers a call without parameters and body.
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

// about is GET /v1.
func (k *call) about() *wire.Problem {
	cfg := k.srv.cfg
	return k.fixed(wire.AppendAbout(nil, cfg.Version, cfg.Namespace, cfg.AllowForce, cfg.Namespaces != nil && cfg.Namespaces()))
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

// buffer is the memory for an answer, which is written before the next call.
func (k *call) buffer() []byte { return k.out[:0] }

func (k *call) answer(b []byte) {
	if cap(b) <= conn.MaxScratch {
		k.out = b
	}
	k.json(b)
}

// answerGrants is answer for grants, which count as delivered when the answer is written.
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
	if p.Code == wire.CodeUnauthorized {
		r.Header.Set("WWW-Authenticate", "Bearer")
	}
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

// problemFor translates an error of package lease to an answer, and logs an unknown one.
func (s *Server) problemFor(err error, call, on, traceparent string) *wire.Problem {
	if p := wire.ProblemOf(err); p != nil {
		if s.cfg.OneNamespace && p.Code == wire.CodeStoreUnavailable { // the error names hosts, users and databases; package lease logs it
			p.Detail = "the lock store cannot be used now; the log of the lock server says why"
		}
		return p
	}
	tracing.Logger(s.log, traceparent).Error("call failed", "call", call, "on", on, "error", err)
	return wire.Problemf(wire.CodeInternal, "the cause is in the sidecar's log")
}

// badRequest translates the errors with which fasthttp rejects a request.
func badRequest(c *connection, err error) *wire.Problem {
	var head *fasthttp.ErrSmallBuffer
	switch {
	case c.TimedOut():
		return wire.Problemf(wire.CodeRequestTimeout, "the request was not complete after %s", c.srv.cfg.Timeouts.Request)
	case errors.As(err, &head):
		return wire.Problemf(wire.CodeHeadTooLarge, "request line and headers have more than %d bytes", conn.MaxHead)
	case errors.Is(err, conn.ErrTooManyBodies):
		return wire.Refusef(wire.CodeLimit, "too many long bodies are being read: together they may have %d bytes; send this one again later", c.srv.cfg.MaxBodies)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return wire.Problemf(wire.CodeTooLarge, "the body has more than %d bytes (LOCKSIDECAR_MAX_BODY)", c.srv.cfg.MaxBody)
	}
	return wire.Invalid("the request is not well-formed HTTP/1.1: %s", unquoted(err))
}

// unquoted is an error of fasthttp without the request text that it quotes, which may contain a session's id.
func unquoted(err error) string {
	text, _, _ := strings.Cut(err.Error(), `"`)
	return strings.TrimRight(strings.TrimSuffix(text, " in "), ": ")
}

// recordProblem counts a problem, and logs it if this package refused the call. Package lease logs its own
// refusals, and admit logs refused connections.
func (k *call) recordProblem(p *wire.Problem) {
	k.srv.countProblem(p.Code)
	k.span.setProblem(p.Code)
	switch {
	case p.Refusal:
		k.logger().Warn("call refused", k.requestAttrs(p)...)
	case badRequests[p.Code] && k.srv.log.Enabled(context.Background(), slog.LevelDebug):
		k.logger().Debug("bad request", k.requestAttrs(p)...)
	}
}

// badRequests are the codes of an app's mistakes, which are logged at debug.
var badRequests = map[string]bool{
	wire.CodeInvalidRequest: true, wire.CodeNotFound: true, wire.CodeMethodNotAllowed: true,
	wire.CodeRequestTimeout: true, wire.CodeTooLarge: true, wire.CodeHeadTooLarge: true,
}

// maxLogged limits the bytes of a client's text in a log line.
const maxLogged = 2 * wire.MaxKey

// requestAttrs describes the call for the log, without its body, query and session.
func (k *call) requestAttrs(p *wire.Problem) []any {
	h := &k.ctx.Request.Header
	args := []any{
		"code", p.Code, "reason", p.Detail, "method", beginning(h.Method()), "path", k.logPath(), "by", k.c.Peer,
	}
	if k.c.Kind == conn.Unix {
		return args
	}
	args = append(args, "from", k.c.RemoteAddr().String(), "host", beginning(h.Host()))
	if len(k.origins) > 0 {
		args = append(args, "origin", beginning([]byte(k.origins[0])))
	}
	return args
}

func (k *call) logPath() string {
	if bytes.HasPrefix(k.Path, []byte(sessionsPath)) {
		return sessionsPath + "{id}"
	}
	return beginning(k.Path)
}

func beginning(b []byte) string { return string(b[:min(len(b), maxLogged)]) }
