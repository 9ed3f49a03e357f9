// Package sqltext reads the statements of the PostgreSQL store, which its own package
// keeps to itself.
package sqltext

import (
	"os"
	"strings"
)

// Of is the statement of a file of store/postgres/sql, by its name without its ending: without
// comments, and of a sidecar that is not too old for the schema. It is read from the
// folder of the repository.
func Of(name string) (string, error) {
	file, err := os.ReadFile("store/postgres/sql/" + name + ".sql")
	if err != nil {
		return "", err
	}
	var lines []string
	for line := range strings.SplitSeq(string(file), "\n") {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), ":schema_version", "1000"), nil
}
