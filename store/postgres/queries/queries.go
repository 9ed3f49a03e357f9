// Package queries has the statements of the PostgreSQL store.
//
// A file has the statements of one flow. A line `-- name: …` begins each of them; comments
// follow it, then the statement.
package queries

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.sql
var files embed.FS

// nameMark begins the line before a statement. Its name follows.
const nameMark = "-- name: "

// All returns the statements by their names, without the comments before them.
func All() map[string]string {
	all, err := parse(files)
	if err != nil {
		panic(fmt.Sprintf("store/postgres/queries: %v", err)) // embedded, and tested
	}
	return all
}

// parse reads all files of a folder.
func parse(folder fs.FS) (map[string]string, error) {
	names, err := fs.Glob(folder, "*.sql")
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for _, file := range names {
		text, err := fs.ReadFile(folder, file)
		if err != nil {
			return nil, err
		}
		before, rest, _ := strings.Cut("\n"+string(text), "\n"+nameMark)
		if strings.TrimSpace(before) != "" {
			return nil, fmt.Errorf("%s: a statement has no name", file)
		}
		for part := range strings.SplitSeq(rest, "\n"+nameMark) {
			name, sql, _ := strings.Cut(part, "\n")
			for strings.HasPrefix(sql, "--") {
				_, sql, _ = strings.Cut(sql, "\n")
			}
			sql = strings.TrimSpace(sql)
			if _, twice := all[name]; twice || name == "" || sql == "" {
				return nil, fmt.Errorf("%s: the name %q is there twice, or has no statement", file, name)
			}
			all[name] = sql
		}
	}
	return all, nil
}
