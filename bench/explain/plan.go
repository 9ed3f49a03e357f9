package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/bench/internal/sqltext"
)

const (
	// repeats is how often each statement is measured.
	repeats = 5
	// rowsAnAsk is how many rows of any table a statement may fetch for each item.
	rowsAnAsk = 12
)

// node is a node of a plan as EXPLAIN tells it.
type node struct {
	Type     string `json:"Node Type"`
	Action   string `json:"Operation"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Function string `json:"Function Name"`
	CTE      string `json:"CTE Name"`
	Hit      int64  `json:"Shared Hit Blocks"`
	Read     int64  `json:"Shared Read Blocks"`
	Records  int64  `json:"WAL Records"`
	FPI      int64  `json:"WAL FPI"`
	WAL      int64  `json:"WAL Bytes"`
	Plans    []node `json:"Plans"`
}

// explained is what EXPLAIN says of a statement.
type explained struct {
	Plan node    `json:"Plan"`
	Time float64 `json:"Execution Time"` // in ms
}

// cost is what one statement cost.
type cost struct {
	statement
	explained
	asked int
	seen  map[string]touched // by the tables' names
}

// touched is what a statement looked at in a table.
type touched struct{ scans, fetched int64 }

// explain measures a statement on so many lock rows.
func explain(ctx context.Context, db *pgx.Conn, s statement, rows, asked int) (cost, error) {
	sql, err := sqltext.Of(s.name)
	if err != nil {
		return cost{}, err
	}
	for _, sql := range []string{"DEALLOCATE ALL", "PREPARE it AS " + sql, "CHECKPOINT"} {
		if _, err := db.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return cost{}, err
		}
	}
	before := ""
	if s.before != nil {
		before = s.before(rows)
	}
	execute := "EXECUTE it(" + strings.Join(s.args(rows, asked), ", ") + ")"
	var costs []cost
	for range repeats + 1 {
		c, err := once(ctx, db, before, execute)
		if err != nil {
			return cost{}, err
		}
		c.statement, c.asked = s, asked
		costs = append(costs, c)
	}
	// The first is left out: it writes the whole of each page.
	return slices.MinFunc(costs[1:], func(a, b cost) int { return cmp.Compare(a.Time, b.Time) }), nil
}

// once carries the statement out, after what comes before it, and back.
func once(ctx context.Context, db *pgx.Conn, prepare, execute string) (c cost, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
	if _, err := tx.Exec(ctx, prepare, pgx.QueryExecModeSimpleProtocol); err != nil {
		return c, fmt.Errorf("%s: %w", prepare, err)
	}
	before, err := look(ctx, tx)
	if err != nil {
		return c, err
	}
	var plans []byte
	err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING off, FORMAT json) "+execute, pgx.QueryExecModeSimpleProtocol).Scan(&plans)
	if err != nil {
		return c, err
	}
	var all []explained
	if err := json.Unmarshal(plans, &all); err != nil {
		return c, err
	}
	c.explained = all[0]
	c.seen, err = look(ctx, tx)
	for table, t := range before {
		c.seen[table] = touched{c.seen[table].scans - t.scans, c.seen[table].fetched - t.fetched}
	}
	return c, err
}

// look reads what this session has looked at, in each table but those of one row.
func look(ctx context.Context, tx pgx.Tx) (map[string]touched, error) {
	rows, err := tx.Query(ctx, `SELECT relname::text, seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_xact_user_tables
		WHERE schemaname = 'locksidecar' AND relname NOT IN ('meta', 'fleet', 'sweep')`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]touched)
	var table string
	var t touched
	_, err = pgx.ForEachRow(rows, []any{&table, &t.scans, &t.fetched}, func() error {
		seen[table] = t
		return nil
	})
	return seen, err
}

// check looks for tables that were scanned, by an index or without, and for plans that
// do so where the tables' figures do not tell.
func (c cost) check() error {
	var wrong []error
	for table, t := range c.seen {
		if t.scans > 0 && !slices.Contains(c.scans, table) || t.fetched > int64(rowsAnAsk*c.asked) {
			wrong = append(wrong, fmt.Errorf("%s for %d: %d scans of %s, %d rows fetched", c.name, c.asked, t.scans, table, t.fetched))
		}
	}
	for _, step := range c.Plan.steps() {
		table, scan := strings.CutPrefix(step, "Seq Scan ")
		if scan && table != "meta" && !slices.Contains(c.scans, table) {
			wrong = append(wrong, fmt.Errorf("%s for %d: %s", c.name, c.asked, step))
		}
	}
	return errors.Join(wrong...)
}

// steps are what a plan does to tables and functions, each once.
func (n node) steps() []string {
	var steps []string
	if what := n.what(); what != "" {
		steps = append(steps, n.label()+" "+what)
	}
	for _, p := range n.Plans {
		for _, s := range p.steps() {
			if !slices.Contains(steps, s) {
				steps = append(steps, s)
			}
		}
	}
	return steps
}

func (n node) label() string {
	if n.Type == "ModifyTable" {
		return n.Action
	}
	return n.Type
}

// what is the index that a node uses, or else the table or function.
func (n node) what() string {
	if n.Index != "" {
		return n.Index
	}
	if n.Function != "" {
		return n.Function
	}
	return n.Relation
}

func table(costs []cost) string {
	var t strings.Builder
	t.WriteString("| statement | for | rows asked | ms | µs a row | buffers hit | read | WAL records | WAL bytes | a row | FPI | plan |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range costs {
		fmt.Fprintf(&t, "| `%s` | %s | %d | %.3f | %.1f | %d | %d | %d | %d | %.0f | %d | %s |\n",
			c.name, c.about, c.asked, c.Time, 1000*c.Time/float64(c.asked), c.Plan.Hit, c.Plan.Read, c.Plan.Records,
			c.Plan.WAL, float64(c.Plan.WAL)/float64(c.asked), c.Plan.FPI, strings.Join(c.Plan.steps(), ", "))
	}
	return t.String()
}
