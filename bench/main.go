// Command bench measures the goals of bench/README.md. Machines are noisy, so
// each goal is a ratio against something measured in the same run on the same
// machine, in turns, with medians.
//
//	go run ./bench                  everything, prints the table
//	go run ./bench -only P1,P3      some of it
//	go run ./bench -write           writes bench/RESULTS.md, results.json and results.log too
//	go run ./bench -check           compares with bench/results.json, and fails on a loss
//	go run ./bench -growth          how cost grows; -write writes bench/GROWTH.md and pictures
//	go run ./bench -growth -only hot -write
//	                                one curve, into bench/growth-hot.md
//	go run ./bench -sweep           whether the table of locks stops growing; -write writes bench/SWEEP.md
//	go run ./bench -fleet           many sidecars in one process; -write writes bench/fleet-….md
//	go run ./bench -node            the lock server of a node beside a sidecar in each of its pods
//	go run ./bench -profile         where the time goes; -write writes bench/PROFILE.md
//	go run ./bench -only overhead -against v1.2
//	go run ./bench -only turns -against v1.2
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
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	only                      string
	write, check, grows, node bool
	profiles, sweep           bool
	fleet                     bool
	minutes                   int // with sweep
	rounds                    int
	length                    time.Duration // of one measurement
	// against is an older revision to measure beside this one; empty: none.
	against string
	// most is the largest step of a curve; 0: all are taken.
	most int
}

// bench is one run.
type bench struct {
	options
	ctx     context.Context
	folder  string // temporary
	binary  string // the sidecar, built as it is released
	machine string
	log     *log.Logger
	logged  *strings.Builder
}

// scoresFile is what later runs compare with.
const scoresFile = "bench/results.json"

