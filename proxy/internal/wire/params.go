package wire

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// The ranges of the contract.
const (
	maxMillis    = 86_400_000
	minTTLMillis = 500
	maxToken     = 1<<53 - 1
	maxReentry   = 1<<31 - 1
	MaxKeys      = 100
	MaxData      = 4 << 10 // of data, and of a result
	MaxDepth     = 64      // of the same: others must be able to read it, see tooDeep
	maxName      = 255     // of a session's name, an owner, a reason to stop
	maxLimit     = 1000
	defaultLimit = 100
)

// ParseAmend reads the body of a PATCH.
func ParseAmend(body []byte) (r lease.AmendRequest, p *Problem) {
	fields := [...]field{{name: "token"}, {name: "ttl_ms"}, {name: "data"}}
	if p = ParseBody(body, fields[:]); p != nil {
		return r, p
	}
	token, ttl, data := &fields[0], &fields[1], &fields[2]
	if token.raw == nil {
		return r, Invalid("field token is missing; it is the token that the acquire answered")
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

// ParseRelease reads a release. force: it breaks the lock, and r has at most the token of the grant.
func ParseRelease(query, body []byte) (r lease.ReleaseRequest, force bool, p *Problem) {
	params := [...]param{{name: "token"}, {name: "outcome"}, {name: "reentry"}, {name: "request_id"}, {name: "force"}}
	if p = ParseQuery(query, params[:]); p != nil {
		return r, false, p
	}
	fields := [...]field{{name: "result"}}
	if p = ParseBody(body, fields[:]); p != nil {
		return r, false, p
	}
	token, outcome, reentry, id, result := &params[0], &params[1], &params[2], &params[3], &fields[0]
	if force, p = parseForce(&params[4], params[1:4], result); p != nil {
		return r, false, p
	}
	if force && !token.set {
		return r, true, nil
	}
	r, p = releaseRequest(token, id, outcome, reentry, result)
	return r, force, p
}

// ParseReleaseBody reads the body of a release that says all there.
func ParseReleaseBody(body []byte) (r lease.ReleaseRequest, p *Problem) {
	fields := [...]field{{name: "token"}, {name: "request_id"}, {name: "outcome"}, {name: "reentry"}, {name: "result"}}
	if p = ParseBody(body, fields[:]); p != nil {
		return r, p
	}
	return releaseRequest(&fields[0], &fields[1], &fields[2], &fields[3], &fields[4])
}

type argument interface {
	fmt.Stringer // how errors call it
	given() bool
	integer(low, high int64) (int64, *Problem)
	text() (string, *Problem)
}

func releaseRequest(token, id, outcome, reentry argument, result *field) (r lease.ReleaseRequest, p *Problem) {
	switch {
	case !token.given() && !id.given():
		return r, Invalid("%s is missing; it is the token that the acquire answered; or give its request_id", token)
	case !token.given() && reentry.given():
		return r, Invalid("%s does not go with request_id, which names the entry", reentry)
	}
	if token.given() {
		r.Token, p = token.integer(1, maxToken)
	}
	if p == nil && id.given() {
		r.RequestID, p = parseRequestID(id)
	}
	if p != nil {
		return r, p
	}
	if reentry.given() {
		n, p := reentry.integer(1, maxReentry)
		if p != nil {
			return r, p
		}
		r.Reentry = int(n)
	}
	if r.Outcome, p = parseOutcome(outcome); p != nil {
		return r, p
	}
	if result.raw != nil && r.Outcome != store.Success {
		return r, Invalid("field result is only for outcome=success")
	}
	r.Result, p = parseData(result)
	return r, p
}

// parseForce reads force. Only a token may stand beside it: a caller that breaks a lock cannot say what
// was done under it.
func parseForce(force *param, others []param, result *field) (bool, *Problem) {
	if !force.set || string(force.value) == "false" {
		return false, nil
	}
	if string(force.value) != "true" {
		return false, Invalid("query parameter force is %.40q; it must be true or false", force.value)
	}
	for _, other := range others {
		if other.set {
			return false, Invalid("query parameter %s does not go with force=true", other.name)
		}
	}
	if result.raw != nil {
		return false, Invalid("field result does not go with force=true")
	}
	return true, nil
}

func parseOutcome(outcome argument) (store.ReleaseOutcome, *Problem) {
	if !outcome.given() {
		return store.NoOutcome, nil
	}
	word, p := outcome.text()
	switch {
	case p != nil:
		return 0, p
	case word == "success":
		return store.Success, nil
	case word == "failure":
		return store.Failure, nil
	}
	return 0, Invalid("%s is %.40q; it must be success or failure", outcome, word)
}

// ParseStop reads the body of a stop. reason is nil if none is given.
func ParseStop(body []byte) (reason *string, p *Problem) {
	fields := [...]field{{name: "reason"}}
	if p = ParseBody(body, fields[:]); p != nil {
		return nil, p
	}
	given := &fields[0]
	if given.raw == nil || string(given.raw) == "null" {
		return nil, nil
	}
	text, p := given.shortText(0)
	return &text, p
}

// ParseSession reads the body of POST /v1/sessions.
func ParseSession(body []byte) (o lease.SessionOptions, p *Problem) {
	fields := [...]field{{name: "ttl_ms"}, {name: "name"}}
	if p = ParseBody(body, fields[:]); p != nil {
		return o, p
	}
	ttl, name := &fields[0], &fields[1]
	if o.TTL, p = parseTTL(ttl); p != nil || name.raw == nil {
		return o, p
	}
	o.Name, p = name.shortText(1)
	return o, p
}

// ParseList reads the query of a list. none says that nothing can match.
func ParseList(query []byte) (r lease.ListRequest, none bool, p *Problem) {
	params := [...]param{{name: "scope"}, {name: "prefix"}, {name: "type"}, {name: "limit"}, {name: "cursor"}}
	if p = ParseQuery(query, params[:]); p != nil {
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
		n, p := limit.integer(1, maxLimit)
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

func parseScope(scope *param) (lease.Scope, *Problem) {
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
	return 0, Invalid("query parameter scope is %.40q; it must be session, pod or all", scope.value)
}

// parsePrefix joins prefix and type, which stands for the prefix "type:". none: no key has both.
func parsePrefix(prefix, kind *param) (joined string, none bool, p *Problem) {
	if joined, p = checkText("query parameter prefix", prefix.value); p != nil {
		return "", false, p
	}
	if len(joined) > MaxKey {
		return "", false, Invalid("query parameter prefix has %d bytes; a key has at most %d", len(joined), MaxKey)
	}
	if !kind.set {
		return joined, false, nil
	}
	name, p := checkKey("query parameter type", kind.value)
	if p != nil {
		return "", false, p
	}
	if strings.Contains(name, ":") {
		return "", false, Invalid("query parameter type is %.40q; a type ends before the first colon of a key", name)
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
