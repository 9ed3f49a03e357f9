package e2e

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// plain is for measuring: the race detector makes the sidecar several times slower.
var plain = flag.Bool("plain", false, "build the sidecar without the race detector, and allow the times that are promised without it")

// atOnce is how many tests run at a time, if -parallel does not say. They wait more than they
// compute. Tests that load the machine, or measure times under load, are not parallel: go runs them
// first, one by one.
const atOnce = "6"

// raceCost is how much longer than promised something may take with the race detector.
const raceCost = 5

// standstill is for how long a machine that others use, too, may do nothing for a test.
const standstill = 5 * time.Second

// slowed is how long something may take that is promised within d. The tests tell apart an
// event that comes by itself and one that comes with a timer, so they set the timers that
// could help, polls, renewals and the ends of leases, to much more than this. The promised
// times themselves are measured with -plain, and by the benchmarks.
func slowed(d time.Duration) time.Duration {
	if *plain {
		return d
	}
	return raceCost*d + standstill
}

// raceOptions make a data race show as the exit code, also of a command, and a process end
// when it is done: the race detector would let it sleep for a second.
const raceOptions = "halt_on_error=1 exitcode=66 atexit_sleep_ms=0"

var (
	// binary is the sidecar under test, built with the race detector.
	binary string
	// cluster is a PostgreSQL of our own; each test has a database in it, which sidecars use
	// without a right to change the schema.
	cluster *pgtest.Cluster
)

func TestMain(m *testing.M) {
	if os.Getenv(appEnv) != "" {
		runApp() // this process is an app that a test started
		return
	}
	if os.Getenv(listenerEnv) != "" {
		runListener() // or a command that `locksidecar run` started
		return
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		log.Fatal(err)
	}
	flag.Parse()
	if *plain { // it measures
		_ = flag.Set("test.parallel", "1")
	}
	catchIgnored()
	os.Exit(run(m))
}

// catchIgnored lets children start with default signals where this process was started with
// some ignored, by nohup or by & in a script. A child inherits what is ignored, and what is
// caught is default again in it. Nothing acts on what is caught, so it stays ignored here.
func catchIgnored() {
	for sig := syscall.SIGHUP; sig < 32; sig++ {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "locksidecar-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := os.Setenv("GORACE", raceOptions); err != nil { // all that is started inherits it
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binary = filepath.Join(folder, "locksidecar")
	build := exec.Command("go", "build", "-race="+strconv.FormatBool(!*plain), "-ldflags=-s -w", "-o", binary, "../cmd/locksidecar")
	// The tests may be compiled as the release is. The race detector needs cgo, and the same flags as the unit
	// tests have, which have compiled all packages with it.
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the sidecar: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m, &cluster, pgroles.Template())
}
