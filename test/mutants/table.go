package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const notSeen = "not seen"

// renewTable writes TABLE.md with what is new of the mutants that were tried: how long the
// tests of those took that were seen. The rows of the others stay.
func renewTable(tried []mutant, red map[string]string) error {
	path := filepath.Join(folder, "TABLE.md")
	text, err := os.ReadFile(path) //nolint:gosec // a file of the repository
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all, err := load(folder, nil)
	if err != nil {
		return err
	}
	seconds := secondsIn(string(text))
	for _, m := range tried {
		delete(seconds, m.name)
		if s, ok := red[m.name]; ok {
			seconds[m.name] = s
		}
	}
	return os.WriteFile(path, []byte(table(all, seconds)), 0o644) //nolint:gosec // for all to read
}

// row finds the name of a mutant and the last column.
var row = regexp.MustCompile(`(?m)^\|.*\| \[([^]]+)\]\([^)]*\.patch\) \|.*\| (\d+) \|$`)

// secondsIn reads how long the tests took of a table.
func secondsIn(table string) map[string]string {
	seconds := map[string]string{}
	for _, found := range row.FindAllStringSubmatch(table, -1) {
		seconds[found[1]] = found[2]
	}
	return seconds
}

// table tells which test sees what.
func table(mutants []mutant, seconds map[string]string) string {
	var rows strings.Builder
	for i := range mutants {
		m := &mutants[i]
		s, ok := seconds[m.name]
		if !ok {
			s = notSeen
		}
		fmt.Fprintf(&rows, "| %s | %s | [%s](%s.patch) | `%s` %s | %s |\n",
			m.rule, m.from, m.name, m.name, strings.TrimPrefix(m.test.pkg, "./"), m.test.name, s)
	}
	return fmt.Sprintf(`# Broken rules, and the tests that see it

Written by %s; what that does stands in [doc.go](doc.go). Seconds are those that the test took when
it was red, with its own server where it has one.

| rule | from | mutant | test | s |
|---|---|---|---|---|
%s`, "`make mutants`", rows.String())
}
