package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/pgtest"
)

// plain is for measuring: the race detector makes the sidecar several times slower.
var plain = flag.Bool("plain", false, "build the sidecar without the race detector, and allow the times that are promised without it")

// raceCost is how much longer than promised something may take with the race detector.
const raceCost = 5

// slowed is how long something may take that is promised within d.
func slowed(d time.Duration) time.Duration {
	if *plain {
		return d
	}
	return raceCost * d
}

var (
	// binary is the sidecar under test, built with the race detector.
	binary string
	// cluster is a PostgreSQL of our own; each test has a database in it.
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
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "locksidecar-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	binary = filepath.Join(folder, "locksidecar")
	build := exec.Command("go", "build", "-race="+strconv.FormatBool(!*plain), "-o", binary, "../cmd/locksidecar")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the sidecar: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m, &cluster)
}
