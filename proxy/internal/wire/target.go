package wire

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// MaxKey is the most bytes in a key.
const MaxKey = 512

// Target is a request's target, as it was sent: nothing is normalised.
type Target struct {
	Path, Query []byte
	// authority is set if the target has the form http://authority/path.
	Authority []byte
}

// ParseTarget reads the target of a request. It fails with the Problem to answer.
func ParseTarget(raw []byte) (Target, *Problem) {
	var t Target
	if len(raw) > 0 && raw[0] != '/' {
		if t.Authority, raw = cutAuthority(raw); t.Authority == nil {
			return t, NotFound("the request's target is not a path")
		}
	}
	if bytes.IndexByte(raw, '#') >= 0 {
		return t, Invalid("the request's target has a #; in a key or parameter it is written %%23")
	}
	t.Path, t.Query, _ = bytes.Cut(raw, []byte{'?'})
	return t, nil
}

// cutAuthority splits http://authority/path. Otherwise authority is nil.
func cutAuthority(raw []byte) (authority, rest []byte) {
	const scheme = "http://"
	if len(raw) <= len(scheme) || !bytes.EqualFold(raw[:len(scheme)], []byte(scheme)) {
		return nil, nil
	}
	raw = raw[len(scheme):]
	end := bytes.IndexAny(raw, "/?#")
	switch {
	case end < 0:
		return raw, []byte{'/'}
	case end == 0:
		return nil, nil
	}
	return raw[:end], raw[end:]
}

// ParseKey reads a key from its part of the path.
func ParseKey(part []byte) (string, *Problem) {
	if before, _, found := bytes.Cut(part, []byte{'/'}); found {
		return "", NotFound(fmt.Sprintf(
			"no such resource under the key %q; a / inside a key is written %%2F", before))
	}
	decoded, at := unescape(part, false)
	if at >= 0 {
		return "", Invalid("key: bad percent escape at byte %d; a %% is written %%25", at)
	}
	return checkKey("key", decoded)
}

// checkKey refuses what is no key. name is what the error calls it.
func checkKey(name string, key []byte) (string, *Problem) {
	switch {
	case len(key) == 0:
		return "", Invalid("%s is empty; it must have 1 to %d bytes", name, MaxKey)
	case len(key) > MaxKey:
		return "", Invalid("%s has %d bytes; it must have 1 to %d", name, len(key), MaxKey)
	}
	return checkText(name, key)
}

func checkText(name string, text []byte) (string, *Problem) {
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			if c < 0x20 || c == 0x7f {
				return "", Invalid("%s has a control character (U+%04X) at byte %d", name, c, i)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return "", Invalid("%s is not valid UTF-8 at byte %d", name, i)
		}
		if r < 0xa0 {
			return "", Invalid("%s has a control character (U+%04X) at byte %d", name, r, i)
		}
		i += size
	}
	return string(text), nil
}

// unescape decodes percent escapes, and + as a space if plus is set. at is where an escape is bad, else
// -1. Text without escapes is returned as it is.
func unescape(s []byte, plus bool) (decoded []byte, at int) {
	if bytes.IndexByte(s, '%') < 0 && (!plus || bytes.IndexByte(s, '+') < 0) {
		return s, -1
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			if i+2 >= len(s) {
				return nil, i
			}
			high, low := unhex(s[i+1]), unhex(s[i+2])
			if high > 15 || low > 15 {
				return nil, i
			}
			out = append(out, high<<4|low)
			i += 2
		case s[i] == '+' && plus:
			out = append(out, ' ')
		default:
			out = append(out, s[i])
		}
	}
	return out, -1
}

// unhex returns a number above 15 for what is no hexadecimal digit.
func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

type param struct {
	name  string
	value []byte
	set   bool
}

// ParseQuery fills in the parameters that a call knows, and refuses all others.
func ParseQuery(query []byte, known []param) *Problem {
	for len(query) > 0 {
		var part []byte
		part, query, _ = bytes.Cut(query, []byte{'&'})
		if p := parseParam(part, known); p != nil {
			return p
		}
	}
	return nil
}

func parseParam(part []byte, known []param) *Problem {
	rawName, rawValue, hasValue := bytes.Cut(part, []byte{'='})
	name, bad := unescape(rawName, true)
	if bad >= 0 {
		return Invalid("query: bad percent escape in a parameter's name")
	}
	for i := range known {
		k := &known[i]
		switch {
		case string(name) != k.name:
			continue
		case k.set:
			return Invalid("query parameter %s is given twice", k.name)
		case !hasValue:
			return Invalid("query parameter %s has no value; write %s=...", k.name, k.name)
		}
		if k.value, bad = unescape(rawValue, true); bad >= 0 {
			return Invalid("query parameter %s: bad percent escape; a %% is written %%25", k.name)
		}
		k.set = true
		return nil
	}
	return Invalid("query parameter %q is not known here; known: %s", name, namesOf(known))
}

func namesOf(known []param) string {
	if len(known) == 0 {
		return "none"
	}
	names := ""
	for _, k := range known {
		if names != "" {
			names += ", "
		}
		names += k.name
	}
	return names
}

func (p *param) String() string { return "query parameter " + p.name }

func (p *param) given() bool { return p.set }

func (p *param) integer(low, high int64) (int64, *Problem) {
	n, ok := parseInteger(p.value)
	if !ok || n < low || n > high {
		return 0, Invalid("%s is %q; it must be an integer from %d to %d", p, p.value, low, high)
	}
	return n, nil
}

func (p *param) text() (string, *Problem) { return string(p.value), nil }

// parseInteger reads an integer as JSON writes it.
func parseInteger(b []byte) (int64, bool) {
	digits := b
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	return n, err == nil
}

// A cursor is the last key of the page before it.
func encodeCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func decodeCursor(cursor []byte) (string, *Problem) {
	key, err := base64.RawURLEncoding.Strict().DecodeString(string(cursor))
	if err != nil {
		return "", Invalid("query parameter cursor is not one that this server gave out")
	}
	after, p := checkKey("query parameter cursor", key)
	if p != nil {
		return "", Invalid("query parameter cursor is not one that this server gave out")
	}
	return after, nil
}
