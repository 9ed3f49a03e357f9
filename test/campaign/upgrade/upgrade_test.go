package upgrade

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

var (
	length = flag.Duration("length", 0, "for how long to roll to and fro, beyond once")

	cluster *pgtest.Cluster
	built   releases
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	folder, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	began := time.Now()
	if built, err = build(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("two releases were built in %.1f s\n", time.Since(began).Seconds())
	return pgtest.Main(m, &cluster, pgtest.WithoutFsync())
}
