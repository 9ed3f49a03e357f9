package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"
)

type stopBody struct {
	Reason *string `json:"reason,omitempty"`
}

func (a *app) stopCommand() *cobra.Command {
	var reason string
	var token int64
	cmd := &cobra.Command{
		Use:   "stop KEY [--token TOKEN] [--reason TEXT]",
		Short: "Ask whoever holds a lock to come to an end and release it",
		Long: `Ask the holder of a lock, in whichever pod, to come to an end and to release it.
It is told, and so is everybody who looks at the lock; whether it does so is its
own decision. To wait for that, acquire the lock with --wait. Of a shared lock, all
holders are asked, or with --token one.

Nobody holds the lock (under that token): exit code 77.`,
		Example: `  locksidecar stop backup:nightly --reason 'the database goes down at 3:00'

  # Ask, and go on when it has stopped
  locksidecar stop backup:nightly && locksidecar run backup:nightly --wait=5m -- ./maintain`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var body stopBody
			if cmd.Flags().Changed("reason") {
				body.Reason = &reason
			}
			path := lockPath(args[0]) + "/stop"
			if cmd.Flags().Changed("token") {
				path += fmt.Sprintf("?token=%d", token)
			}
			var answer json.RawMessage
			if err := a.newClient().call(http.MethodPost, path, body, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, func(_ *struct{}, w io.Writer) error {
				_, err := fmt.Fprintf(w, "asked the holder of %s to stop\n", printable(args[0]))
				return err
			})
		},
	}
	addJSON(cmd)
	cmd.Flags().Int64Var(&token, "token", 0, "ask only the holder that has this fencing token, as \"get\" shows it")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people; at most 255 bytes")
	return cmd
}
