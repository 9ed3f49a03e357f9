package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/internal/pgtest"
)

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
	build := exec.Command("go", "build", "-race", "-o", binary, "../cmd/locksidecar")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the sidecar: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m, &cluster)
}
