package cli

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// healthPause is the pause in `health --wait`.
const healthPause = 100 * time.Millisecond

func (a *app) healthCommand() *cobra.Command {
	var ready bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the sidecar whether it is well, for probes in images without a shell",
		Long: `Ask the sidecar whether it is well: exit code 0 when it is, 69 when it is not
or nobody listens. With --ready, ask whether it can grant locks now, which needs
its store: for readiness probes, not for liveness. With --wait, ask again until the
answer is yes, for so long at most: for whoever starts together with the sidecar.`,
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
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it can grant locks now")
	cmd.Flags().DurationVar(&wait, "wait", 0, "ask again until it is, for so long at most")
	return cmd
}

// askUntilWell asks once, and with wait until all is well. The error is the last answer's.
func askUntilWell(c *client, path string, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; {
		if wait > 0 { // a sidecar that hangs must not use up more than the wait
			c = c.withPatience(min(answerTimeout, max(healthPause, time.Until(deadline))))
		}
		err := c.call(http.MethodGet, path, nil, nil, 0)
		if err == nil || time.Until(deadline) < healthPause {
			return err
		}
		time.Sleep(healthPause)
	}
}
