package lease

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWays: each file and function that docs/how-it-works.md names on the way of a call exists, each one that moves a lease or a call, each type that it links to, and each function that
// store/cas/doc.go names in its flows.
func TestWays(t *testing.T) {
	text, err := os.ReadFile("../docs/how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ways, found := strings.Cut(string(text), "### The way of a call through the code\n")
	ways, _, _ = strings.Cut(ways, "\n### ")
	rows := regexp.MustCompile("(?m)^\\| `([^`|]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(ways, -1)
	if tables := strings.Count(ways, "\n| file | function | step | if this fails |\n"); !found || tables != 5 || len(rows) != strings.Count(ways, "\n| ")-tables {
		t.Fatalf("found %t, with %d tables and %d rows that this test reads", found, tables, len(rows))
	}
	for _, row := range rows {
		for name := range strings.SplitSeq(row[2], ", ") {
			wantFunction(t, "../"+row[1], strings.Trim(name, "`"))
		}
	}
	_, states, found := strings.Cut(string(text), "### The states of a lease, and of a call\n")
	states, _, _ = strings.Cut(states, "\n### ")
	rows = regexp.MustCompile("(?m)^\\|[^|]+\\|[^|]+\\| `(\\w+)` \\(`([^`|]+)`\\) \\|").FindAllStringSubmatch(states, -1)
	if tables := strings.Count(states, "| what moves it on | function |"); !found || tables != 2 || len(rows) != strings.Count(states, "\n| ")-tables {
		t.Fatalf("found %t the states, with %d tables and %d rows that this test reads", found, tables, len(rows))
	}
	for _, row := range rows {
		wantFunction(t, "internal/"+row[2], row[1])
	}
	types := regexp.MustCompile(`\[\w+\.(\w+)\]\((\.\./[^)]+\.go)\)`).FindAllStringSubmatch(string(text), -1)
	if len(types) < 3 {
		t.Errorf("only %q", types)
	}
	for _, named := range types {
		code, err := os.ReadFile(named[2])
		if err != nil || !regexp.MustCompile(`(?m)^type `+named[1]+` `).Match(code) {
			t.Errorf("%s has no type %s (%v)", named[2], named[1], err)
		}
	}
	text, err = os.ReadFile("../store/cas/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, flows, found := strings.Cut(string(text), "// # An acquire of a free key, from top to bottom\n")
	flows, _, ended := strings.Cut(flows, "// # Operations\n")
	named := regexp.MustCompile(`(?:store/(\w+) )?\b(\w+\.go) +(\w+(?:, \w+)*)`).FindAllStringSubmatch(flows, -1)
	if !found || !ended || len(named) < 30 {
		t.Fatalf("found %t, %t, with %d files that this test reads", found, ended, len(named))
	}
	for _, n := range named {
		for name := range strings.SplitSeq(n[3], ", ") {
			if !wordsOfFlows[name] {
				wantFunction(t, "../store/"+cmp.Or(n[1], "cas")+"/"+n[2], name)
			}
		}
	}
}

// wordsOfFlows stand behind the name of a file in the flows of store/cas, and are no functions.
var wordsOfFlows = map[string]bool{"help": true, "shows": true, "and": true, "are": true, "is": true, "tells": true}

// wantFunction checks that a file has one such function: of Go (with its type, as Type.Name, where the file has several of the name), a statement of SQL
// by its name, or a function of the database.
func wantFunction(t *testing.T, file, name string) {
	t.Helper()
	text, err := os.ReadFile(file)
	receiver := `(?:\([^)]*\) )?`
	typ, method, qualified := strings.Cut(name, ".")
	if qualified {
		receiver, name = `\(\w+ \*?`+typ+`\) `, method
	}
	form := `(?m)^func ` + receiver + name + `[\[(]`
	if filepath.Ext(file) == ".sql" {
		form = `(?m)^(-- name: ` + name + `$|CREATE OR REPLACE FUNCTION locksidecar\.` + name + `\()`
	}
	if n := len(regexp.MustCompile(form).FindAll(text, -1)); err != nil || n != 1 {
		t.Errorf("%s has %d functions %q, want 1 (%v)", strings.TrimPrefix(file, "../"), n, name, err)
	}
}
