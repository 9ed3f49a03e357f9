package wire

import (
	"bytes"
	"net/url"
	"unicode"
	"unicode/utf8"
)

// MaxKey limits the bytes of a key.
const MaxKey = 512

// Target is a request's target as sent, without normalisation.
type Target struct {
	Path, Query []byte
	// Authority is set if the target has the form http://authority/path.
	Authority []byte
}

// ParseTarget reads the target of a request. If it fails, it returns the Problem to answer.
func ParseTarget(raw []byte) (Target, *Problem) {
	var t Target
	if len(raw) > 0 && raw[0] != '/' {
		if t.Authority, raw = cutAuthority(raw); t.Authority == nil {
			return t, Problemf(CodeNotFound, "the request's target is not a path")
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
		return "", Problemf(CodeNotFound, "no such resource under the key %q; a / inside a key is written %%2F", before)
	}
	decoded, err := unescape(part, url.PathUnescape)
	if err != nil {
		return "", Invalid("key: %v; a %% is written %%25", err)
	}
	key := string(decoded)
	if p := checkKey("key", key); p != nil {
		return "", p
	}
	return key, nil
}

// checkKey refuses an invalid key. name is the argument's name in the error.
func checkKey(name, key string) *Problem {
	if len(key) == 0 || len(key) > MaxKey {
		return Invalid("%s has %d bytes; it must have 1 to %d", name, len(key), MaxKey)
	}
	return checkText(name, key)
}

func checkText(name, text string) *Problem {
	if !utf8.ValidString(text) {
		return Invalid("%s is not valid UTF-8", name)
	}
	for at, r := range text {
		if unicode.IsControl(r) {
			return Invalid("%s has a control character (U+%04X) at byte %d", name, r, at)
		}
	}
	return nil
}
