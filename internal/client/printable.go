package client

import (
	"strconv"
	"strings"
)

// inText: quotation marks and backslashes need no escapes in a text.
var inText = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// Printable makes a foreign text (a key, a name, a reason) safe for a terminal. As in Go, it escapes control
// characters, marks of writing direction, line separators, and invalid UTF-8.
func Printable(s string) string {
	quoted := strconv.Quote(s)
	return inText.Replace(quoted[1 : len(quoted)-1])
}
