package postgres_test

import (
	"io/fs"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Every statement of queries/ is used, by one name. load refuses statements that do not exist.
func TestEveryStatementIsUsed(t *testing.T) {
	t.Parallel()
	for name := range postgres.Unloaded() {
		t.Errorf("the statement %s is not used", name)
	}
}

// Each function has one definition, which replaces the earlier one. With other arguments, a second
// function would remain. With another result, PostgreSQL refuses the definition.
func TestEachFunctionIsDefinedOnce(t *testing.T) {
	t.Parallel()
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
	// Functions that tables use are defined with the tables.
	there := pgtest.Query[[]string](t, cluster.NewDatabase(t), `SELECT array_agg(proname::text ORDER BY proname COLLATE "C") FROM pg_proc
		WHERE pronamespace = 'locksidecar'::regnamespace AND proname NOT IN ('mark', 'drop_signals')`)
	if !slices.Equal(names, there) {
		t.Errorf("defined in files: %q\nin the database: %q", names, there)
	}
}

// soundThoughWarned are the wrong warnings of plpgsql_check, with reasons.
var soundThoughWarned = map[string]string{
	`release_share: composite OUT variable "handed" is not single argument`: "its caller takes the whole row",
	`release_lock: composite OUT variable "handed" is not single argument`:  "its caller takes the whole row",
	`amend: composite OUT variable "shown" is not single argument`:          "its row has other columns, too",
	`downgrade: composite OUT variable "shown" is not single argument`:      "its row has other columns, too",
	"may_take: routine is marked as VOLATILE, should be STABLE":             "only a volatile function sees what was committed after its caller's statement began",
	"lock_key: control reached end of function without RETURN":              "its loop ends only with RETURN",
	"pass_on: unreachable code":                                             "EXIT WHEN leaves the loop before its RETURN",
}

// A function in SQL that reads a table is not inlined into an expression. Then PostgreSQL plans it again in each
// statement that calls it, which can take longer than the statement. It keeps the plans of plpgsql.
func TestOnlyExpressionsAreInSQL(t *testing.T) {
	t.Parallel()
	names := pgtest.Query[[]string](t, cluster.NewDatabase(t), `SELECT array_agg(p.proname::text) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
		WHERE p.pronamespace = 'locksidecar'::regnamespace AND l.lanname = 'sql' AND p.prosrc ~ '\m(FROM|DELETE|UPDATE|INSERT)\M[^,)]*\mlocksidecar\.'`)
	if len(names) > 0 {
		t.Errorf("%q read tables: write them in plpgsql", names)
	}
}

// plpgsql_check finds errors that a function would show only when it runs, in names, types and
// casts. PostgreSQL itself checks functions in SQL when they are created.
func TestFunctionsAreSound(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION plpgsql_check"); err != nil {
		t.Fatalf("%v\nthe tests need the package postgresql-NN-plpgsql-check: test/deps.sh go", err)
	}
	functions := pgtest.Query[[]string](t, url, `SELECT array_agg(p.oid::regprocedure::text) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
		WHERE p.pronamespace = 'locksidecar'::regnamespace AND l.lanname = 'plpgsql'`)
	if len(functions) < 20 {
		t.Errorf("only %q are checked", functions)
	}
	seen := map[string]bool{}
	for _, function := range functions {
		rows, err := conn.Query(t.Context(), `SELECT proname || ': ' || message, concat_ws('; ', level, 'line ' || lineno, statement, detail, hint)
			FROM pg_proc, plpgsql_check_function_tb(oid, fatal_errors => false, all_warnings => true,
				relid => CASE WHEN prorettype = 'trigger'::regtype THEN 'locksidecar.leases'::regclass ELSE 0 END)
			WHERE oid = $1::regprocedure`, function)
		if err != nil {
			t.Fatal(err)
		}
		var what, more string
		_, err = pgx.ForEachRow(rows, []any{&what, &more}, func() error {
			if seen[what] = true; soundThoughWarned[what] == "" {
				t.Errorf("%s (%s)", what, more)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", function, err)
		}
	}
	for what := range soundThoughWarned {
		if !seen[what] {
			t.Errorf("plpgsql_check no longer warns: %s", what)
		}
	}
}
