// Package queries has the statements of the PostgreSQL store, in one file for each flow. Each begins
// with a line `-- name: …`. Comments follow, then the statement. A line `-- waits: …` stands for
// another statement without its SKIP LOCKED.
package queries

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.sql
var files embed.FS

const (
	nameMark  = "-- name: "
	waitsMark = "-- waits: "
	skip      = " SKIP LOCKED"
)

// All returns the statements by their names, without the comments before them.
func All() map[string]string {
	all, err := parse(files)
	if err != nil {
		panic(fmt.Sprintf("store/postgres/queries: %v", err)) // embedded, and tested
	}
	return all
}

func parse(folder fs.FS) (map[string]string, error) {
	names, err := fs.Glob(folder, "*.sql")
	if err != nil {
		return nil, err
	}
	all, waits := make(map[string]string), make(map[string]string)
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
				var comment string
				comment, sql, _ = strings.Cut(sql, "\n")
				if like, ok := strings.CutPrefix(comment, waitsMark); ok {
					waits[name] = like
				}
			}
			sql = strings.TrimSpace(sql)
			if _, twice := all[name]; twice || name == "" || (sql == "") != (waits[name] != "") {
				return nil, fmt.Errorf("%s: the name %q is there twice, or has no statement", file, name)
			}
			all[name] = sql
		}
	}
	for name, like := range waits {
		if strings.Count(all[like], skip) != 1 {
			return nil, fmt.Errorf("%s waits like %q, which skips nothing", name, like)
		}
		all[name] = strings.Replace(all[like], skip, "", 1)
	}
	return all, nil
}
