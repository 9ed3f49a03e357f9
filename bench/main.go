// Command bench measures the goals of docs/benchmarks.md. Machines are noisy, so
// each goal is a ratio against something measured in the same run on the same
// machine, in turns, with medians.
//
//	go run ./bench                  everything, prints the table
//	go run ./bench -only P1,P3      some of it
//	go run ./bench -write           writes bench/RESULTS.md, results.json and results.log too
//	go run ./bench -check           compares with bench/results.json, and fails on a loss
//	go run ./bench -growth          how cost grows; -write writes bench/GROWTH.md and pictures
//	go run ./bench -only overhead -against v1.2
//	                                what being observed costs, and since that revision
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
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// bench is one run.
type bench struct {
	ctx    context.Context
	folder string // temporary
	binary string // the sidecar, built as it is released
	rounds int
	length time.Duration // of one measurement
	// against is an older revision to measure beside this one; empty: none.
	against string
	// most is the largest step of a curve; 0: all are taken.
	most int
	log  *log.Logger
}

// scoresFile is what later runs compare with.
const scoresFile = "bench/results.json"

var measures = []struct {
	id      string
	measure func(*bench) ([]result, error)
}{
	{"P1", (*bench).p1},
	{"P2", (*bench).p2},
	{"P3", (*bench).p3},
	{"P4", (*bench).p4},
	{"P5", (*bench).p5},
	{"P6", (*bench).p6},
	{"P7", (*bench).p7},
	{"P8", (*bench).p8},
	{"P9", (*bench).p9},
	{"P10", (*bench).p10},
	{"peers", (*bench).peers},
	{"overhead", (*bench).overhead},
}

func main() {
	switch { // processes of their own
	case len(os.Args) == 3 && os.Args[1] == "load": // see load.go
		if err := serveLoad(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench load:", err)
			os.Exit(1)
		}
		return
	case len(os.Args) == 3 && os.Args[1] == "echo": // the peer of P1
		serveEcho(os.Args[2])
		return
	case len(os.Args) == 4 && os.Args[1] == "hold": // the app of P7
		holdLock(os.Args[2], os.Args[3])
		return
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure() error {
	only := flag.String("only", "", "the goals to measure, as P1,P3; all when empty")
	write := flag.Bool("write", false, "write bench/RESULTS.md and bench/results.log")
	check := flag.Bool("check", false, "compare with bench/results.json, and fail on a loss of more than 25%")
	grow := flag.Bool("growth", false, "measure how cost grows instead of the goals; -only chooses of connections, locks, sidecars, rows")
	most := flag.Int("upto", 0, "with -growth: the largest step; all when 0")
	rounds := flag.Int("rounds", 5, "rounds of each measurement; medians are shown")
	length := flag.Duration("length", 3*time.Second, "length of one measurement")
	against := flag.String("against", "", "an older revision, to compare with where that is measured")
	flag.Parse()

	var before []scored
	if *check { // before anything is measured
		var err error
		if before, err = readScores(scoresFile); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	folder, err := os.MkdirTemp("", "lsb")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	var logText strings.Builder
	b := &bench{
		ctx: ctx, folder: folder, binary: filepath.Join(folder, "locksidecar"), rounds: *rounds, length: *length, against: *against, most: *most,
		log: log.New(io.MultiWriter(os.Stdout, &logText), "", log.Ltime),
	}
	b.log.Printf("command: go run ./bench %s", strings.Join(os.Args[1:], " "))
	if err := b.build(); err != nil {
		return err
	}
	machine := describeMachine()
	b.log.Print(machine)
	chosen := func(id string) bool { return *only == "" || strings.Contains(","+*only+",", ","+id+",") }
	if *grow {
		text, err := b.growth(chosen, *write)
		if err != nil {
			return err
		}
		fmt.Println(text)
		if *write {
			return writeGrowth(machine, text, logText.String())
		}
		return nil
	}
	var results []result
	for _, m := range measures {
		if !chosen(m.id) {
			continue
		}
		rows, err := m.measure(b)
		if err != nil {
			return fmt.Errorf("%s: %w", m.id, err)
		}
		results = append(results, rows...)
	}
	report := table(results)
	fmt.Println("\n" + report)
	if *check {
		if err := compare(before, scores(results)); err != nil {
			return fmt.Errorf("worse than %s by more than 25%%:\n%w", scoresFile, err)
		}
		fmt.Printf("No row is worse than in %s by more than 25%%.\n", scoresFile)
	}
	if !*write {
		return nil
	}
	text := fmt.Sprintf("# Results\n\nMeasured %s by `make bench`; what was printed meanwhile is in [results.log](results.log).\n"+
		"The goals and how they are measured: [docs/benchmarks.md](../docs/benchmarks.md).\n\nMachine: %s\n\n%s",
		time.Now().UTC().Format("2006-01-02"), machine, report)
	return errors.Join(
		os.WriteFile("bench/RESULTS.md", []byte(text), 0o644),
		writeScores(scoresFile, results),
		os.WriteFile("bench/results.log", []byte(logText.String()), 0o644))
}

// build builds the sidecar as it is released, without the race detector.
func (b *bench) build() error { return b.buildIn(".", b.binary) }

// buildIn does so in the top of a repository.
func (b *bench) buildIn(folder, binary string) error {
	cmd := exec.CommandContext(b.ctx, "go", "build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", binary, "./cmd/locksidecar")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the sidecar (run this from the top of the repository): %w\n%s", err, out)
	}
	return nil
}
