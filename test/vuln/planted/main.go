// Command planted calls what the database beside it says is vulnerable: `make vuln` must
// find it.
package main

import (
	"os"
	"strings"
)

func main() { _, _ = os.Stdout.WriteString(strings.ToUpper("planted\n")) }
