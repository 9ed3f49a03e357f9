package cli

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// processEnv makes the test binary be what the value names, for tests that need a
// process of their own.
const processEnv = "LOCKSIDECAR_TEST_CHILD"

// commandProcess is what main does.
func commandProcess() {
	err := Execute("", os.Args[1:], os.Stdout, os.Stderr)
	if _, silent := errors.AsType[exitcode.StatusError](err); err != nil && !silent {
		fmt.Fprintf(os.Stderr, "locksidecar: %v\n", err)
	}
	os.Exit(exitcode.Of(err))
}

func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" {
		commandProcess()
	}
	goleak.VerifyTestMain(m)
}
