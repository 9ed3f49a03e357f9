package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

type field struct {
	name string
	raw  []byte // the value, as JSON; nil if the field is not there
}

// ParseBody fills in the fields that a call knows, and refuses all others. No body is an empty object.
func ParseBody(body []byte, known []field) *Problem {
	if len(body) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return Invalid("body: not valid UTF-8")
	}
	if !json.Valid(body) {
		return Invalid("body: not valid JSON: %s", syntaxError(body))
	}
	body = bytes.Trim(body, jsonSpace)
	if body[0] != '{' {
		return Invalid("body: it is %s; it must be a JSON object", kindOf(body))
	}
	return eachField(body, func(name, value []byte) *Problem {
		return setField(known, name, value)
	})
}

func setField(known []field, name, value []byte) *Problem {
	for i := range known {
		k := &known[i]
		switch {
		case string(name) != k.name:
			continue
		case k.raw != nil:
			return Invalid("field %s is given twice", name)
		}
		k.raw = value
		return nil
	}
	return Invalid("field %q is not known here; known: %s", name, fieldNames(known))
}

func fieldNames(known []field) string {
	if len(known) == 0 {
		return "none"
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}

func syntaxError(body []byte) string {
	var raw json.RawMessage
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(body, &raw)); ok {
		return fmt.Sprintf("%v (byte %d)", syntax, syntax.Offset)
	}
	return "unknown error"
}

const jsonSpace = " \t\r\n"

// eachField walks over the members of a valid JSON object without space around it.
func eachField(object []byte, f func(name, value []byte) *Problem) *Problem {
	rest := bytes.TrimLeft(object[1:], jsonSpace)
	for rest[0] != '}' {
		end := stringEnd(rest)
		name := unquoteBytes(rest[:end])
		rest = bytes.TrimLeft(rest[end:], jsonSpace)
		rest = bytes.TrimLeft(rest[1:], jsonSpace) // the colon
		end = valueEnd(rest)
		if p := f(name, rest[:end]); p != nil {
			return p
		}
		rest = bytes.TrimLeft(rest[end:], jsonSpace)
		if rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], jsonSpace)
		}
	}
	return nil
}

// eachElement walks over the elements of a valid JSON array without space around it.
func eachElement(array []byte, f func(value []byte) *Problem) *Problem {
	rest := bytes.TrimLeft(array[1:], jsonSpace)
	for rest[0] != ']' {
		end := valueEnd(rest)
		if p := f(rest[:end]); p != nil {
			return p
		}
		rest = bytes.TrimLeft(rest[end:], jsonSpace)
		if rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], jsonSpace)
		}
	}
	return nil
}

// stringEnd is the length of the JSON string with which b begins.
func stringEnd(b []byte) int {
	for i := 1; ; i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// valueEnd is the length of the JSON value with which b begins.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '"':
			i += stringEnd(b[i:]) - 1
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of the object around a number or literal
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
}

// tooDeep tells whether valid JSON is nested too deep for others: some parsers end at a hundred levels.
// One app could keep the others from hearing who holds a lock.
func tooDeep(value []byte) bool {
	depth := 0
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '"':
			i += stringEnd(value[i:]) - 1
		case '{', '[':
			if depth++; depth > MaxDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// unquote decodes a JSON string that is known to be valid.
func unquote(quoted []byte) string { return string(unquoteBytes(quoted)) }

func unquoteBytes(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	_ = json.Unmarshal(quoted, &s)
	return []byte(s)
}

func kindOf(value []byte) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func (f *field) String() string { return "field " + f.name }

func (f *field) given() bool { return f.raw != nil }

func (f *field) integer(low, high int64) (int64, *Problem) {
	n, ok := parseInteger(f.raw)
	switch {
	case kindOf(f.raw) != "a number":
		return 0, Invalid("field %s is %s; it must be an integer from %d to %d", f.name, kindOf(f.raw), low, high)
	case !ok || n < low || n > high:
		return 0, Invalid("field %s is %.40s; it must be an integer from %d to %d, without fraction or exponent",
			f.name, f.raw, low, high)
	}
	return n, nil
}

func (f *field) text() (string, *Problem) {
	if f.raw[0] != '"' {
		return "", Invalid("field %s is %s; it must be a string", f.name, kindOf(f.raw))
	}
	if halfCharacter(f.raw) {
		return "", Invalid("field %s has one half of a surrogate pair (\\uD800 to \\uDFFF), which is no character", f.name)
	}
	return unquote(f.raw), nil
}

// shortText reads a string of low to [maxName] bytes without control characters.
func (f *field) shortText(low int) (string, *Problem) {
	text, p := f.text()
	if p != nil {
		return "", p
	}
	if len(text) < low || len(text) > maxName {
		return "", Invalid("field %s has %d bytes; it must have %d to %d", f.name, len(text), low, maxName)
	}
	return checkText("field "+f.name, []byte(text))
}

func (f *field) boolean() (bool, *Problem) {
	switch f.raw[0] {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, Invalid("field %s is %s; it must be a boolean", f.name, kindOf(f.raw))
}

// halfCharacter reports whether a JSON string escapes a lone surrogate. Decoded, all become U+FFFD, so
// different owners or keys would be the same.
func halfCharacter(quoted []byte) bool {
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		i++
		r := surrogate(quoted[i:])
		if r == 0 {
			continue
		}
		i += len("uD800")
		if r >= 0xdc00 || quoted[i] != '\\' || surrogate(quoted[i+1:]) < 0xdc00 {
			return true
		}
		i += len("uDC00")
	}
	return false
}

// surrogate returns the half of a pair that an escape, from its u on, stands for, and 0 for any other.
func surrogate(escape []byte) (r rune) {
	if escape[0] != 'u' {
		return 0
	}
	for _, digit := range escape[1:5] {
		r = r<<4 | rune(unhex(digit))
	}
	if !utf16.IsSurrogate(r) {
		return 0
	}
	return r
}
