package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable makes a text from elsewhere (a key, a name, a reason) safe for a terminal. It escapes, as
// Go does, control characters, marks of writing direction, line separators, and invalid UTF-8.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, s[i])
		case !unprintable(r):
			out.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r <= 0xFFFF:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\U%08x`, r)
		}
		i += size
	}
	return out.String()
}

// unprintable is true of all but letters, marks, numbers, signs and space, and of U+FFFD, so that
// invalid UTF-8 is looked at closely.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// cells is how many columns of a terminal a rune takes.
func cells(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r >= 0x1100 && unicode.Is(wide, r):
		return 2
	}
	return 1
}

var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115F, Stride: 1}, // Hangul Jamo
		{Lo: 0x2E80, Hi: 0x303E, Stride: 1}, // CJK radicals and punctuation
		{Lo: 0x3041, Hi: 0xA4CF, Stride: 1}, // Kana, CJK, Yi
		{Lo: 0xAC00, Hi: 0xD7A3, Stride: 1}, // Hangul
		{Lo: 0xF900, Hi: 0xFAFF, Stride: 1}, // CJK compatibility
		{Lo: 0xFE30, Hi: 0xFE6F, Stride: 1},
		{Lo: 0xFF00, Hi: 0xFF60, Stride: 1}, // full width forms
		{Lo: 0xFFE0, Hi: 0xFFE6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x1F300, Hi: 0x1F64F, Stride: 1}, // pictures
		{Lo: 0x1F680, Hi: 0x1F6FF, Stride: 1},
		{Lo: 0x1F900, Hi: 0x1FAFF, Stride: 1},
		{Lo: 0x20000, Hi: 0x3FFFD, Stride: 1}, // CJK extensions
	},
}

// width is how many columns a printable text takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		n += cells(r)
	}
	return n
}

// cut shortens a printable text to so many columns, with a ~ at the end.
func cut(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += cells(r); n > columns-1 {
			return s[:i] + strings.Repeat("~", min(columns, 1))
		}
	}
	return s
}

// pad cuts a printable text or fills it up to so many columns.
func pad(s string, columns int) string {
	s = cut(s, columns)
	return s + strings.Repeat(" ", max(columns-width(s), 0))
}
