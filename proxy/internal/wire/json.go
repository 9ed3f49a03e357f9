package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
)

const jsonSpace = " \t\r\n"

// members calls f for each member of a valid JSON object or array without surrounding space. An array's
// members have no names.
func members(value []byte, f func(name, value []byte)) {
	named := value[0] == '{'
	rest := bytes.TrimLeft(value[1:], jsonSpace)
	for rest[0] != '}' && rest[0] != ']' {
		var name []byte
		if named {
			end := stringEnd(rest)
			name = unquote(rest[:end])
			rest = bytes.TrimLeft(rest[end:], jsonSpace)
			rest = bytes.TrimLeft(rest[1:], jsonSpace) // the colon
		}
		end, _ := valueEnd(rest)
		f(name, rest[:end])
		rest = bytes.TrimLeft(rest[end:], jsonSpace)
		if rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], jsonSpace)
		}
	}
}

// stringEnd is the length of the JSON string at the beginning of b.
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

// valueEnd is the length of the JSON value at the beginning of b, and its depth of nesting.
func valueEnd(b []byte) (end, deepest int) {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '"':
			i += stringEnd(b[i:]) - 1
			if depth == 0 {
				return i + 1, deepest
			}
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			if depth == 0 {
				return i, deepest // the end of the object around a number or literal
			}
			if depth--; depth == 0 {
				return i + 1, deepest
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i, deepest
			}
		}
	}
}

// tooDeep reports whether valid JSON is nested too deep for other parsers, some of which stop at a hundred
// levels. Otherwise one app could prevent the others from reading who holds a lock.
func tooDeep(value []byte) bool {
	if value[0] != '{' && value[0] != '[' {
		return false
	}
	_, depth := valueEnd(value)
	return depth > MaxDepth
}

// unquote decodes a valid JSON string.
func unquote(quoted []byte) []byte {
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

// halfCharacter reports whether a JSON string escapes a lone surrogate. Decoded, all of these become
// U+FFFD, so different owners or keys would be equal.
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

// surrogate returns the half of a pair that an escape (from its u on) encodes, and 0 for any other escape.
func surrogate(escape []byte) rune {
	if escape[0] != 'u' {
		return 0
	}
	r, _ := strconv.ParseUint(string(escape[1:5]), 16, 32)
	if !utf16.IsSurrogate(rune(r)) {
		return 0
	}
	return rune(r)
}
