package wire

import (
	"cmp"
	"encoding/base64"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// The ranges of the API.
const (
	maxMillis    = 86_400_000
	minTTLMillis = 500
	maxToken     = 1<<53 - 1
	maxReentry   = 1<<31 - 1
	MaxKeys      = 100
	MaxData      = 4 << 10 // of data, and of a result
	MaxDepth     = 64      // of the same, so that other parsers can read it: see tooDeep
	maxName      = 255     // of a session's name, an owner, a reason to stop
	maxLimit     = 1000
	defaultLimit = 100
)

// acquireFields are the fields of an acquire. keys is the last, because only an acquire of several keys has it.
var acquireFields = []string{
	"wait_ms", "ttl_ms", "bind", "data", "request_id", "owner", "reentrant", "max_hold_ms", "min_hold_ms", "on_success", "mode",
	"limit", "keys",
}

// ParseAcquire reads an acquire.
func ParseAcquire(query, body []byte) (lease.Request, *Problem) {
	in := readInput(query, nil, body, acquireFields[:len(acquireFields)-1])
	r := in.acquire()
	return r, in.problem
}

// ParseAcquireAll reads an acquire of several keys, and keeps their order.
func ParseAcquireAll(query, body []byte) ([]string, lease.Request, *Problem) {
	in := readInput(query, nil, body, acquireFields)
	keys := in.keys("keys")
	in.without("is only for a lock that is acquired alone, with PUT /v1/locks/{key}", "limit")
	r := in.acquire()
	switch {
	case r.Reentrant:
		in.failf("field reentrant is only for a lock that is acquired alone")
	case r.Skip:
		in.failf("field on_success: skip is only for a lock that is acquired alone")
	case r.MaxHold > 0 && (r.Wait < 0 || r.Wait >= r.MaxHold):
		// The first locks would be lost during the wait for the others, and be acquired again, endlessly.
		longest := r.MaxHold.Milliseconds()
		in.failf("field wait_ms is %d; with max_hold_ms, which is %d, it must be 0 to %d for several keys: "+
			"the hold of each begins with its own grant, while the call waits for the others", in.integer("wait_ms", -1, maxMillis), longest, longest-1)
	}
	if in.problem != nil {
		return nil, r, in.problem
	}
	return keys, r, nil
}

func (in *input) acquire() lease.Request {
	r := lease.Request{
		Wait: in.millis("wait_ms", -1), TTL: in.millis("ttl_ms", minTTLMillis),
		Data: in.json("data"), RequestID: in.uuid("request_id"), Owner: in.shortText("owner", 1), Reentrant: in.boolean("reentrant"),
		MaxHold: in.millis("max_hold_ms", 0), MinHold: in.millis("min_hold_ms", 0),
		Skip: in.word("on_success", "acquire", "skip") == 2,
	}
	if r.Wait < 0 {
		r.Wait = lease.WaitForever
	}
	in.mode(&r)
	if in.word("bind", "session", "ttl") == 2 {
		r.Bind = lease.BindTTL
		in.without(`is not for "bind":"ttl": the lock belongs to no session`, "owner", "reentrant", "max_hold_ms")
	}
	switch {
	case r.Reentrant && r.Owner == "":
		in.failf("field reentrant needs the field owner: who in the session enters again")
	case r.MaxHold > 0 && r.MinHold > r.MaxHold:
		in.failf("field min_hold_ms is %d; it must not be more than max_hold_ms, which is %d", r.MinHold.Milliseconds(), r.MaxHold.Milliseconds())
	}
	return r
}

// without refuses arguments that cannot be combined with another.
func (in *input) without(why string, names ...string) {
	for _, name := range names {
		if a := in.find(name); a != nil {
			in.failf("%s %s", a.String(), why)
		}
	}
}

// CheckMinHold refuses a bind:ttl lock that ends before its hold. fallback is the default TTL.
func CheckMinHold(r *lease.Request, fallback time.Duration) *Problem {
	ttl := cmp.Or(r.TTL, fallback)
	if r.Bind == lease.BindTTL && r.MinHold > ttl {
		return Invalid(`field min_hold_ms is %d; with "bind":"ttl" it must not be more than ttl_ms, which is %d`,
			r.MinHold.Milliseconds(), ttl.Milliseconds())
	}
	return nil
}

// ParseAmend reads a PATCH.
func ParseAmend(query, body []byte) (lease.AmendRequest, *Problem) {
	in := readInput(query, nil, body, []string{"token", "ttl_ms", "data", "mode"})
	r := lease.AmendRequest{
		Token: in.token(), TTL: in.millis("ttl_ms", minTTLMillis), Share: in.share(), SetData: in.has("data"), Data: in.json("data"),
	}
	if r.Token == 0 {
		in.failf("field token is missing; it is the token that the acquire answered")
	}
	return r, in.problem
}

func (in *input) token() int64 { return in.integer("token", 1, maxToken) }

// ParseRelease reads a release. force: the call breaks the lock, and r contains at most the token of the grant.
func ParseRelease(query, body []byte) (r lease.ReleaseRequest, force bool, p *Problem) {
	in := readInput(query, []string{"token", "outcome", "reentry", "request_id", "force"}, body, []string{"result"})
	if force = in.word("force", "true", "false") == 1; force {
		// A caller that breaks a lock cannot report an outcome of the work.
		in.without("does not go with force=true", "outcome", "reentry", "request_id", "result")
		r.Token = in.token()
	} else {
		r = in.release()
	}
	return r, force, in.problem
}

// ParseReleaseBody reads a release with all fields in its body.
func ParseReleaseBody(query, body []byte) (lease.ReleaseRequest, *Problem) {
	in := readInput(query, nil, body, []string{"token", "request_id", "outcome", "reentry", "result"})
	r := in.release()
	return r, in.problem
}

func (in *input) release() lease.ReleaseRequest {
	r := lease.ReleaseRequest{
		Token: in.token(), RequestID: in.uuid("request_id"), Reentry: int(in.integer("reentry", 1, maxReentry)),
		Outcome: store.ReleaseOutcome(in.word("outcome", OutcomeName(store.Success), OutcomeName(store.Failure))), Result: in.json("result"),
	}
	switch {
	case r.Token == 0 && r.RequestID == uuid.Nil:
		in.failf("token is missing; it is the token that the acquire answered; or give its request_id")
	case r.Token == 0 && r.Reentry != 0:
		in.failf("reentry does not go with request_id, which names the entry")
	case in.has("result") && r.Outcome != store.Success:
		in.failf("field result is only for outcome=success")
	}
	return r
}

// ParseStop reads a request to stop. token is 0 if the request is for all holders. reason is nil if none is given.
func ParseStop(query, body []byte) (token int64, reason *string, p *Problem) {
	in := readInput(query, []string{"token"}, body, []string{"reason"})
	token = in.token()
	if a := in.find("reason"); a != nil && string(a.value) != "null" {
		reason = new(in.shortText("reason", 0))
	}
	return token, reason, in.problem
}

// ParseSession reads a POST /v1/sessions.
func ParseSession(query, body []byte) (lease.SessionOptions, *Problem) {
	in := readInput(query, nil, body, []string{"ttl_ms", "name"})
	o := lease.SessionOptions{TTL: in.millis("ttl_ms", minTTLMillis), Name: in.shortText("name", 1)}
	return o, in.problem
}

// ParseList reads a list. own is the sidecar's namespace. none reports that nothing can match.
func ParseList(query, body []byte, own string) (r lease.ListRequest, none bool, p *Problem) {
	in := readInput(query, []string{"namespace", "scope", "prefix", "type", "limit", "cursor"}, body, nil)
	r.Namespace = in.namespace(own)
	r.Scope = lease.Scope(max(in.word("scope", "all", "pod", "session")-1, 0))
	r.Prefix, none = in.prefix()
	r.Limit = int(cmp.Or(in.integer("limit", 1, maxLimit), defaultLimit))
	if in.has("cursor") {
		r.After = in.cursor()
	}
	if r.Namespace != "" && r.Scope != lease.ScopeAll {
		in.failf("query parameter namespace goes only with scope=all: the others are of the sidecar's own namespace")
	}
	return r, none, in.problem
}

// namespace is the one that is asked for, or empty for the sidecar's own.
func (in *input) namespace(own string) string {
	if name := in.shortText("namespace", 1); name != own {
		return name
	}
	return ""
}

// prefix combines prefix and type, which means the prefix "type:". none reports that no key has both.
func (in *input) prefix() (joined string, none bool) {
	joined, name := in.text("prefix"), in.text("type")
	in.refuse(checkText("query parameter prefix", joined))
	if len(joined) > MaxKey {
		in.failf("query parameter prefix has %d bytes; a key has at most %d", len(joined), MaxKey)
	}
	if !in.has("type") {
		return joined, false
	}
	in.refuse(checkKey("query parameter type", name))
	if strings.Contains(name, ":") {
		in.failf("query parameter type is %.40q; a type ends before the first colon of a key", name)
	}
	typed := name + ":"
	switch {
	case strings.HasPrefix(joined, typed):
		return joined, false
	case strings.HasPrefix(typed, joined):
		return typed, false
	}
	return "", true
}

// A cursor is the last key of the previous page.
func encodeCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func (in *input) cursor() string {
	key, err := base64.RawURLEncoding.Strict().DecodeString(in.text("cursor"))
	if err != nil || checkKey("cursor", string(key)) != nil {
		in.failf("query parameter cursor is not one that this server gave out")
	}
	return string(key)
}
