package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// processEnv makes the test binary be what the value names, for tests that need a
// process of their own; see children.
const processEnv = "LOCKSIDECAR_TEST_CHILD"

var children = map[string]func(){"command": main, "panic": panicOnTerminal}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(processEnv)]; child != nil {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}
