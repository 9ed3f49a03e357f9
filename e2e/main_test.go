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

// plain is for measurements, because the race detector makes the sidecar several times slower.
var plain = flag.Bool("plain", false, "build the sidecar without the race detector, and allow the times that are promised without it")

// atOnce is the number of parallel tests without -parallel. Tests mostly wait. Tests that load the
// machine, or measure times under load, are not parallel. go runs them first, one by one.
const atOnce = "6"

// raceCost is the factor that the race detector may add to a promised time.
const raceCost = 5

// standstill is how long a shared machine may pause.
const standstill = 5 * time.Second

// slowed returns the longest allowed time for an event that is promised within d. Tests distinguish
// an event by news from one by a timer. So they set polls, renewals and the ends of leases to much
// more than this time. The promised times themselves are measured with -plain, and by the
// benchmarks.
func slowed(d time.Duration) time.Duration {
	if *plain {
		return d
	}
	return raceCost*d + standstill
}

// raceOptions make a data race set the exit code, also of a command. They also remove the second
// that the race detector waits at the end of a process.
const raceOptions = "halt_on_error=1 exitcode=66 atexit_sleep_ms=0"

var (
	// binary is the sidecar under test, built with the race detector.
	binary string
	// cluster is the tests' PostgreSQL. Each test has its own database in it, and sidecars must not
	// change the schema.
	cluster *pgtest.Cluster
)

func TestMain(m *testing.M) {
	if os.Getenv(appEnv) != "" {
		runApp() // a test started this process as an app
		return
	}
	if os.Getenv(listenerEnv) != "" {
		runListener() // `locksidecar run` started this process as a command
		return
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		log.Fatal(err)
	}
	flag.Parse()
	if *plain { // for measurements
		_ = flag.Set("test.parallel", "1")
	}
	catchIgnored()
	os.Exit(run(m))
}

// catchIgnored lets children start with default signals, even if this process was started with some
// ignored, by nohup or by & in a script. A child inherits ignored signals, but a caught signal is
// set to default in the child. This process does not act on the caught signals, so it still ignores
// them.
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
	if err := os.Setenv("GORACE", raceOptions); err != nil { // all child processes inherit it
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binary = filepath.Join(folder, "locksidecar")
	build := exec.Command("go", "build", "-race="+strconv.FormatBool(!*plain), "-ldflags=-s -w", "-o", binary, "../cmd/locksidecar")
	// The environment may have the flags of the release build. The race detector needs cgo, and
	// with the flags of the unit tests the packages are already compiled.
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the sidecar: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m, &cluster, pgroles.Template())
}
