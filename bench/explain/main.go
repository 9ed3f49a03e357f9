// Explain tells what the statements of the hot paths cost the database: it fills tables,
// carries each statement out with EXPLAIN (ANALYZE, BUFFERS, WAL) in a transaction that
// is rolled back, and fails where one looks at more of a table than it was asked for.
// Run it from the top of the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/bench/internal/sqltext"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "explain:", err)
		os.Exit(1)
	}
}

func run() error {
	write := flag.Bool("write", false, "write bench/EXPLAIN.md, with the log behind it")
	tables := flag.String("tables", "1000,10000000", "how many lock rows the table has")
	remark := flag.String("remark", "", "what the log should say of the circumstances")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var logged strings.Builder
	out := log.New(io.MultiWriter(os.Stdout, &logged), "", log.Ltime)
	out.Printf("command: go run ./bench/explain %s", strings.Join(os.Args[1:], " "))
	if *remark != "" {
		out.Print(*remark)
	}
	version, err := exec.CommandContext(ctx, "psql", "--version").Output()
	if err != nil {
		return fmt.Errorf("psql: %w", err)
	}
	out.Print(strings.TrimSpace(string(version)))

	cluster, err := pgtest.Run()
	if err != nil {
		return err
	}
	defer cluster.Stop()
	var text strings.Builder
	var wrong []error
	for size := range strings.SplitSeq(*tables, ",") {
		rows, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		costs, err := explainAll(ctx, cluster, rows, out)
		if err != nil {
			return err
		}
		for _, c := range costs {
			wrong = append(wrong, c.check())
		}
		fmt.Fprintf(&text, "## %d lock rows\n\n%s\n", rows, table(costs))
	}
	fmt.Print("\n" + text.String())
	if err := errors.Join(wrong...); err != nil || !*write {
		return err
	}
	return os.WriteFile("bench/EXPLAIN.md", []byte(document(text.String(), logged.String())), 0o644)
}

func document(tables, logged string) string {
	return fmt.Sprintf("# What the statements cost the database\n\nMeasured %s by `go run ./bench/explain -write`. "+
		"Each row is one statement of `store/postgres/queries` by its name, carried out as a prepared statement with a generic plan, "+
		"in a session that is set up as the sidecar's are, with `EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING off)`, and rolled back: "+
		"time and WAL are those of the execution, without parsing, planning, network and commit (that is 34 bytes and a flush). "+
		"It is the fastest of %d; one before them, just after CHECKPOINT, is left out, so whole pages (FPI) are rare. "+
		"Buffers count each visit of a page, of indexes too. What functions do inside is in their figures, not in their plans. "+
		"A statement that scanned a table, or read more than %d times as many rows of one as it was asked for, would have failed the run.\n\n%s## Log\n\n```\n%s```\n",
		time.Now().UTC().Format("2006-01-02"), repeats, rowsAnAsk, tables, logged)
}

// session are the arguments of connection_set_up: time limits in ms, for the whole session.
var session = []any{"60000", "100", "60000", false}

// explainAll measures each statement on a database of its own with so many lock rows.
func explainAll(ctx context.Context, cluster *pgtest.Cluster, rows int, out *log.Logger) ([]cost, error) {
	url, err := cluster.MakeDatabase(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := postgres.Migrate(ctx, url); err != nil {
		return nil, err
	}
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	began := time.Now()
	if err := fill(ctx, db, rows); err != nil {
		return nil, err
	}
	out.Printf("%d lock rows filled in %s", rows, time.Since(began).Round(time.Millisecond))
	setUp, err := sqltext.Of("connection_set_up")
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, setUp, append([]any{pgx.QueryExecModeExec}, session...)...); err != nil {
		return nil, err
	}
	var costs []cost
	for _, s := range statements {
		for _, asked := range s.sizes() {
			c, err := explain(ctx, db, s, rows, asked)
			if err != nil {
				return nil, fmt.Errorf("%s for %d: %w", s.name, asked, err)
			}
			out.Printf("%s, %s, %d: %.3f ms", s.name, s.about, asked, c.Time)
			costs = append(costs, c)
		}
	}
	return costs, nil
}
