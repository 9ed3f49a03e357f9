package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease"
)

// The ranges of the contract.
const (
	maxMillis    = 86_400_000
	minTTLMillis = 500
	maxToken     = 1<<53 - 1
	maxData      = 4 << 10
	maxName      = 255
	maxLimit     = 1000
	defaultLimit = 100
)

// parseAcquire reads the body of an acquire.
func parseAcquire(body []byte) (r lease.Request, p *problem) {
	if len(body) == 0 {
		return r, nil
	}
	fields := [...]field{
		{name: "wait_ms"},
		{name: "ttl_ms"},
		{name: "bind"},
		{name: "data"},
		{name: "request_id"},
		{name: "owner", later: true},
		{name: "reentrant", later: true},
		{name: "max_hold_ms", later: true},
		{name: "min_hold_ms", later: true},
		{name: "on_success", later: true},
	}
	if p = parseBody(body, fields[:]); p != nil {
		return r, p
	}
	wait, ttl, bind, data, requestID := &fields[0], &fields[1], &fields[2], &fields[3], &fields[4]
	if r.Wait, p = parseWait(wait); p != nil {
		return r, p
	}
	if r.TTL, p = parseTTL(ttl); p != nil {
		return r, p
	}
	if r.Bind, p = parseBind(bind); p != nil {
		return r, p
	}
	if r.Data, p = parseData(data); p != nil {
		return r, p
	}
	r.RequestID, p = parseRequestID(requestID, r.Bind)
	return r, p
}

func parseWait(f *field) (time.Duration, *problem) {
	if f.raw == nil {
		return 0, nil
	}
	n, p := f.integer(-1, maxMillis)
	if p != nil {
		return 0, p
	}
	if n < 0 {
		return lease.WaitForever, nil
	}
	return time.Duration(n) * time.Millisecond, nil
}

func parseTTL(f *field) (time.Duration, *problem) {
	if f.raw == nil {
		return 0, nil
	}
	n, p := f.integer(minTTLMillis, maxMillis)
	return time.Duration(n) * time.Millisecond, p
}

func parseBind(f *field) (lease.Bind, *problem) {
	if f.raw == nil {
		return lease.BindSession, nil
	}
	text, p := f.text()
	if p != nil {
		return 0, p
	}
	switch text {
	case "session":
		return lease.BindSession, nil
	case "ttl":
		return lease.BindTTL, nil
	}
	return 0, invalid(`field bind is %.40q; it must be "session" or "ttl"`, text)
}

// parseData copies the data in its shortest form: it outlives the request.
func parseData(f *field) ([]byte, *problem) {
	if f.raw == nil || string(f.raw) == "null" {
		return nil, nil
	}
	var compact bytes.Buffer
	compact.Grow(min(len(f.raw), maxData))
	if err := json.Compact(&compact, f.raw); err != nil {
		return nil, invalid("field %s: %v", f.name, err)
	}
	if compact.Len() > maxData {
		return nil, tooLarge(fmt.Sprintf("field %s has %d bytes; at most %d are allowed", f.name, compact.Len(), maxData))
	}
	return compact.Bytes(), nil
}

func parseRequestID(f *field, bind lease.Bind) (uuid.UUID, *problem) {
	if f.raw == nil {
		return uuid.Nil, nil
	}
	text, p := f.text()
	if p != nil {
		return uuid.Nil, p
	}
	if bind != lease.BindTTL {
		return uuid.Nil, invalid(`field request_id is only for "bind":"ttl"`)
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		return uuid.Nil, invalid("field request_id is %.40q; it must be a UUID of the form "+
			"f81d4fae-7dec-41d0-a765-00a0c91e6bf6 other than zero", text)
	}
	return id, nil
}

// parseAmend reads the body of a PATCH.
func parseAmend(body []byte) (r lease.AmendRequest, p *problem) {
	fields := [...]field{{name: "token"}, {name: "ttl_ms"}, {name: "data"}}
	if p = parseBody(body, fields[:]); p != nil {
		return r, p
	}
	token, ttl, data := &fields[0], &fields[1], &fields[2]
	if token.raw == nil {
		return r, invalid("field token is missing; it is the token that the acquire answered")
	}
	if r.Token, p = token.integer(1, maxToken); p != nil {
		return r, p
	}
	if r.TTL, p = parseTTL(ttl); p != nil {
		return r, p
	}
	r.SetData = data.raw != nil
	r.Data, p = parseData(data)
	return r, p
}

