package cli

import (
	"encoding/json"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Show one lock: free, or held by whom, who waits, and whether it is asked to stop",
		Long: `Show one lock: free, or held by whom, who waits, and whether it is asked to stop.
The store is asked, also for a lock of this pod.`,
		Example: `  locksidecar get backup:nightly
  locksidecar get backup:nightly --json | jq -r .holder.pod`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer json.RawMessage
			if err := a.newClient().call(http.MethodGet, lockPath(args[0]), nil, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, (*lockView).write)
		},
	}
	addJSON(cmd)
	return cmd
}
