// Package sqltext has the statements of the PostgreSQL store as a benchmark can use them.
package sqltext

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/store/postgres/queries"
)

// Of is the statement with a name of store/postgres/queries, of a sidecar that is not too old
// for the schema.
func Of(name string) (string, error) {
	sql, ok := queries.All()[name]
	if !ok {
		return "", fmt.Errorf("store/postgres/queries has no statement %q", name)
	}
	return strings.ReplaceAll(sql, ":schema_version", "1000"), nil
}
