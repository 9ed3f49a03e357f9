package proxy

import (
	"bytes"
	"net"
	"strings"
)

// headers are those of a request that mean something here.
type headers struct {
	// sessions is how many Lock-Session there are, session the last of them.
	sessions int
	session  []byte
	// traces is how many traceparents there are, trace the last of them. state and
	// baggage are the rest of the W3C trace context.
	traces         int
	trace          []byte
	state, baggage []byte
	// noCache: the call wants to skip the local cache.
	noCache bool
	// closes: the connection ends with this call's answer.
	closes bool
	// badFraming: proxies may not agree on where the request ends, or what
	// belongs to its head.
	badFraming bool
	// origins are the values of Origin, sites those of Sec-Fetch-Site: what a browser
	// says of who made it send the request.
	origins, sites []string
}

// readHeaders looks at each header once: asking fasthttp for each by its name
// would take longer than the rest of the parsing. It reads the head as it was
// sent: fasthttp drops what it does not need, and adds trailers.
func (k *call) readHeaders() {
	h := &k.ctx.Request.Header
	k.headers = headers{closes: h.ConnectionClose() || !h.IsHTTP11()}
	k.badFraming = oddLines(h.RawHeaders()) // before they are read, which joins lines in place
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
			k.state = listed(k.state, value)
		case "Baggage":
			k.baggage = listed(k.baggage, value)
		case "Cache-Control":
			k.noCache = k.noCache || hasToken(value, "no-cache")
		case "Connection": // fasthttp only knows the exact word
			k.closes = k.closes || hasToken(value, "close")
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

// oddLines tells whether a head has a line that goes on in the next one, or ends in LF
// alone. Others may read something else there; and where its end is odd, fasthttp reads no
// header at all when it is asked for their order, so none of the checks would see one.
func oddLines(head []byte) bool {
	for {
		end := bytes.IndexByte(head, '\n')
		if end < 0 {
			return false
		}
		if end == 0 || head[end-1] != '\r' {
			return true
		}
		head = head[end+1:]
		if len(head) > 0 && (head[0] == ' ' || head[0] == '\t') {
			return true
		}
	}
}

// listed is what a header says that is a list, and may be given more than once.
func listed(before, value []byte) []byte {
	if before == nil {
		return value
	}
	return bytes.Join([][]byte{before, value}, []byte{','})
}

// hasToken looks for a word in a comma-separated list, whatever its case.
func hasToken(list []byte, token string) bool {
	for len(list) > 0 {
		var item []byte
		item, list, _ = bytes.Cut(list, []byte{','})
		if strings.EqualFold(string(bytes.TrimSpace(item)), token) {
			return true
		}
	}
	return false
}

// joined is the explicit session that the call names, nil if it names none.
func (k *call) joined() (Session, *problem) {
	switch {
	case k.sessions == 0:
		return nil, nil
	case k.sessions > 1:
		return nil, invalid("header Lock-Session is given twice")
	case len(k.session) == 0:
		// Empty is not absent: an app that lost its id must not be given locks
		// that end with this connection.
		return nil, invalid("header Lock-Session is empty; it must be the id of a session, or be left out")
	}
	s, err := k.srv.locks.Session(string(k.session))
	if err != nil {
		return nil, sessionEnded("header Lock-Session: no session lives under this id; open one with POST /v1/sessions")
	}
	return s, nil
}

// traceparentLength is that of version-traceid-parentid-flags.
const traceparentLength = 2 + 1 + 32 + 1 + 16 + 1 + 2

// validTraceparent checks version-traceid-parentid-flags. A later version may
// have more behind that.
func validTraceparent(v []byte) bool {
	const length = traceparentLength
	if len(v) < length || len(v) > length && (string(v[:2]) == "00" || v[length] != '-') {
		return false
	}
	if v[2] != '-' || v[35] != '-' || v[52] != '-' || string(v[:2]) == "ff" {
		return false
	}
	return lowerHex(v[:2]) && lowerHex(v[53:55]) &&
		lowerHex(v[3:35]) && len(bytes.Trim(v[3:35], "0")) > 0 &&
		lowerHex(v[36:52]) && len(bytes.Trim(v[36:52], "0")) > 0
}

func lowerHex(b []byte) bool {
	for _, c := range b {
		if unhex(c) > 15 || c >= 'A' && c <= 'F' {
			return false
		}
	}
	return true
}

// checkHostAndOrigin refuses, on TCP, what a web page may have made a browser send: a Host
// that is not this machine (DNS rebinding), an Origin other than this server, and, as an
// image or a script has no Origin, what the browser says comes from another site.
func (k *call) checkHostAndOrigin() *problem {
	host := string(k.ctx.Request.Header.Host())
	if k.authority != nil {
		host = string(k.authority)
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if !loopbackName(strings.Trim(name, "[]")) {
		return foreign("header Host is not a loopback name or address; use localhost, 127.0.0.1 or [::1]")
	}
	for _, origin := range k.origins {
		if !strings.EqualFold(origin, "http://"+host) {
			return foreign("header Origin: web pages may not call this server")
		}
	}
	for _, site := range k.sites {
		if site != "same-origin" && site != "none" { // none: somebody has typed the address
			return foreign("header Sec-Fetch-Site: web pages may not call this server")
		}
	}
	return nil
}

// foreign refuses a call that another site may have made a browser send.
func foreign(detail string) *problem {
	p := forbidden(detail)
	p.refusal = true
	return p
}

// loopbackName tells whether a host's name or address is this machine's own.
func loopbackName(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
