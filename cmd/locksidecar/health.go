package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
)

func (a *app) healthCommand() *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the sidecar whether it is well, for probes in images without a shell",
		Long: `Ask the sidecar whether it is well: exit code 0 when it is, 69 when it is not
or nobody listens. With --ready, ask whether it can grant locks now, which needs
its store: for readiness probes, not for liveness.`,
		Example: "  locksidecar health\n  locksidecar health --ready",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, well := "/healthz", "healthy"
			if ready {
				path, well = "/readyz", "ready"
			}
			if err := a.newClient().call(fasthttp.MethodGet, path, nil, nil, 0); err != nil {
				return because(exitUnavailable, fmt.Errorf("not %s: %w", well, err))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), well)
			return err
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it can grant locks now")
	return cmd
}
