package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// input contains the parameters and fields of a call. problem is the first mistake. After a mistake, every
// value is zero, as is a missing one.
type input struct {
	given   [13]argument // no call has more
	count   int
	problem *Problem
}

// argument is a decoded parameter, or a field, whose value is JSON.
type argument struct {
	name    string
	value   []byte
	isField bool
}

func (a *argument) String() string {
	if a.isField {
		return "field " + a.name
	}
	return "query parameter " + a.name
}

// readInput reads the parameters and fields that a call allows, and refuses all others.
func readInput(query []byte, params []string, body []byte, fields []string) (in input) {
	in.readQuery(query, params)
	if len(body) > 0 { // an empty body is an empty object
		in.readBody(body, fields)
	}
	return in
}

// NoInput refuses every parameter and field.
func NoInput(query, body []byte) *Problem {
	in := readInput(query, nil, body, nil)
	return in.problem
}

func (in *input) readQuery(query []byte, known []string) {
	for len(query) > 0 && in.problem == nil {
		var part []byte
		part, query, _ = bytes.Cut(query, []byte{'&'})
		name, value, hasValue := bytes.Cut(part, []byte{'='})
		name, badName := unescape(name, url.QueryUnescape)
		value, badValue := unescape(value, url.QueryUnescape)
		switch {
		case badName != nil:
			in.failf("query: bad percent escape in a parameter's name")
		case badValue != nil:
			in.failf("query parameter %s: bad percent escape; a %% is written %%25", name)
		case !hasValue && slices.Contains(known, string(name)):
			in.failf("query parameter %s has no value; write %[1]s=...", name)
		default:
			in.add(argument{value: value}, name, known)
		}
	}
}

func unescape(s []byte, how func(string) (string, error)) ([]byte, error) {
	if !bytes.ContainsAny(s, "%+") {
		return s, nil
	}
	decoded, err := how(string(s))
	return []byte(decoded), err
}

func (in *input) readBody(body []byte, known []string) {
	if !utf8.Valid(body) {
		in.failf("body: not valid UTF-8")
		return
	}
	if !json.Valid(body) {
		var raw json.RawMessage
		in.failf("body: not valid JSON: %v", json.Unmarshal(body, &raw))
		return
	}
	if body = bytes.Trim(body, jsonSpace); body[0] != '{' {
		in.failf("body: it is %s; it must be a JSON object", kindOf(body))
		return
	}
	members(body, func(name, value []byte) { in.add(argument{value: value, isField: true}, name, known) })
}

func (in *input) add(a argument, name []byte, known []string) {
	if in.problem != nil {
		return
	}
	i := slices.IndexFunc(known, func(one string) bool { return one == string(name) })
	if i < 0 {
		a.name = strconv.Quote(string(name))
		in.failf("%s is not known here; known: %s", a.String(), cmp.Or(strings.Join(known, ", "), "none"))
		return
	}
	a.name = known[i]
	if in.has(a.name) {
		in.failf("%s is given twice", a.String())
		return
	}
	in.given[in.count] = a
	in.count++
}

func (in *input) failf(format string, args ...any) { in.refuse(Invalid(format, args...)) }

func (in *input) refuse(p *Problem) {
	if in.problem == nil {
		in.problem = p
	}
}

func (in *input) has(name string) bool { return in.find(name) != nil }

func (in *input) find(name string) *argument {
	for i := range in.given[:in.count] {
		if in.given[i].name == name && in.problem == nil {
			return &in.given[i]
		}
	}
	return nil
}

func (in *input) integer(name string, low, high int64) int64 {
	a := in.find(name)
	if a == nil {
		return 0
	}
	n, ok := parseInteger(a.value)
	switch {
	case a.isField && kindOf(a.value) != "a number":
		in.failf("%s is %s; it must be an integer from %d to %d", a.String(), kindOf(a.value), low, high)
	case !ok || n < low || n > high:
		in.failf("%s is %.40s; it must be an integer from %d to %d, without fraction or exponent", a.String(), a.value, low, high)
	}
	return n
}

