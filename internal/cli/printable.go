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
