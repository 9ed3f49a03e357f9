package proxy

import (
	"net"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// headers are the request headers that this server uses.
type headers struct {
	// sessions counts Lock-Session; session is the last.
	sessions int
	session  []byte
	// traces counts traceparent; trace is the last. state and baggage are W3C trace context.
	traces         int
	trace          []byte
	state, baggage []byte
	// noCache: the call does not use the local cache.
	noCache bool
	// closes: the connection ends with this answer.
	closes bool
	// badFraming: proxies may disagree about the end of the request or its head.
	badFraming bool
	// tokens counts Authorization; token is the last. It is a secret.
	tokens int
	token  []byte
	// The headers in which a browser names the calling page: Origin and Sec-Fetch-Site.
	origins, sites []string
}

// readHeaders makes one pass over the raw head. A lookup by name in fasthttp takes longer than all other
// parsing. fasthttp also drops lines and adds trailers.
func (k *call) readHeaders() {
	h := &k.ctx.Request.Header
	k.headers = headers{closes: h.ConnectionClose() || !h.IsHTTP11()}
	k.badFraming = wire.OddLines(h.RawHeaders()) // before they are read, because reading joins lines in place
	length, encoding := false, false
	for name, value := range h.AllInOrder() {
		switch string(name) {
		case "Lock-Session":
			k.sessions++
			k.session = value
		case "Traceparent":
			k.traces++
			k.trace = value
		case "Tracestate":
			k.state = wire.JoinList(k.state, value)
		case "Baggage":
			k.baggage = wire.JoinList(k.baggage, value)
		case "Cache-Control":
			k.noCache = k.noCache || wire.HasToken(value, "no-cache")
		case "Connection": // fasthttp knows only the exact value
			k.closes = k.closes || wire.HasToken(value, "close")
		case "Authorization":
			k.tokens++
			k.token = value
		case "Origin":
			k.origins = append(k.origins, string(value))
		case "Sec-Fetch-Site":
			k.sites = append(k.sites, string(value))
		case "Content-Length":
			length = true
		case "Transfer-Encoding":
			encoding = true
			k.badFraming = k.badFraming || !strings.EqualFold(string(value), "chunked")
		case "Trailer":
			k.badFraming = true
		}
	}
	k.badFraming = k.badFraming || length && encoding
}

// namedSession returns the explicit session that Lock-Session names, or nil.
func (k *call) namedSession() (*lease.Session, *wire.Problem) {
	switch {
	case k.sessions == 0:
		return nil, nil
	case k.sessions > 1:
		return nil, wire.Invalid("header Lock-Session is given twice")
	case len(k.session) == 0:
		// This differs from no header: an app that lost its id must not get locks of this connection.
		return nil, wire.Invalid("header Lock-Session is empty; it must be the id of a session, or be left out")
	}
	s, err := k.srv.locks.Session(string(k.session))
	if err != nil {
		return nil, wire.Problemf(wire.CodeSessionEnded, "header Lock-Session: there is no session with this id; open one with POST /v1/sessions")
	}
	return s, nil
}

// authorize refuses a call over TCP without a right token. Then the connection ends, so each guess costs a new one.
func (k *call) authorize() *wire.Problem {
	may := k.srv.cfg.Authorized
	if k.c.Kind != conn.TCP || may == nil {
		return nil
	}
	right := k.tokens == 1 && may(k.token)
	k.token = nil // a call may wait for hours
	if !right {
		return wire.Refusef(wire.CodeUnauthorized, "a call over TCP needs a token of the sidecar's LOCKSIDECAR_TCP_TOKEN_FILE, in one header Authorization: Bearer TOKEN")
	}
	return k.c.Prove()
}

// strangersBody limits the body of a call without a right token, so that it is not read.
const strangersBody = 1

// noteHeadReadOverTCP is noteHeadRead, and looks at the token before a body is read.
func (s *Server) noteHeadReadOverTCP(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	noted := noteHeadRead(h)
	if s.cfg.Authorized != nil && !s.cfg.Authorized(h.Peek(fasthttp.HeaderAuthorization)) {
		noted.MaxRequestBodySize = strangersBody
	}
	return noted
}

// checkHostAndOrigin refuses calls of web pages on TCP: a foreign Host (DNS rebinding), a foreign Origin,
// or a foreign site, because requests for images and scripts have no Origin. Where calls need a token, the
// sidecar may have any name: a page does not know the token.
func (k *call) checkHostAndOrigin() *wire.Problem {
	host := string(k.ctx.Request.Header.Host())
	if k.Authority != nil {
		host = string(k.Authority)
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if k.srv.cfg.Authorized == nil && !wire.IsLoopback(strings.Trim(name, "[]")) {
		return wire.Refusef(wire.CodeForbidden, "header Host is not a loopback name or address; use localhost, 127.0.0.1 or [::1]")
	}
	scheme := "http://"
	if k.srv.cfg.TLS != nil {
		scheme = "https://"
	}
	for _, origin := range k.origins {
		if !strings.EqualFold(origin, scheme+host) {
			return wire.Refusef(wire.CodeForbidden, "header Origin: web pages may not call this server")
		}
	}
	for _, site := range k.sites {
		if site != "same-origin" && site != "none" { // none: the user typed the address
			return wire.Refusef(wire.CodeForbidden, "header Sec-Fetch-Site: web pages may not call this server")
		}
	}
	return nil
}