// parseInteger reads an integer in its only allowed form.
func parseInteger(b []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(b), 10, 64)
	var text [20]byte
	return n, err == nil && bytes.Equal(strconv.AppendInt(text[:0], n, 10), b)
}

func (in *input) millis(name string, low int64) time.Duration {
	return time.Duration(in.integer(name, low, maxMillis)) * time.Millisecond
}

func (in *input) boolean(name string) bool {
	a := in.find(name)
	if a != nil && a.value[0] != 't' && a.value[0] != 'f' {
		in.failf("%s is %s; it must be a boolean", a.String(), kindOf(a.value))
	}
	return a != nil && a.value[0] == 't'
}

func (in *input) text(name string) string {
	if a := in.find(name); a != nil {
		return in.textOf(a)
	}
	return ""
}

func (in *input) textOf(a *argument) string {
	switch {
	case !a.isField:
		return string(a.value)
	case a.value[0] != '"':
		in.failf("%s is %s; it must be a string", a.String(), kindOf(a.value))
		return ""
	case halfCharacter(a.value):
		in.failf("%s has one half of a surrogate pair (\\uD800 to \\uDFFF), which is no character", a.String())
	}
	return string(unquote(a.value))
}

// shortText reads a string of low to [maxName] bytes without control characters.
func (in *input) shortText(name string, low int) string {
	a, text := in.find(name), in.text(name)
	if a == nil {
		return ""
	}
	if len(text) < low || len(text) > maxName {
		in.failf("%s has %d bytes; it must have %d to %d", a.String(), len(text), low, maxName)
	}
	in.refuse(checkText(a.String(), text))
	return text
}

// word returns which of the words is given. The first is 1.
func (in *input) word(name string, words ...string) int {
	a, text := in.find(name), in.text(name)
	if a == nil {
		return 0
	}
	i := slices.Index(words, text)
	if i < 0 {
		in.failf("%s is %.40q; it must be %s", a.String(), text, strings.Join(words, " or "))
	}
	return i + 1
}

// json copies a field's JSON in its shortest form, because it outlives the request. Null means none.
func (in *input) json(name string) []byte {
	a := in.find(name)
	if a == nil || string(a.value) == "null" {
		return nil
	}
	var compact bytes.Buffer
	compact.Grow(min(len(a.value), MaxData))
	_ = json.Compact(&compact, a.value) // the JSON is valid
	if compact.Len() > MaxData {
		in.refuse(Problemf(CodeTooLarge, "%s has %d bytes; at most %d are allowed", a.String(), compact.Len(), MaxData))
	}
	if tooDeep(a.value) {
		in.failf("%s is nested deeper than %d levels", a.String(), MaxDepth)
	}
	return compact.Bytes()
}

func (in *input) uuid(name string) uuid.UUID {
	a, text := in.find(name), in.text(name)
	if a == nil {
		return uuid.Nil
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		// The value is not shown, because with it anyone could repeat the call and get the token.
		in.failf("%s must be a UUID of the form f81d4fae-7dec-41d0-a765-00a0c91e6bf6 other than zero", a.String())
	}
	return id
}

// keys reads a field that is an array of different keys.
func (in *input) keys(name string) (keys []string) {
	a, is := in.find(name), "missing"
	if a != nil {
		is = kindOf(a.value)
	}
	if is != "an array" {
		in.failf("field %s is %s; it must be an array of 1 to %d keys", name, is, MaxKeys)
		return nil
	}
	seen := make(map[string]bool)
	members(a.value, func(_, value []byte) {
		if len(keys) == MaxKeys {
			in.failf("field %s has more than %d elements", name, MaxKeys)
		}
		if in.problem != nil {
			return
		}
		one := argument{name: fmt.Sprintf("%s[%d]", name, len(keys)), value: value, isField: true}
		key := in.textOf(&one)
		in.refuse(checkKey(one.String(), key))
		if seen[key] {
			in.failf("%s: the key %q is given twice", one.String(), key)
		}
		seen[key] = true
		keys = append(keys, key)
	})
	if len(keys) == 0 {
		in.failf("field %s is empty; it must be an array of 1 to %d keys", name, MaxKeys)
	}
	return keys
}
