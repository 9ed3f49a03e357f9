package lease

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWays: each file and function that docs/how-it-works.md names on the way of a call exists, and each that store/cas/doc.go names in its flows.
func TestWays(t *testing.T) {
	text, err := os.ReadFile("../docs/how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ways, found := strings.Cut(string(text), "### The way of a call through the code\n")
	ways, _, _ = strings.Cut(ways, "\n### ")
	rows := regexp.MustCompile("(?m)^\\| `([^`|]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(ways, -1)
	if tables := strings.Count(ways, "\n| file | function | step |\n"); !found || tables != 5 || len(rows) != strings.Count(ways, "\n| ")-tables {
		t.Fatalf("found %t, with %d tables and %d rows that this test reads", found, tables, len(rows))
	}
	for _, row := range rows {
		for name := range strings.SplitSeq(row[2], ", ") {
			wantFunction(t, "../"+row[1], strings.Trim(name, "`"))
		}
	}
	text, err = os.ReadFile("../store/cas/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, flows, found := strings.Cut(string(text), "// # Flows\n")
	flows, _, _ = strings.Cut(flows, "// # ")
	named := regexp.MustCompile(`(store/key )?\b(\w+\.go) (\w+)`).FindAllStringSubmatch(flows, -1)
	if !found || len(named) < 20 {
		t.Fatalf("found %t, with %d functions that this test reads", found, len(named))
	}
	for _, n := range named {
		folder := "../store/cas/"
		if n[1] != "" {
			folder = "../store/key/"
		}
		if !wordsOfFlows[n[3]] {
			wantFunction(t, folder+n[2], n[3])
		}
	}
}

// wordsOfFlows stand behind the name of a file in the flows of store/cas, and are no functions.
var wordsOfFlows = map[string]bool{"help": true, "shows": true, "and": true, "are": true, "is": true, "tells": true}

// wantFunction checks that a file has a function: of Go, a statement of SQL by its name, or a function of the database.
func wantFunction(t *testing.T, file, name string) {
	t.Helper()
	text, err := os.ReadFile(file)
	form := `(?m)^func (\([^)]*\) )?` + name + `[\[(]`
	if filepath.Ext(file) == ".sql" {
		form = `(?m)^(-- name: ` + name + `$|CREATE OR REPLACE FUNCTION locksidecar\.` + name + `\()`
	}
	if err != nil || !regexp.MustCompile(form).Match(text) {
		t.Errorf("%s has no function %q (%v)", strings.TrimPrefix(file, "../"), name, err)
	}
}
