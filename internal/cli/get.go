package cli

import (
	"encoding/json"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

func (a *app) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Show one lock: its holders, how many calls wait, and requests to stop",
		Long: `Show one lock: its holders, how many calls wait, and requests to stop.
The store is asked, also for a lock of this pod.`,
		Example: `  locksidecar get backup:nightly
  locksidecar get backup:nightly -o json | jq -r .holder.pod`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer json.RawMessage
			if err := a.newClient().Call(http.MethodGet, client.LockPath(args[0]), nil, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, writeLock)
		},
	}
	addJSON(cmd)
	return cmd
}
