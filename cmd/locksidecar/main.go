// Command locksidecar runs beside a pod and grants distributed locks over HTTP
// on a Unix socket; its other commands are small clients of that socket.
package main

import (
	"fmt"
	"os"

	"github.com/locksidecar/locksidecar/internal/config"
)

func main() {
	err := execute(config.Source{}, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "locksidecar: %v\n", err)
	}
	os.Exit(exitCode(err))
}
