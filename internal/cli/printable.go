package cli

import (
	"strconv"
	"strings"
)

// inText: a quotation mark and a backslash may stand in a text as they are.
var inText = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// printable makes a text from elsewhere (a key, a name, a reason) safe for a terminal. It escapes, as
// Go does, control characters, marks of writing direction, line separators, and invalid UTF-8.
func printable(s string) string {
	quoted := strconv.Quote(s)
	return inText.Replace(quoted[1 : len(quoted)-1])
}
