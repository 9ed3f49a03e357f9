package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease"
)

type options [optionCount]field

// The fields of an acquire. keys stands last: only an acquire of several has it.
const (
	optWait = iota
	optTTL
	optBind
	optData
	optRequestID
	optOwner
	optReentrant
	optMaxHold
	optMinHold
	optOnSuccess
	optKeys
	optionCount
)

func newOptions() options {
	return options{
		optWait: {name: "wait_ms"}, optTTL: {name: "ttl_ms"}, optBind: {name: "bind"}, optData: {name: "data"},
		optRequestID: {name: "request_id"}, optOwner: {name: "owner"}, optReentrant: {name: "reentrant"},
		optMaxHold: {name: "max_hold_ms"}, optMinHold: {name: "min_hold_ms"}, optOnSuccess: {name: "on_success"},
		optKeys: {name: "keys"},
	}
}

// ParseAcquire reads the body of an acquire.
func ParseAcquire(body []byte) (r lease.Request, p *Problem) {
	if len(body) == 0 {
		return r, nil
	}
	o := newOptions()
	if p = ParseBody(body, o[:optKeys]); p != nil {
		return r, p
	}
	return o.parse()
}

// ParseAcquireAll reads the body of an acquire of several keys, whose order is kept.
func ParseAcquireAll(body []byte) (keys []string, r lease.Request, p *Problem) {
	o := newOptions()
	if p = ParseBody(body, o[:]); p != nil {
		return nil, r, p
	}
	if keys, p = parseKeys(&o[optKeys]); p != nil {
		return nil, r, p
	}
	if r, p = o.parse(); p != nil {
		return nil, r, p
	}
	switch {
	case r.Reentrant:
		return nil, r, Invalid("field reentrant is only for a lock that is acquired alone")
	case r.Skip:
		return nil, r, Invalid("field on_success: skip is only for a lock that is acquired alone")
	case r.MaxHold > 0 && (r.Wait < 0 || r.Wait >= r.MaxHold):
		// The first locks would be lost while the call waits for the others, and be acquired again, without end.
		longest := r.MaxHold.Milliseconds()
		return nil, r, Invalid("field wait_ms is %.20s; with max_hold_ms, which is %d, it must be 0 to %d for several keys: "+
			"the hold of each begins with its own grant, while the call waits for the others", o[optWait].raw, longest, longest-1)
	}
	return keys, r, nil
}

func parseKeys(f *field) (keys []string, p *Problem) {
	switch {
	case f.raw == nil:
		return nil, Invalid("field keys is missing; it must be an array of 1 to %d keys", MaxKeys)
	case f.raw[0] != '[':
		return nil, Invalid("field keys is %s; it must be an array of 1 to %d keys", kindOf(f.raw), MaxKeys)
	}
	seen := make(map[string]bool)
	p = eachElement(f.raw, func(value []byte) *Problem {
		if len(keys) == MaxKeys {
			return Invalid("field keys has more than %d elements", MaxKeys)
		}
		one := field{name: fmt.Sprintf("keys[%d]", len(keys)), raw: value}
		text, p := one.text()
		if p != nil {
			return p
		}
		key, p := checkKey("field "+one.name, []byte(text))
		switch {
		case p != nil:
			return p
		case seen[key]:
			return Invalid("field %s: the key %q is given twice", one.name, key)
		}
		seen[key] = true
		keys = append(keys, key)
		return nil
	})
	if p == nil && len(keys) == 0 {
		p = Invalid("field keys is empty; it must be an array of 1 to %d keys", MaxKeys)
	}
	return keys, p
}

func (o *options) parse() (r lease.Request, p *Problem) {
	if r.Wait, p = parseWait(&o[optWait]); p != nil {
		return r, p
	}
	if r.TTL, p = parseTTL(&o[optTTL]); p != nil {
		return r, p
	}
	if r.Bind, p = parseBind(&o[optBind]); p != nil {
		return r, p
	}
	if r.Data, p = parseData(&o[optData]); p != nil {
		return r, p
	}
	if r.RequestID, p = parseRequestID(&o[optRequestID]); p != nil {
		return r, p
	}
	if r.Bind == lease.BindTTL {
		if p = o.refuseForTTL(optOwner, optReentrant, optMaxHold); p != nil {
			return r, p
		}
	}
	if r.Owner, r.Reentrant, p = o.parseOwner(); p != nil {
		return r, p
	}
	if r.MaxHold, r.MinHold, p = o.parseHolds(); p != nil {
		return r, p
	}
	r.Skip, p = parseOnSuccess(&o[optOnSuccess])
	return r, p
}

