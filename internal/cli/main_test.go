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
// process of their own; see children.
const processEnv = "LOCKSIDECAR_TEST_CHILD"

var children = map[string]func(){"command": commandProcess, "panic": panicOnTerminal}

// commandProcess is what main does.
func commandProcess() {
	err := Execute("", os.Args[1:], os.Stdout, os.Stderr)
	if _, silent := errors.AsType[exitcode.StatusError](err); err != nil && !silent {
		fmt.Fprintf(os.Stderr, "locksidecar: %v\n", err)
	}
	os.Exit(exitcode.Of(err))
}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(processEnv)]; child != nil {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}
