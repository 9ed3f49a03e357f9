package cli

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// healthPause is the pause in `health --wait`.
const healthPause = 100 * time.Millisecond

func (a *app) healthCommand() *cobra.Command {
	var ready bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check the sidecar's health, for probes in images without a shell",
		Long: `Check the sidecar's health. The exit code is 0 if it is healthy, and 69 if it is not, or
does not listen. With --ready, check that the sidecar can grant locks now, which needs its
store: this is for readiness probes, not for liveness. With --wait, repeat the check until
it succeeds, for at most this time: this is for a process that starts with the sidecar.`,
		Example: "  locksidecar health\n  locksidecar health --ready\n  locksidecar health --wait 30s",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usagef("--wait %s: it must not be negative", wait)
			}
			path, well := "/healthz", "healthy"
			if ready {
				path, well = "/readyz", "ready"
			}
			if err := askUntilWell(a.newClient(), path, wait); err != nil {
				return exitcode.With(exitcode.Unavailable, fmt.Errorf("not %s: %w", well, err))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), well)
			return err
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "check that the sidecar can grant locks now")
	cmd.Flags().DurationVar(&wait, "wait", 0, "repeat the check until it succeeds, for at most this time")
	return cmd
}

// askUntilWell asks once, and with wait until the answer is good. The error is that of the last answer.
func askUntilWell(c *client.Client, path string, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; {
		if wait > 0 { // a sidecar that does not answer must not exceed the wait
			c = c.WithPatience(min(client.AnswerTimeout, max(healthPause, time.Until(deadline))))
		}
		err := c.Call(http.MethodGet, path, nil, nil, 0)
		if err == nil || time.Until(deadline) < healthPause {
			return err
		}
		time.Sleep(healthPause)
	}
}
