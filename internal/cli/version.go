package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

const apiVersion = "v1"

// buildVersion is the version of this binary. linked is empty after `go install`.
func buildVersion(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program, of Go, and of the API",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.printVersion(cmd) },
	}
}

func (a *app) printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "locksidecar %s, %s %s/%s, API %s\n", a.version, runtime.Version(), runtime.GOOS, runtime.GOARCH, apiVersion)
	return err
}
