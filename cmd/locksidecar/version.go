package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (make build); a plain `go install` leaves it empty.
var version string

// apiVersion is the version of the HTTP API.
const apiVersion = "v1"

// buildVersion is what this binary calls itself.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// versionLine is what `version` and --version print.
func versionLine() string {
	return fmt.Sprintf("locksidecar %s, %s %s/%s, API %s", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, apiVersion)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program, of Go, and of the API",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd) },
	}
}

func printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
	return err
}
