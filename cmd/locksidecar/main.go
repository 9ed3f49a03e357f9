// Command locksidecar runs beside a pod and grants distributed locks over HTTP
// on a Unix socket; its other commands are small clients of that socket.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/locksidecar/locksidecar/internal/cli"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// version is set by the linker (make build).
var version string

func main() {
	err := cli.Execute(version, os.Args[1:], os.Stdout, os.Stderr)
	if _, silent := errors.AsType[exitcode.StatusError](err); err != nil && !silent {
		say(err)
	}
	os.Exit(exitcode.Of(err))
}

// say prints an error, and waits for a second at most, because the reader of standard error may block.
func say(err error) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(os.Stderr, "locksidecar: %v\n", err)
	}()
	select {
	case <-said:
	case <-time.After(time.Second):
	}
}
