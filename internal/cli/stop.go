package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

type stopBody struct {
	Reason *string `json:"reason,omitempty"`
}

func (a *app) stopCommand() *cobra.Command {
	var reason string
	var token int64
	cmd := &cobra.Command{
		Use:   "stop KEY [--token TOKEN] [--reason TEXT]",
		Short: "Ask the holder of a lock to finish and release it",
		Long: `Ask the holder of a lock, in any pod, to finish its work and release the lock. The
holder is notified, and the request is shown with the lock. The holder itself decides
whether to release. To wait for the release, acquire the lock with --wait. The request
goes to all holders of a shared lock, or with --token to one.

The exit code is 77 if the lock is not held (under that token).`,
		Example: `  locksidecar stop backup:nightly --reason 'the database goes down at 3:00'

  # Ask, and go on when it has stopped
  locksidecar stop backup:nightly && locksidecar run backup:nightly --wait=5m -- ./maintain`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var body stopBody
			if cmd.Flags().Changed("reason") {
				body.Reason = &reason
			}
			path := client.LockPath(args[0]) + "/stop"
			if cmd.Flags().Changed("token") {
				path += fmt.Sprintf("?token=%d", token)
			}
			var answer json.RawMessage
			if err := a.newClient().Call(http.MethodPost, path, body, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, func(_ *struct{}, w io.Writer) error {
				_, err := fmt.Fprintf(w, "asked the holder of %s to stop\n", client.Printable(args[0]))
				return err
			})
		},
	}
	addJSON(cmd)
	cmd.Flags().Int64Var(&token, "token", 0, "ask only the holder that has this fencing token, as \"get\" shows it")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people; at most 255 bytes")
	return cmd
}