var measures = []struct {
	id      string
	measure func(*bench) ([]result, error)
}{
	{"floor", (*bench).floors},
	{"P1", (*bench).p1},
	{"P2", (*bench).p2},
	{"P2f", (*bench).p2f},
	{"P3", (*bench).p3},
	{"P4", (*bench).p4},
	{"P5", (*bench).p5},
	{"P6", (*bench).p6},
	{"P7", (*bench).p7},
	{"P8", (*bench).p8},
	{"P9", (*bench).p9},
	{"P10", (*bench).p10},
	{"P11", (*bench).p11},
	{"P12a", (*bench).p12a},
	{"P12b", (*bench).p12b},
	{"P12c", (*bench).p12c},
	{"P12d", (*bench).p12d},
	{"P12e", (*bench).p12e},
	{"P12f", (*bench).p12f},
	{"peers", (*bench).peers},
	{"etcd", (*bench).etcd},
	{"mysql", (*bench).mysql},
	{"redis", (*bench).redis},
	{"overhead", (*bench).overhead},
	{"turns", (*bench).turns},
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
	case len(os.Args) > 2 && os.Args[1] == "floor": // that of P1, P2 and P3
		floorProcess(os.Args[2:])
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

func parse() (options, error) {
	var o options
	flag.StringVar(&o.only, "only", "", "the goals to measure, as P1,P3, with -growth the curves; all when empty")
	flag.BoolVar(&o.write, "write", false, "write what was measured into bench/")
	flag.BoolVar(&o.check, "check", false, "compare with bench/results.json, and fail on a loss of more than 25%")
	flag.BoolVar(&o.grows, "growth", false, "measure how cost grows instead of the goals")
	flag.BoolVar(&o.profiles, "profile", false, "profile the sidecar instead of measuring the goals")
	flag.BoolVar(&o.sweep, "sweep", false, "watch how much the table of locks grows instead of measuring the goals")
	flag.BoolVar(&o.fleet, "fleet", false, "measure fleets of sidecars in one process instead of the goals; -only postgres,etcd,redis,crowd,views are the parts")
	flag.BoolVar(&o.node, "node", false, "measure the lock server of a node beside a sidecar in each of its pods, instead of the goals")
	flag.IntVar(&o.minutes, "minutes", 20, "with -sweep: how long")
	flag.IntVar(&o.most, "upto", 0, "with -growth and -fleet: the largest step, all when 0; with -node: the pods, 200 when 0; with -sweep: how many rows there are before, ten million when 0")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each measurement; medians are shown")
	flag.DurationVar(&o.length, "length", 2*time.Second, "length of one measurement")
	flag.StringVar(&o.against, "against", "", "an older revision, to compare with where that is measured")
	flag.Parse()
	if o.write && !o.fleet && (o.only != "" && !o.grows || strings.Contains(o.only, ",") || o.most != 0) {
		return o, errors.New("what is written is the whole, or one curve: -write stands beside -only with -growth and one name, and never beside -upto")
	}
	return o, nil
}

func measure() error {
	o, err := parse()
	if err != nil {
		return err
	}
	var before []scored
	if o.check { // before anything is measured
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
	var logged strings.Builder
	b := &bench{
		options: o, ctx: ctx, folder: folder, binary: filepath.Join(folder, "locksidecar"), machine: describeMachine(),
		log: log.New(io.MultiWriter(os.Stdout, &logged), "", log.Ltime), logged: &logged,
	}
	b.log.Printf("command: go run ./bench %s", strings.Join(os.Args[1:], " "))
	b.log.Print(b.machine)
	b.log.Printf("%d rounds, %s a measurement where nothing else is said", o.rounds, o.length)
	if o.profiles {
		return b.profile()
	}
	if o.fleet {
		return b.fleets()
	}
	if err := b.build(); err != nil {
		return err
	}
	if o.grows {
		return b.growth()
	}
	if o.sweep {
		return b.sweeps()
	}
	if o.node {
		return b.nodes()
	}
	return b.goals(before)
}

// chosen reports whether -only names a part, or all parts of a goal: P12 is P12a to P12f.
func (b *bench) chosen(id string) bool {
	only := strings.Split(b.only, ",")
	return b.only == "" || slices.Contains(only, id) || slices.Contains(only, "P12") && strings.HasPrefix(id, "P12")
}

// goals measures the goals, compares them with those before, and writes them.
func (b *bench) goals(before []scored) error {
	var results []result
	for _, m := range measures {
		if !b.chosen(m.id) {
			continue
		}
		began := time.Now()
		rows, err := m.measure(b)
		if err != nil {
			return fmt.Errorf("%s: %w", m.id, err)
		}
		b.log.Printf("%s took %.0f s", m.id, time.Since(began).Seconds())
		results = append(results, rows...)
	}
	fmt.Println("\n" + table(results))
	if b.check {
		if err := compare(before, scores(results)); err != nil {
			return fmt.Errorf("worse than %s by more than 25%%:\n%w", scoresFile, err)
		}
		fmt.Printf("No row is worse than in %s by more than 25%%.\n", scoresFile)
	}
	if !b.write {
		return nil
	}
	text := fmt.Sprintf("# Results\n\nMeasured %s by `make bench`; what was printed meanwhile is in [results.log](results.log).\n"+
		"The goals and how they are measured: [README.md](README.md).\n\nMachine: %s\n\n%s",
		time.Now().UTC().Format("2006-01-02"), b.machine, table(results))
	return errors.Join(
		os.WriteFile("bench/RESULTS.md", []byte(text), 0o644),
		writeScores(scoresFile, results),
		os.WriteFile("bench/results.log", []byte(b.logged.String()), 0o644))
}

// build builds the sidecar as it is released, without the race detector.
func (b *bench) build() error { return b.buildIn(".", b.binary, "cmd/locksidecar") }

// buildIn does so with a command in the top of a repository.
func (b *bench) buildIn(folder, binary, command string, more ...string) error {
	args := slices.Concat([]string{"build", "-tags=grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", binary}, more, []string{"./" + command})
	cmd := exec.CommandContext(b.ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the sidecar (run this from the top of the repository): %w\n%s", err, out)
	}
	return nil
}
