package cli

import (
	"unicode"
	"unicode/utf8"
)

// key is a key of the keyboard: a sign, or one of those that have names.
type key struct {
	code keyCode
	r    rune // of keyRune
}

type keyCode int

const (
	keyRune keyCode = iota + 1
	keyEnter
	keyEscape
	keyErase
	keyEraseAll  // Ctrl-U
	keyInterrupt // Ctrl-C
	keySuspend   // Ctrl-Z
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
)

const escape = 0x1b

const maxSequence = 32

var controls = map[byte]keyCode{
	'\r': keyEnter, '\n': keyEnter, 0x7f: keyErase, 0x08: keyErase, 0x15: keyEraseAll, 0x03: keyInterrupt, 0x1a: keySuspend,
}

// sequences are what terminals send after ESC for the other keys.
var sequences = map[string]keyCode{
	"[A": keyUp, "OA": keyUp, "[B": keyDown, "OB": keyDown, "[5~": keyPageUp, "[6~": keyPageDown,
	"[H": keyHome, "OH": keyHome, "[1~": keyHome, "[7~": keyHome, "[F": keyEnd, "OF": keyEnd, "[4~": keyEnd, "[8~": keyEnd,
}

// keyParser makes keys of the bytes that a terminal sends.
type keyParser struct{ pending []byte }

// feed takes in bytes and returns the complete keys, without unknown ones.
func (p *keyParser) feed(b []byte) (keys []key) {
	p.pending = append(p.pending, b...)
	for len(p.pending) > 0 {
		k, used := next(p.pending)
		if used == 0 {
			break
		}
		p.pending = p.pending[used:]
		if k.code != 0 {
			keys = append(keys, k)
		}
	}
	if len(p.pending) > maxSequence {
		p.pending = nil
	}
	return keys
}

// flush is called after a short pause: an ESC without a sequence was the key itself.
func (p *keyParser) flush() (keys []key) {
	if len(p.pending) > 0 && p.pending[0] == escape {
		keys = []key{{code: keyEscape}}
	}
	p.pending = nil
	return keys
}

// next is the first key in b, and how many bytes it has; 0: it is not complete.
func next(b []byte) (k key, used int) {
	switch {
	case b[0] == escape:
		return nextSequence(b)
	case controls[b[0]] != 0:
		return key{code: controls[b[0]]}, 1
	case !utf8.FullRune(b):
		return key{}, 0
	}
	r, size := utf8.DecodeRune(b)
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return key{}, size
	}
	return key{code: keyRune, r: r}, size
}

func nextSequence(b []byte) (k key, used int) {
	if len(b) == 1 {
		return key{}, 0
	}
	if b[1] != '[' && b[1] != 'O' {
		return key{code: keyEscape}, 1
	}
	for i := 2; i < len(b); i++ {
		if c := b[i]; c >= '@' && c <= '~' { // the last byte of a sequence
			return key{code: sequences[string(b[1:i+1])]}, i + 1
		}
	}
	return key{}, 0
}
