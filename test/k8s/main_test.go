// Package k8s tests what Kubernetes makes of deploy/ and of `locksidecar inject`: against
// the API server itself, which runs inside the test binary, with an etcd beside it.
//
// Tests use:
//
//	admin()                  the configuration of a client that may do everything
//	client()                 a typed client, dynamicClient() one for any kind
//	namespace(t, labels)     a namespace of the test's own, as a cluster would have it
//	deployed(t, file)        the objects of a file in deploy/, as they are
//	install(t, objects...)   creates objects and deletes them after the test
//	locksidecar(t, in, ...)  runs the built binary
//
// There is one server for all tests and policies count for all of it, so tests that
// install any do not run in parallel. There are no controllers and no nodes: pods are
// admitted, defaulted and stored, and never run.
package k8s

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"
)

// root is the repository's.
const root = "../.."

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if _, err := os.Stat(binary()); err != nil {
		fmt.Fprintln(os.Stderr, "the tests run the built binary: make build (make test-k8s does it):", err)
		return 1
	}
	log, err := os.CreateTemp("", "apiserver-*.log")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer log.Close()
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(log, nil)))
	t := &mainTB{log: log}
	defer t.cleanUp()
	startServer(t)
	code := m.Run()
	if code == 0 {
		os.Remove(log.Name())
	} else {
		fmt.Fprintln(os.Stderr, "the API server's log:", log.Name())
	}
	return code
}

func binary() string {
	path, err := filepath.Abs(filepath.Join(root, "bin", "locksidecar"))
	if err != nil {
		panic(err)
	}
	return path
}