// parseRelease reads the query and the body of a release.
func parseRelease(query, body []byte) (token int64, p *problem) {
	params := [...]param{
		{name: "token"},
		{name: "outcome", later: true},
		{name: "reentry", later: true},
		{name: "force", later: true},
	}
	if p = parseQuery(query, params[:]); p != nil {
		return 0, p
	}
	if len(body) > 0 {
		fields := [...]field{{name: "result", later: true}}
		if p = parseBody(body, fields[:]); p != nil {
			return 0, p
		}
	}
	if !params[0].set {
		return 0, invalid("query parameter token is missing; it is the token that the acquire answered")
	}
	return params[0].number(1, maxToken)
}

// parseSession reads the body of POST /v1/sessions.
func parseSession(body []byte) (o lease.SessionOptions, p *problem) {
	fields := [...]field{{name: "ttl_ms"}, {name: "name"}}
	if p = parseBody(body, fields[:]); p != nil {
		return o, p
	}
	ttl, name := &fields[0], &fields[1]
	if o.TTL, p = parseTTL(ttl); p != nil || name.raw == nil {
		return o, p
	}
	if o.Name, p = name.text(); p != nil {
		return o, p
	}
	if len(o.Name) == 0 || len(o.Name) > maxName {
		return o, invalid("field name has %d bytes; it must have 1 to %d", len(o.Name), maxName)
	}
	_, p = checkText("field name", []byte(o.Name))
	return o, p
}

// parseList reads the query of a list. none says that nothing can match.
func parseList(query []byte) (r lease.ListRequest, none bool, p *problem) {
	params := [...]param{{name: "scope"}, {name: "prefix"}, {name: "type"}, {name: "limit"}, {name: "cursor"}}
	if p = parseQuery(query, params[:]); p != nil {
		return r, false, p
	}
	scope, prefix, kind, limit, cursor := &params[0], &params[1], &params[2], &params[3], &params[4]
	if r.Scope, p = parseScope(scope); p != nil {
		return r, false, p
	}
	if r.Prefix, none, p = parsePrefix(prefix, kind); p != nil {
		return r, false, p
	}
	r.Limit = defaultLimit
	if limit.set {
		n, p := limit.number(1, maxLimit)
		if p != nil {
			return r, false, p
		}
		r.Limit = int(n)
	}
	if cursor.set {
		if r.After, p = decodeCursor(cursor.value); p != nil {
			return r, false, p
		}
	}
	return r, none, nil
}

func parseScope(scope *param) (lease.Scope, *problem) {
	if !scope.set {
		return lease.ScopePod, nil
	}
	switch string(scope.value) {
	case "session":
		return lease.ScopeSession, nil
	case "pod":
		return lease.ScopePod, nil
	case "all":
		return lease.ScopeAll, nil
	}
	return 0, invalid("query parameter scope is %.40q; it must be session, pod or all", scope.value)
}

// parsePrefix joins prefix and type, which stands for the prefix "type:". none
// says that no key has both.
func parsePrefix(prefix, kind *param) (joined string, none bool, p *problem) {
	if joined, p = checkText("query parameter prefix", prefix.value); p != nil {
		return "", false, p
	}
	if len(joined) > maxKey {
		return "", false, invalid("query parameter prefix has %d bytes; a key has at most %d", len(joined), maxKey)
	}
	if !kind.set {
		return joined, false, nil
	}
	name, p := checkKey("query parameter type", kind.value)
	if p != nil {
		return "", false, p
	}
	if strings.Contains(name, ":") {
		return "", false, invalid("query parameter type is %.40q; a type ends before the first colon of a key", name)
	}
	typed := name + ":"
	switch {
	case strings.HasPrefix(joined, typed):
		return joined, false, nil
	case strings.HasPrefix(typed, joined):
		return typed, false, nil
	}
	return "", true, nil
}
