package postgres_test

import (
	"io/fs"
	"regexp"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Every statement of queries/ is used, and by one name: load refuses the rest.
func TestEveryStatementIsUsed(t *testing.T) {
	for name := range postgres.Unloaded() {
		t.Errorf("nobody uses the statement %s", name)
	}
}

// Each function has one definition, which replaces that of before. One with the same name and
// other arguments would stand beside it, and one with another result is refused.
func TestEachFunctionIsDefinedOnce(t *testing.T) {
	files, err := fs.Glob(postgres.OwnCode, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		text, err := fs.ReadFile(postgres.OwnCode, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^(\w+(?: \w+)*) locksidecar\.(\w+)\(`).FindAllSubmatch(text, -1) {
			if how := string(found[1]); how != "CREATE OR REPLACE FUNCTION" {
				t.Errorf("%s: %s %s", file, how, found[2])
			}
			names = append(names, string(found[2]))
		}
	}
	slices.Sort(names)
	// Those of which tables are made stand with the tables.
	there := pgtest.Query[[]string](t, cluster.NewDatabase(t), `SELECT array_agg(proname::text ORDER BY proname COLLATE "C") FROM pg_proc
		WHERE pronamespace = 'locksidecar'::regnamespace AND proname NOT IN ('mark', 'drop_signals')`)
	if !slices.Equal(names, there) {
		t.Errorf("defined: %q\nthere:   %q", names, there)
	}
}