func (o *options) refuseForTTL(which ...int) *Problem {
	for _, i := range which {
		if o[i].raw != nil {
			return Invalid(`field %s is not for "bind":"ttl": the lock belongs to no session`, o[i].name)
		}
	}
	return nil
}

func parseWait(f *field) (time.Duration, *Problem) {
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

func parseTTL(f *field) (time.Duration, *Problem) {
	if f.raw == nil {
		return 0, nil
	}
	n, p := f.integer(minTTLMillis, maxMillis)
	return time.Duration(n) * time.Millisecond, p
}

func parseBind(f *field) (lease.Bind, *Problem) {
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
	return 0, Invalid(`field bind is %.40q; it must be "session" or "ttl"`, text)
}

// parseData copies a field's JSON in its shortest form: it outlives the request. Null means none.
func parseData(f *field) ([]byte, *Problem) {
	if f.raw == nil || string(f.raw) == "null" {
		return nil, nil
	}
	var compact bytes.Buffer
	compact.Grow(min(len(f.raw), MaxData))
	if err := json.Compact(&compact, f.raw); err != nil {
		return nil, Invalid("field %s: %v", f.name, err)
	}
	if compact.Len() > MaxData {
		return nil, TooLarge(fmt.Sprintf("field %s has %d bytes; at most %d are allowed", f.name, compact.Len(), MaxData))
	}
	if tooDeep(f.raw) {
		return nil, Invalid("field %s is nested deeper than %d levels", f.name, MaxDepth)
	}
	return compact.Bytes(), nil
}

func parseRequestID(a argument) (uuid.UUID, *Problem) {
	if !a.given() {
		return uuid.Nil, nil
	}
	text, p := a.text()
	if p != nil {
		return uuid.Nil, p
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		// It is not shown: whoever has it can repeat the call, and is told the token.
		return uuid.Nil, Invalid("%s must be a UUID of the form f81d4fae-7dec-41d0-a765-00a0c91e6bf6 other than zero", a)
	}
	return id, nil
}

func (o *options) parseOwner() (owner string, reentrant bool, p *Problem) {
	if f := &o[optOwner]; f.raw != nil {
		if owner, p = f.shortText(1); p != nil {
			return "", false, p
		}
	}
	if f := &o[optReentrant]; f.raw != nil {
		if reentrant, p = f.boolean(); p != nil {
			return "", false, p
		}
	}
	if reentrant && owner == "" {
		return "", false, Invalid("field reentrant needs the field owner: who in the session enters again")
	}
	return owner, reentrant, nil
}

// parseHolds reads max_hold_ms and min_hold_ms; a maximum of 0 is none.
func (o *options) parseHolds() (longest, shortest time.Duration, p *Problem) {
	if longest, p = parseHold(&o[optMaxHold]); p != nil {
		return 0, 0, p
	}
	if shortest, p = parseHold(&o[optMinHold]); p != nil {
		return 0, 0, p
	}
	if longest > 0 && shortest > longest {
		return 0, 0, Invalid("field min_hold_ms is %d; it must not be more than max_hold_ms, which is %d",
			shortest.Milliseconds(), longest.Milliseconds())
	}
	return longest, shortest, nil
}

func parseHold(f *field) (time.Duration, *Problem) {
	if f.raw == nil {
		return 0, nil
	}
	n, p := f.integer(0, maxMillis)
	return time.Duration(n) * time.Millisecond, p
}

func parseOnSuccess(f *field) (skip bool, p *Problem) {
	if f.raw == nil {
		return false, nil
	}
	text, p := f.text()
	if p != nil {
		return false, p
	}
	switch text {
	case "acquire":
		return false, nil
	case "skip":
		return true, nil
	}
	return false, Invalid(`field on_success is %.40q; it must be "acquire" or "skip"`, text)
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
